"""In which phase of a run something happened: by the moments that were marked, and by the functions that were running."""

import re
from collections.abc import Iterable, Sequence

#: The moment at which a part of a step ends -> that part, and the one that begins then.
MOMENTS = {
    "after_forward": ("forward", "backward"),
    "backward_done": ("backward", "backward"),
    "after_backward": ("backward", "optimizer step"),
    "after_step": ("optimizer step", "forward"),
}
BEFORE = "before any backward"
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
