"""An allocator's history: the most bytes that lived at once, when that was, and what lived then.

A PyTorch snapshot holds for each device the allocations and frees in order, with their Python frames, and the blocks that are
live when it is taken. Source: PyTorch, `c10/cuda/CUDACachingAllocator.cpp` (`record_trace`).
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from types import FrameType

from ..evidence import Memory
from ..evidence.naming import library

#: So many lines of what lived at a peak are reported; in the place of a line, what says that a row is the others'.
LINES, REST = 400, "everything else"
#: The folder, in a rehearsal's temporary one, of the code that Inductor writes.
INDUCTOR = "inductor-of-rehearsal"
#: Files of no package and no script: Python's own, code without a file, what Inductor wrote, ours.
_OURS = "/everybyte/(?:rehearsal|answers)/"
_PLUMBING = re.compile(rf"/lib(64)?/python3[.\d]*/(?!(?:site|dist)-packages/)|^<|{_OURS}|/{INDUCTOR}/")
#: Files of PyTorch. Of their functions only the innermost one's name is reported.
_TORCH = re.compile(r"/site-packages/torch/|/dist-packages/torch/")


#: How a row of what lived says where it comes from: the line of the script, of a library; of backward, the node and the lines that made it.
WHERE = ("line", "inner", "node", "forward", "forward_inner")


def memory(snapshot: dict, device: int) -> Memory:
    """A device's history, of allocations and frees alone. snapshot: from `torch.cuda.memory._snapshot()`."""
    trace = [e for e in snapshot["device_traces"][device] if e["action"] in ("alloc", "free_requested")]
    segments = [segment for segment in snapshot["segments"] if segment["device"] == device]
    events = [(e["action"], e["addr"], e["size"], 0) for e in trace]
    return Memory(device, segments, events, [e.get("frames") or None for e in trace])


def numbers(memory: Memory, lost: int) -> dict[int, int]:
    """An event that allocates -> the number of its allocation. lost: how many allocations there were before the history."""
    made = (event for event, (action, *_) in enumerate(memory.events) if action == "alloc")
    return {event: number for number, event in enumerate(made, lost + 1)}


def living(memory: Memory, numbers: dict[int, int]) -> list[tuple[int, list[dict] | None, int]]:
    """(bytes, frames or None, its allocation's number, 0 from before the history) of each block that lived at the peak."""
    pairs = zip(memory.alive().values(), memory.lived().values(), strict=True)
    return [(size, frames, 0 if event is None else numbers[event]) for (size, frames), (_, event) in pairs]


def peaks(snapshot: dict, device: int, events: int, spans: Iterable[tuple[str, int, int]]) -> dict[str, int]:
    """The most bytes that lived within spans of a history, by their names.

    Args:
        events: how many allocations and frees there have been. spans: (name, how many by its begin, by its end); those whose begin the
            history has no longer are left out.
    """
    live = memory(snapshot, device).live
    lost, found = events - (len(live) - 1), Counter()
    for name, first, last in spans:
        if first >= lost:
            found[name] = max(found[name], *live[first - lost : last - lost + 1])
    return dict(found)


def told(stack: Iterable[tuple[FrameType, int]]) -> list[dict]:
    """Python's own frames, each with its line, as a snapshot has them."""
    return [{"filename": f.f_code.co_filename, "line": number, "name": f.f_code.co_name} for f, number in stack]


@cache
def _whose(file):
    """Whose a file is: of the `script`, of a `library`, or, of PyTorch, Python and Inductor, nobody's."""
    if _TORCH.search(file) or _PLUMBING.search(file):
        return ""
    return "library" if library(file) else "script"


def here(frame: FrameType | None) -> tuple[str | None, str | None]:
    """(the innermost line of the script, the innermost of a library within it), from a frame outwards."""
    inside = None
    while frame is not None:
        code = frame.f_code
        if whose := _whose(code.co_filename):
            if whose == "script":
                return f"{code.co_filename}:{frame.f_lineno}", inside
            inside = inside or _of_library(code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back
    return None, inside


def _of_library(file, number, name):
    return f"{re.sub(r'^.*/(?:site|dist)-packages/', '', file)}:{number} {name}"


def line(frames: list[dict] | None) -> str | None:
    """The innermost line of the script itself, as file:line; None where no frame is the script's."""
    return next((f"{f['filename']}:{f['line']}" for f in frames or () if _whose(f["filename"]) == "script"), None)


def inner(frames: list[dict] | None) -> str | None:
    """The innermost line that is neither PyTorch's nor Python's, as file:line function; None where it is the script's own."""
    first = next((f for f in frames or () if _whose(f["filename"])), None)
    if first is None or _whose(first["filename"]) == "script":
        return None
    return _of_library(first["filename"], first["line"], first["name"])


def call(frames: list[dict] | None) -> str | None:
    """The innermost function of PyTorch, by name; None where the innermost frame is neither PyTorch's nor Inductor's code."""
    first = next((f for f in frames or () if not re.search(f"^<|{_OURS}", f["filename"])), None)
    if first and f"/{INDUCTOR}/" in first["filename"]:
        return "compiled code"
    return first["name"] if first and _TORCH.search(first["filename"]) else None


def holders(held: Iterable[tuple], named: Callable[[int], dict | None], rows: int = LINES) -> list[dict]:
    """What lived at an instant, by the line of the script that made it: the `rows` largest, then one row for the rest.

    Args:
        held: as `living` has it. named: returns the `node` of backward that made an allocation, by its number, and the line in `forward`
            that made the node.
    """
    sizes, counts = Counter(), Counter()
    for size, frames, number in held:
        said = {"line": line(frames), "inner": inner(frames)} if frames else named(number) or {}
        where = tuple(map(said.get, WHERE))
        sizes[where] += size
        counts[where] += 1
    found = [dict(zip(WHERE, w, strict=True)) | {"tensors": counts[w], "bytes": size} for w, size in sizes.items()]
    return shortened(sorted(found, key=lambda row: -row["bytes"]), rows)


def shortened(held: Sequence[dict], rows: int = 12) -> list[dict]:
    """The first `rows` rows of what lived, then one row for the rest."""
    rest = held[rows:]
    tensors, size = (sum(row[name] for row in rest) for name in ("tensors", "bytes"))
    other = dict.fromkeys(WHERE) | {"line": REST, "tensors": tensors, "bytes": size}
    return [*held[:rows], *([other] if rest else [])]
