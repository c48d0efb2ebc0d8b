"""An allocator's history: the most bytes that lived at once, when that was, and what lived then.

A PyTorch snapshot holds for each device the allocations and frees in order, with their Python frames, and the blocks that are
live when it is taken. Source: PyTorch, `c10/cuda/CUDACachingAllocator.cpp` (`record_trace`).
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import FrameType

from ..evidence import Memory

#: So many lines of what lived at a peak are reported; in the place of a line, what says that a row is the others'.
LINES, REST = 400, "everything else"
#: The folder, in a rehearsal's temporary one, of the code that Inductor writes.
INDUCTOR = "inductor-of-rehearsal"
#: Files that are not the script's: Python's own, installed packages, what Inductor wrote, code without a file.
_NOT_A_SCRIPT = re.compile(
    rf"/site-packages/|/dist-packages/|/lib(64)?/python3[.\d]*/|^<|/everybyte/rehearsal/|/{INDUCTOR}/"
)
#: Files of PyTorch. Of their functions only the innermost one's name is reported.
_TORCH = re.compile(r"/site-packages/torch/|/dist-packages/torch/")


@dataclass(frozen=True)
class Instant:
    """The instant of a history at which the most bytes lived.

    Attributes:
        live: bytes as tensors asked for them. allocation: how many allocations the history had made by then.
        frames: Python's, of the last one, the innermost first. held: (bytes, frames or None) of each live block.
    """

    live: int
    allocation: int
    frames: list[dict]
    held: list[tuple[int, list[dict] | None]]


def _memory(snapshot, device):
    trace = [e for e in snapshot["device_traces"][device] if e["action"] in ("alloc", "free_requested")]
    segments = [segment for segment in snapshot["segments"] if segment["device"] == device]
    events = [(e["action"], e["addr"], e["size"], 0) for e in trace]
    return Memory(device, segments, events, [e.get("frames") or None for e in trace])


def most(snapshot: dict, device: int) -> Instant:
    """The instant at which the most bytes lived on a device. snapshot: from `torch.cuda.memory._snapshot()`."""
    memory = _memory(snapshot, device)
    events = memory.events
    last = memory.peak_event  # the number of events until the peak
    made = sum(action == "alloc" for action, *_ in events[:last])
    return Instant(memory.peak, made, memory.frames[last - 1] or [] if last else [], list(memory.alive().values()))


def peaks(snapshot: dict, device: int, events: int, spans: Iterable[tuple[str, int, int]]) -> dict[str, int]:
    """The most bytes that lived within spans of a history, by their names.

    Args:
        events: how many allocations and frees there have been. spans: (name, how many by its begin, by its end); those whose begin the
            history has no longer are left out.
    """
    live = _memory(snapshot, device).live
    lost, found = events - (len(live) - 1), Counter()
    for name, first, last in spans:
        if first >= lost:
            found[name] = max(found[name], *live[first - lost : last - lost + 1])
    return dict(found)


def told(stack: Iterable[tuple[FrameType, int]]) -> list[dict]:
    """Python's own frames, each with its line, as a snapshot has them."""
    return [{"filename": f.f_code.co_filename, "line": number, "name": f.f_code.co_name} for f, number in stack]


def line(frames: list[dict] | None) -> str | None:
    """The innermost line of the script itself, as file:line; None where no frame is the script's."""
    return next((f"{f['filename']}:{f['line']}" for f in frames or () if not _NOT_A_SCRIPT.search(f["filename"])), None)


def inner(frames: list[dict] | None) -> str | None:
    """The innermost line that is neither PyTorch's nor Python's, as file:line function; None where it is the script's own."""
    for frame in frames or ():
        if _TORCH.search(frame["filename"]) or re.search(
            rf"/lib(64)?/python3[.\d]*/(?!site-packages)|^<|/everybyte/rehearsal/|/{INDUCTOR}/", frame["filename"]
        ):
            continue
        if not _NOT_A_SCRIPT.search(frame["filename"]):
            return None
        short = re.sub(r"^.*/(?:site|dist)-packages/", "", frame["filename"])
        return f"{short}:{frame['line']} {frame['name']}"
    return None


def call(frames: list[dict] | None) -> str | None:
    """The innermost function of PyTorch, by name; None where the innermost frame is neither PyTorch's nor Inductor's code."""
    first = next((f for f in frames or () if not re.search("^<|/everybyte/rehearsal/", f["filename"])), None)
    if first and f"/{INDUCTOR}/" in first["filename"]:
        return "compiled code"
    return first["name"] if first and _TORCH.search(first["filename"]) else None


def holders(instant: Instant, rows: int = LINES) -> list[dict]:
    """What lived at an instant, by the line of the script that made it: the `rows` largest, then one row for the rest."""
    sizes, counts = Counter(), Counter()
    for size, frames in instant.held:
        where = (line(frames), inner(frames)) if frames else (None, None)
        sizes[where] += size
        counts[where] += 1
    found = [{"line": w[0], "inner": w[1], "tensors": counts[w], "bytes": size} for w, size in sizes.most_common()]
    return shortened(found, rows)


def shortened(held: Sequence[dict], rows: int = 12) -> list[dict]:
    """The first `rows` rows of what lived, then one row for the rest."""
    rest = held[rows:]
    tensors, size = (sum(row[name] for row in rest) for name in ("tensors", "bytes"))
    return [*held[:rows], *([{"line": REST, "inner": None, "tensors": tensors, "bytes": size}] if rest else [])]
