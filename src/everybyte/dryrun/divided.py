"""The `Workload` of one GPU of a mesh, for the book's models; and PyTorch's pipelines in one process."""

from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining._utils import InferenceMode
from torch.utils._python_dispatch import _disable_current_modes

from ..ask.schedules import stages_of
from ..ask.setup import Setup
from ..catalog import Model
from ..reference.mesh.context import placed
from ..reference.mesh.mixture import told
from ..reference.mesh.trainer import MeshTrainer, held
from ..reference.step import random_batch
from .cuda import patched
from .workload import Workload, as_tuple


def workload(model: Model, setup: Setup, rank: int) -> Workload:
    """One rank's step. It is told the tokens' positions, and what its routers choose."""
    mesh, place = setup.mesh, setup.mesh.rank(rank, setup.data)["pipeline"]
    piped = mesh.pipeline > 1

    def make():
        with _disable_current_modes() if piped else nullcontext(), torch.device("meta"):  # blocks of others come and go
            return held(model, setup, place, told(model, setup))

    first = model.learned_positions - model.positions if model.family == "gpt" else 0
    batch = random_batch(model.vocabulary, setup, "meta")
    if piped:
        batch = partial(_ends, model, setup, place, first)
    elif mesh.context > 1:
        batch = placed(batch, first)
    return Workload(
        make, batch, lambda given: [targets for targets in given[1:2] if targets is not None],
        as_tuple, setup, model, trains=partial(MeshTrainer, model=model),
    )  # fmt: skip


def mesh_trainer(module, setup, **options):
    """The trainer of a module of your own that divides its own matrices."""
    if not hasattr(module, "parallelize"):
        raise ValueError(
            f"dry_run.model: {type(module).__name__} with mesh {setup.mesh} does not say how its matrices are divided; allowed: a "
            "module with a method parallelize(mesh), which is called with the device mesh of the GPUs that divide them, or no mesh"
        )
    return MeshTrainer(module, setup, **options)


def _ends(model, setup, place, first):
    """Tokens where this GPU has the first stage, targets where it has the last, of all micro-batches; a ring's positions."""
    mine, last = stages_of(setup.mesh, place), setup.mesh.pipeline * setup.mesh.stages - 1
    shape = setup.accumulation * setup.batch, setup.sequence
    given = [torch.randint(model.vocabulary, shape, device="meta") if stage in mine else None for stage in (0, last)]
    if setup.mesh.context > 1:
        given.append(torch.arange(first, first + setup.sequence, device="meta"))
    return tuple(given)


def pipelines_on_meta():
    """A context in which PyTorch's pipelines run in one process on device meta, without peers and without CUDA."""

    def agreed(self, stages, *_):  # the ranks vote, by numbers that they read back: all said that shapes are known
        for stage in stages:
            stage._inference_mode = InferenceMode.STATIC

    def one_by_one(operations):  # no backend is named for meta
        return [
            o.op(o.tensor, group=o.group, **{"group_dst" if o.op is dist.isend else "group_src": o.group_peer})
            for o in operations
        ]

    return patched(
        (schedules._PipelineSchedule, "_warmup_p2p", agreed),
        (dist, "batch_isend_irecv", one_by_one),
        (torch.random, "fork_rng", lambda **_: nullcontext()),
    )
