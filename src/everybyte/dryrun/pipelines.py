"""One GPU of a pipeline: the book's models cut into stages, which PyTorch's own schedules run.

`torch.distributed.pipelining` runs as it is: what a stage receives, sends, keeps and frees is its own. The last stage gives
logits, and the schedule calls the loss; outputs are not gathered (`return_outputs=False`, as torchtitan asks), and each
micro-batch's loss is divided by their number, so that gradients need no scaling. Where embedding and head are one weight, the
first and the last stage have a copy each, whose gradients are added before the optimizer's step, as in Megatron-LM.
"""

from collections.abc import Callable
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining._utils import InferenceMode
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import _disable_current_modes

from ..ask.mesh import Mesh
from ..ask.schedules import ONE_STAGE, TWO_STAGES, blocks_of, stages_of
from ..ask.setup import Setup
from ..catalog import Model
from ..reference import FAMILIES, Trainer
from ..reference.mesh.context import going_around
from ..reference.mesh.experts import average, divide_experts, left_alone
from ..reference.mesh.mixture import ParallelExperts
from ..reference.mesh.stages import STAGES, Blocks, Share
from ..reference.parallel import at_once, device_mesh, shard, sharers
from ..reference.splitting import split
from ..reference.step import DTYPES
from .divided import told_mixture
from .workload import Workload

SCHEDULES = {
    "gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B,
    "interleaved-1f1b": pipelining.ScheduleInterleaved1F1B, "looped-bfs": pipelining.ScheduleLoopedBFS,
    "interleaved-zero-bubble": pipelining.ScheduleInterleavedZeroBubble, "zbv": pipelining.ScheduleZBVZeroBubble,
    "dualpipev": schedules.ScheduleDualPipeV,
}  # fmt: skip


# The module.


def held(model: Model, setup: Setup, place: int, mixture: type[ParallelExperts] = ParallelExperts) -> nn.Module:
    """What the GPU at a place of the pipeline has of a model, by the names that it has in the whole one.

    The embeddings with the first stage; last norm, head and loss with the last.

    Args:
        mixture: what stands for the experts of a block where several GPUs divide them.
    """
    mine, last = stages_of(setup.mesh, place), setup.mesh.pipeline * setup.mesh.stages - 1
    numbers = [i for blocks in blocks_of(model.layers, setup.mesh, place) for i in blocks]
    make: Callable[[Model, Setup], Any] = FAMILIES[str(model.family)]
    module = make(model.replace(layers=len(numbers)), undivided(setup))
    for block in module.blocks if setup.mesh.expert > 1 else ():
        block.mlp = mixture(model, setup.mesh.expert)
    module.blocks = Blocks(dict(zip(numbers, module.blocks, strict=True)))
    if 0 not in mine:
        for name in ("token", "position")[: 1 + (model.family == "gpt")]:
            delattr(module, name)
    if last in mine:
        module.loss = Share(module.loss, module.head if module.with_head else None, setup.accumulation)
    else:
        del module.norm, module.head, module.loss
    return module


def undivided(setup: Setup) -> Setup:
    """The same on one GPU."""
    return setup.replace(gpus=1, mesh=Mesh(), sharding="none", sharding_units="block", buckets="copies", offload="none")


# The step.


class Watched(PipelineStage):
    """PyTorch's stage, which says before it runs what it does."""

    watch = staticmethod(lambda kind: None)  # is told `forward` or `backward`

    def forward_one_chunk(self, *args, **kwargs):
        self.watch("forward")
        return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args, **kwargs):
        self.watch("backward")
        return super().backward_one_chunk(*args, **kwargs)

    def backward_weight_one_chunk(self, *args, **kwargs):
        self.watch("backward")
        return super().backward_weight_one_chunk(*args, **kwargs)


class PipelineTrainer(Trainer):
    """One GPU's part of a model, its optimizer, and one step of training with the other GPUs.

    Args:
        module: what `held` gives, on its device. model: the whole. place: of this GPU in the pipeline.
    """

    def __init__(self, module: nn.Module, model: Model, setup: Setup, place: int, **options):
        module = module.to(DTYPES[setup.dtypes.weights])
        self.device = next(module.parameters()).device
        ways, everybody = setup.mesh, device_mesh(setup, self.device.type)
        mine, count = stages_of(ways, place), ways.pipeline * ways.stages
        self.first, self.last = 0 in mine, count - 1 in mine
        self.averaged = divide_experts(module, setup) if ways.expert > 1 else None
        if ways.tensor > 1:
            split(module, everybody["tensor"], ways)
        self.stages, self.parts, self.tell = [], [], lambda kind: None
        for number, blocks in zip(mine, blocks_of(model.layers, ways, place), strict=True):
            stage = STAGES[str(model.family)](module, blocks, number == 0, number == count - 1)
            self.parts.append(stage)
            if setup.fsdp:
                shard(stage, setup, everybody)
            elif setup.ddp:
                stage = replicated(stage, setup, sharers(everybody).get_group())
            given, gives = self._examples(model, setup, number == 0, number == count - 1)
            self.stages.append(
                Watched(
                    stage, number, count, self.device, input_args=(given,), output_args=(gives,),
                    group=everybody["pipeline"].get_group(),
                )
            )  # fmt: skip
        self.sharded, self.sharers = setup.fsdp, setup.sharers
        super().__init__(module, undivided(setup), **options)
        of = self.stages if ways.schedule not in ONE_STAGE else self.stages[0]
        self.schedule = SCHEDULES[ways.schedule](
            of, setup.accumulation, loss_fn=module.loss if self.last else _no_loss, scale_grads=False
        )
        self.ring = partial(going_around, everybody["context"], ways.rotation) if ways.context > 1 else None
        self.tied = self.ends = None
        if model.tied and ways.schedule not in TWO_STAGES:
            if self.first or self.last:
                self.tied = (module.token if self.first else module.head).weight
            for pipeline in everybody.mesh.flatten(1).T.tolist():  # everybody makes every group
                group = dist.new_group([pipeline[0], pipeline[-1]])
                self.ends = group if dist.get_rank() in pipeline else self.ends

    def _examples(self, model, setup, first, last):
        """What a stage is given and gives, without data: PyTorch asks for shapes and types alone."""
        dtype = DTYPES[setup.dtypes.compute if setup.fsdp else setup.dtypes.weights]
        shape, own = (setup.batch, setup.own_sequence), setup.mesh.tensor if setup.mesh.sequence_parallel else 1
        with _disable_current_modes():
            sent = setup.batch, setup.own_sequence // own, model.width
            hidden = torch.empty(sent, dtype=dtype, device="meta", requires_grad=True)
            if first:
                given = torch.empty(shape, dtype=torch.int64, device="meta")
            else:
                given = hidden
            if last and setup.loss == "plain":
                return given, torch.empty(*shape, model.vocabulary, dtype=dtype, device="meta", requires_grad=True)
            return given, hidden

    @property
    def roots(self):
        """What FSDP divides, each by itself."""
        return [stage.submod for stage in self.stages]

    def watch(self, tell):
        """Have `tell` be told what runs next: `forward`, `backward` or `optimizer step`."""
        self.tell = tell
        for stage in self.stages:
            stage.watch = tell

    def step(self, batch, at=lambda phase: None):
        """One step of this GPU.

        Args:
            batch: makes tokens and targets of all micro-batches, (m B, S) each; what this GPU has no use for is None. Of GPUs that
                share sequences, which each get the same and keep their own tokens of them, the positions (S,) too.
            at: is told each phase as it ends: `after_forward` of each micro-batch, `after_backward` of all, `after_step`.

        Returns:
            The loss, averaged over the micro-batches, where the last stage is here; else None.
        """
        tokens, targets, *positions = batch()
        losses, total = [], 0.0 if self.accumulation > 1 else None
        with self._marked(at), self._shared(tokens, targets, *positions):
            self.schedule.step(
                *((tokens,) if self.first else ()), target=targets, losses=losses if self.last else None,
                return_outputs=False,
            )  # fmt: skip
        for share in losses:
            total = total + share.detach() if self.accumulation > 1 else share.detach()
        at("after_backward")
        self.tell("optimizer step")
        if self.tied is not None:
            dist.all_reduce(_own(self.tied.grad), group=self.ends)
        if self.averaged is not None and not self.sharded:
            average(self.module.blocks, self.averaged, self.sharers)
        self.update()
        at("after_step")
        self.optimizer.zero_grad()
        return total if self.last else None

    @contextmanager
    def _shared(self, *inputs):
        """Within it each GPU of a ring has its own tokens, and attention goes around, in backward too."""
        given = [x for x in inputs if x is not None]
        if self.ring is None:
            yield
            return
        for stage in self.parts:
            stage.positions = inputs[-1]
        with self.ring(given):
            del given
            yield
        for stage in self.parts:
            stage.positions = None

    @contextmanager
    def _marked(self, at):
        """Within it, the end of each forward is told, its loss included."""
        compute = self.schedule._maybe_compute_loss

        def then_mark(*args, **kwargs):
            compute(*args, **kwargs)
            at("after_forward")

        with mock.patch.object(self.schedule, "_maybe_compute_loss", then_mark):
            yield

    def buffers(self):
        """What stands for good to receive into: PyTorch's stages have one for each micro-batch and direction."""
        mine = [stage.stage_index for stage in self.stages]
        for stage in self.stages:
            for infos in (*stage.args_recv_info.values(), *stage.grad_recv_info.values()):
                yield from (info.buffer for info in infos if info.buffer is not None and info.source not in mine)


def replicated(stage, setup, group):
    """A stage that DDP averages over a group of GPUs, in its last backward.

    Source: `torch/distributed/pipelining/stage.py`, `backward_maybe_with_nosync`.
    """
    if setup.mesh.expert > 1:
        left_alone(stage)
    fake = dist.get_backend() == "fake"  # nobody to compare weights with
    views = setup.buckets == "views"
    ddp = DistributedDataParallel(stage, process_group=group, init_sync=not fake, gradient_as_bucket_view=views)
    ddp.broadcast_buffers = False  # causal masks: the same everywhere and always
    if fake:
        ddp.register_comm_hook(None, at_once)
    return ddp


def _own(gradient):
    """What this GPU has of a gradient that may be divided."""
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def _no_loss(output, targets):
    raise AssertionError("a stage that is not the last has no loss")


# Without data.


@dataclass(frozen=True)
class PipelineWorkload(Workload):
    """The step of one GPU of a pipeline. `place`: which."""

    place: int = 0

    def module(self):
        with _disable_current_modes(), torch.device("meta"):
            if self.setup.mesh.expert > 1:
                return held(self.model, self.setup, self.place, told_mixture(self.model, self.setup))
            return held(self.model, self.setup, self.place)

    def counted(self, module):
        return self.model

    def trainer(self, module, setup, **options):
        return PipelineTrainer(module, self.model, setup, self.place, **options)


def workload(model: Model, setup: Setup, rank: int) -> PipelineWorkload:
    """The step of one rank of a pipeline, made ready."""
    place = setup.mesh.rank(rank, setup.data)["pipeline"]
    mine, last = stages_of(setup.mesh, place), setup.mesh.pipeline * setup.mesh.stages - 1
    shape = setup.accumulation * setup.batch, setup.sequence
    first = model.learned_positions - model.positions if model.family == "gpt" else 0

    def batch():
        given = tuple(
            torch.randint(model.vocabulary, shape, device="meta") if stage in mine else None for stage in (0, last)
        )
        if setup.mesh.context == 1:
            return given
        return *given, torch.arange(first, first + setup.sequence, device="meta")

    return PipelineWorkload(
        lambda: None,
        batch,
        lambda given: [t for t in given[1:2] if t is not None],
        lambda *_: None,
        setup,
        model,
        place,
    )


@contextmanager
def on_meta():
    """Within it, PyTorch's pipelines run in one process on device meta: what they ask of peers and of CUDA is answered."""

    def agreed(self, stages, *_):  # the ranks vote, by numbers that they read back: all said that shapes are known
        for stage in stages:
            stage._inference_mode = InferenceMode.STATIC

    def one_by_one(operations):  # no backend is named for meta
        return [
            o.op(o.tensor, group=o.group, **{"group_dst" if o.op is dist.isend else "group_src": o.group_peer})
            for o in operations
        ]

    with ExitStack() as stack:
        for owner, name, instead in (
            (schedules._PipelineSchedule, "_warmup_p2p", agreed),
            (dist, "batch_isend_irecv", one_by_one),
            (torch.random, "fork_rng", lambda **_: nullcontext()),
        ):
            stack.enter_context(mock.patch.object(owner, name, instead))
        yield


def tell(trainer, tracker):
    """Have the tracker know at any moment whether a forward or a backward runs, or the optimizer."""
    trainer.watch(lambda kind: setattr(tracker, "phase", kind))


def follow(tracker, module):
    """Have the tracker know weights that were made out of its sight: of a larger model, whose others were dropped."""
    for name, parameter in module.named_parameters():
        tracker.assign(parameter, "parameters", name)
    for name, buffer in module.named_buffers():
        tracker.assign(buffer, "buffers", name)
