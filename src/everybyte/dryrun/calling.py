"""What a call takes that a training script makes beside the step's own: clipping gradients, gathering a state dict.

The call is PyTorch's own. It runs on the module and the optimizer of a dry run, and its allocations are counted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..ask.setup import Setup
from ..common import checks
from .modules import workload
from .tracker import Tracker
from .workload import Workload

MOMENTS = ("after_backward", "after_step")


@dataclass(frozen=True)
class Call:
    """What one call takes, in bytes.

    Attributes:
        most: the most that lives at once on the GPU of what the call allocates. stays: what its result holds on the GPU.
        host: what its result holds in the memory of the CPU. before: what lives on the GPU as it begins.
        tensors: how many allocations it makes on the GPU.
    """

    most: int
    stays: int
    host: int
    before: int
    tensors: int


def during(model, setup: Setup, call: Callable, moment: str = "after_backward", rank: int = 0) -> Call:
    """Dry-run one step, and count what `call(module, optimizer)` takes within it.

    Args:
        model: as in `dry_run`. setup: as in `dry_run`, without ZeRO-1 and without offload. rank: which of several GPUs.
        call: is given the module and its optimizer, whose tensors have no data; what it returns is held until it is counted.
        moment: `after_backward`, before the optimizer's step, or `after_step`, before the gradients are freed.

    Raises:
        ValueError: what `dry_run` raises; another moment; ZeRO-1, whose weights are views of one buffer, or offload.
    """
    from . import count

    checks.one_of("during", "moment", moment, MOMENTS)
    checks.kind("during", "setup", setup, Setup)
    setup.check_undivided("during")
    if setup.sharding == "zero1" or setup.offload != "none":
        raise ValueError(
            f"during.setup: sharding {setup.sharding!r} with offload {setup.offload!r}; allowed: one GPU, DDP or FSDP, "
            "with nothing offloaded"
        )
    tracker, found = Tracker(), []
    calling: Any = _Calling(
        workload(model, setup, None), lambda trainer: found.append(_count(tracker, call, trainer)), moment
    )
    count(calling, tracker, rank)
    return found[-1]  # the steady step's


class _Calling:
    """A workload whose trainer calls something beside its update."""

    def __init__(self, work: Workload, call: Callable, moment: str):
        self._work, self._call, self._moment = work, call, moment

    def __getattr__(self, name):
        return getattr(self._work, name)

    def trainer(self, *args, **kwargs):
        trainer = self._work.trainer(*args, **kwargs)
        update, early = trainer.update, self._moment == "after_backward"

        def calling():
            for act in (lambda: self._call(trainer), update)[:: 1 if early else -1]:
                act()

        trainer.update = calling
        return trainer


def _count(tracker, call, trainer):
    first = len(tracker.allocations)
    before = sum(a.bytes for a in tracker.allocations if a.death is None and not a.host)
    start = tracker.mark("call")
    with tracker.making("communication", "call"):
        result = call(trainer.module, trainer.optimizer)
    end = tracker.mark("called")
    made = tracker.allocations[first:]
    there = [a for a in made if a.death is None]
    del result
    on_gpu = [a for a in made if not a.host]
    most = max(
        sum(a.bytes for a in on_gpu if a.birth <= at and (a.death is None or at <= a.death)) for at in range(start, end)
    )
    stays, host = (sum(a.bytes for a in there if a.host is where) for where in (False, True))
    return Call(most, stays, host, before, len(on_gpu))
