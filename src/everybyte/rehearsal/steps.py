"""Rehearse the book's own step: what `measure` runs, in the environment of the stubs."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..ask.setup import Setup
from ..catalog import Gpu, Model
from ..common import checks
from ..lab.measurement import Measurement
from ..lab.measuring import check_request
from ..lab.process import EXPANDABLE, Failed, Worker, ask
from . import devices, place
from .result import Rehearsal
from .script import surroundings

#: Steps before the counted one: after them the optimizer's states and DDP's buckets exist.
WARM_UP = 2
_COUNTS = ("requested", "allocated", "reserved")


def rehearse(
    model: Model,
    setup: Setup,
    gpu: str | Gpu = "h200",
    *,
    memory: int | None = None,
    expandable: bool = False,
    timeout: float = 600.0,
    folder: str | os.PathLike | None = None,
) -> Rehearsal:
    """Rehearse one steady training step: the reference step on PyTorch's CUDA build, on a pretended GPU.

    With several GPUs it is rank 0 alone: all of its tensors exist, and its collectives move nothing. A mesh may have a tensor, a
    context or an expert dimension; how many rows come to its experts, `Mesh.routing` says.

    Args:
        gpu: a name of the catalog, whose memory, capability and multiprocessors are pretended.
        memory: bytes in place of the catalog's, for instance less, to run out of memory on purpose.
        expandable: whether the allocator maps memory into segments that grow (`expandable_segments:True`).
        timeout: seconds after which it is ended. folder: of the environment.

    Raises:
        ValueError: for bad input, or where there is no environment; the message says how to make one.
    """
    setup = check_request(model, setup, alone=True)
    checks.flag("rehearse", "expandable", expandable)
    where = place.find(folder)
    found = devices.find(gpu, where.manifest["capabilities"])
    with starter(where, found, memory) as start, start(EXPANDABLE if expandable else None) as running:
        try:
            return one(running, model, setup, found, timeout)[0]
        except Failed as error:
            raise ValueError(f"rehearse: {error}") from error


@contextmanager
def starter(where: place.Place, gpu: Gpu, memory: int | None = None) -> Iterator[Callable[..., Worker]]:
    """A context with a function that starts a worker of the labs on a pretended GPU, as `record` takes it."""
    variables = devices.environment(gpu, 1, memory) | {"CUDA_VISIBLE_DEVICES": "0"}
    with surroundings(where, variables) as (surrounding, _):

        def start(environment=None):
            return Worker(
                (str(where.python), "-u", "-m", "everybyte.lab.worker"), surrounding | dict(environment or {})
            )

        yield start


def one(running: Worker, model: Model, setup: Setup, gpu: Gpu, timeout: float) -> tuple[Rehearsal, bool]:
    """(a rehearsal by a worker, whether the worker can take another).

    Raises:
        Failed: where the worker dies, or ran on another device than a rehearsal's.
    """
    measured, clean = ask(running, model, setup, None, timeout, warm_up=WARM_UP, steps=0, points=4)
    if measured.witness != "rehearse":
        raise Failed(f"it ran on {measured.device['name']}, which is no rehearsal's device")
    return of(measured, gpu), clean


def of(measured: Measurement, gpu: Gpu) -> Rehearsal:
    """A worker's measurement on the stubs as a `Rehearsal`: bytes as requested, without times and losses."""
    peaks = {count: getattr(measured, f"{count}_peak") - measured.baseline for count in _COUNTS[:2]}
    peaks["reserved"] = measured.reserved_peak
    return Rehearsal(
        model=measured.model, setup=measured.setup, gpu=gpu, **peaks, segments=measured.segments,
        workspace=measured.workspace or 0, phases=measured.requested or {}, peak_at=measured.peak_at,
        out_of_memory=measured.out_of_memory, attention_kernel=(measured.settings or {}).get("attention_kernel"), fingerprint=measured.fingerprint,
        versions={name: (measured.versions or {})[name] for name in ("torch", "cuda")},
    )  # fmt: skip
