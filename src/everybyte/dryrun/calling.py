"""The memory of a call that a training script makes during a step, such as clipping gradients or gathering a state dict.

The call is PyTorch's own. It runs on the module and the optimizer of a dry run, and its allocations are counted.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..ask.setup import Setup
from ..common import checks
from .counting import count
from .modules import workload
from .trace import PARTS, SHARED_PARTS, reading
from .tracker import Tracker

MOMENTS = ("after_backward", "after_step")


@dataclass(frozen=True)
class Call:
    """The memory of one call, in bytes.

    Attributes:
        most: the most of the call's allocations that live at once on the GPU. stays: of its result on the GPU.
        host: of its result in the memory of the CPU. before: what lives on the GPU as it begins.
        tensors: the number of its allocations on the GPU.
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
        call: a function of the module and its optimizer, whose tensors have no data; its result is kept until it is counted.
        moment: `after_backward`, before the optimizer's step, or `after_step`, before the gradients are freed.

    Raises:
        ValueError: what `dry_run` raises; another moment; ZeRO-1, whose weights are views of one buffer, or offload.
    """
    checks.one_of("during", "moment", moment, MOMENTS)
    checks.kind("during", "setup", setup, Setup)
    setup.check_undivided("during")
    if setup.sharding == "zero1" or setup.offload != "none":
        raise ValueError(
            f"during.setup: sharding {setup.sharding!r} with offload {setup.offload!r}; allowed: one GPU, DDP or FSDP, "
            "with nothing offloaded"
        )
    tracker, work, found = Tracker(), workload(model, setup), []

    def trains(*args, **options):
        trainer = work.trains(*args, **options)
        update = trainer.update

        def calling():
            if moment == "after_step":
                update()
            found.append(_count(tracker, call, trainer))
            if moment == "after_backward":
                update()

        trainer.update = calling
        return trainer

    count(replace(work, trains=trains), tracker, rank)
    return found[-1]  # the steady step's


def _count(tracker, call, trainer):
    first = len(tracker.allocations)
    before = sum(a.bytes for a in tracker.allocations if a.death is None and not a.host)
    start = tracker.mark("call")
    with tracker.making("communication", "call"):
        result = call(trainer.module, trainer.optimizer)
    end = tracker.mark("called")
    made = tracker.allocations[first:]
    stays, host = (sum(a.bytes for a in made if a.death is None and a.host is where) for where in (False, True))
    del result
    moments = reading(tracker.operations, made, parts=PARTS + SHARED_PARTS).moments[start:end]
    most = max(sum(moment.live.values()) for moment in moments)
    return Call(most, stays, host, before, sum(not a.host for a in made))
