"""In which phase of a run something happened: by the moments that were marked, and by the functions that were running."""

import re
from collections.abc import Iterable, Sequence

BEFORE, BETWEEN = "before any backward", "between backward and step"
#: The moment at which a part of a step ends -> that part, and the one that begins then.
MOMENTS = {
    "after_forward": ("forward", "backward"),
    "step_begins": ("backward", "optimizer step"),
    "step_ends": ("optimizer step", "backward"),
    "backward_done": ("backward", BETWEEN),
    "after_backward": (BETWEEN, "optimizer step"),
    "after_step": ("optimizer step", "forward"),
}
#: Of these, those of an optimizer that steps within backward.
WITHIN = ("step_begins", "step_ends")
_COLLECTIVE = re.compile(r"/torch/distributed/(?:distributed_c10d|_functional_collectives|nn/functional)\.py$")
#: Phase -> a file, and a function in it, of which one is running in that phase; the first that matches.
_RUNNING = (
    ("backward", re.compile(r"/torch/(?:autograd/__init__|autograd/graph|_tensor)\.py$"), re.compile(r"^(?:backward|_engine_run_backward)$")),
    ("optimizer step", re.compile(r"/torch/optim/|/bitsandbytes/optim/|/torchao/optim/"), re.compile("")),
    ("forward", re.compile(r"/torch/nn/modules/module\.py$"), re.compile(r"^_(?:wrapped_)?call_impl$")),
)  # fmt: skip


def where(allocation: int, marks: list[tuple[str, int]]) -> str:
    """The part of a step in which an allocation was made, or that it was before any backward.

    Args:
        allocation: its number. marks: (moment, number of allocations by then), in order.
    """
    for moment, count in marks:
        if allocation <= count:
            return MOMENTS[moment][0]
    return MOMENTS[marks[-1][0]][1] if marks else BEFORE


def seen(at: str, frames: Sequence[dict]) -> str:
    """The part of a step that its moments tell, unless the innermost function of a phase that ran in some frames tells another.

    Moments do not tell forward from an optimizer's own work around a closure, nor what comes between backward and the step.
    """
    if at not in ("forward", BETWEEN):
        return at
    return next((name for frame in frames if (name := running([frame]))), at)


def step(allocation: int, marks: list[tuple[str, int]]) -> int:
    """In which step an allocation was made, the first being 0: how many had ended. Arguments as those of `where`."""
    return sum(moment == "after_step" and count < allocation for moment, count in marks)


def within(allocation: int, spans: Iterable[tuple[str, int, int]]) -> str | None:
    """The stage in which an allocation was made, of several the one that began last; None where it was in none.

    Args:
        spans: (stage, number of allocations by its begin, by its end).
    """
    found = [(first, name) for name, first, last in spans if first < allocation <= last]
    return max(found)[1] if found else None


def running(frames: Sequence[dict]) -> str | None:
    """The phase whose function runs in some frames; None where none of them is a step's."""
    for name, file, function in _RUNNING:
        if any(file.search(frame["filename"]) and function.search(frame["name"]) for frame in frames):
            return name
    return None


def collective(frames: Sequence[dict]) -> bool:
    """Whether a collective runs in some frames."""
    return any(_COLLECTIVE.search(frame["filename"]) for frame in frames)
