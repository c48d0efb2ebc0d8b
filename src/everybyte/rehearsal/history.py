"""What an allocator's history says: the most bytes that lived at once, where that was, and what lived then.

PyTorch's snapshot holds, for each device, what was asked for and freed, in order, each with the Python frames that did so,
and the blocks that live when it is taken. Source: PyTorch, `c10/cuda/CUDACachingAllocator.cpp` (`record_trace`).
"""

import re
from collections import Counter
from dataclasses import dataclass

#: Files that are nobody's script: Python's own, packages, and what has no file.
_NOT_A_SCRIPT = re.compile(r"/site-packages/|/dist-packages/|/lib(64)?/python3[.\d]*/|^<|/everybyte/rehearsal/")
#: PyTorch itself, of whose functions only the name of the innermost is told.
_TORCH = re.compile(r"/site-packages/torch/|/dist-packages/torch/")


@dataclass(frozen=True)
class Instant:
    """When the most bytes lived.

    Attributes:
        live: as tensors asked for them. allocation: how many of the history's allocations had been made with it.
        frames: Python's, of the allocation, the innermost first. held: (bytes, frames or None) of each block that lived.
    """

    live: int
    allocation: int
    frames: list[dict]
    held: list[tuple[int, list[dict] | None]]


def most(snapshot: dict, device: int) -> Instant:
    """The instant at which the most bytes lived on a device, of a snapshot that `torch.cuda.memory._snapshot()` gives."""
    events = [e for e in snapshot["device_traces"][device] if e["action"] in ("alloc", "free_requested")]
    alive = {
        block["address"]: (block["requested_size"], block.get("frames") or None)
        for segment in snapshot["segments"]
        if segment["device"] == device
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
    for event in reversed(events):  # back to what lived when the history begins
        if event["action"] == "alloc":
            alive.pop(event["addr"], None)
        else:
            alive[event["addr"]] = (event["size"], None)
    place, live = _highest(events, sum(size for size, _ in alive.values()))
    for event in events[: place + 1]:
        if event["action"] == "alloc":
            alive[event["addr"]] = (event["size"], event.get("frames") or None)
        else:
            alive.pop(event["addr"], None)
    made = sum(event["action"] == "alloc" for event in events[: place + 1])
    frames = events[place].get("frames") or [] if place >= 0 else []
    return Instant(live, made, frames, list(alive.values()))


def _highest(events, live):
    """(Number of the event after which the most bytes live, these bytes); -1 where that is before them all."""
    place, highest = -1, live
    for number, event in enumerate(events):
        live += event["size"] if event["action"] == "alloc" else -event["size"]
        if live > highest:
            place, highest = number, live
    return place, highest


def line(frames: list[dict] | None) -> str | None:
    """The innermost line of the script itself, as file:line; None where no frame is the script's."""
    return next((f"{f['filename']}:{f['line']}" for f in frames or () if not _NOT_A_SCRIPT.search(f["filename"])), None)


def inner(frames: list[dict] | None) -> str | None:
    """The innermost line outside of PyTorch and Python, where that is a library's: file:line and function."""
    for frame in frames or ():
        if _TORCH.search(frame["filename"]) or re.search(
            r"/lib(64)?/python3[.\d]*/(?!site-packages)|^<", frame["filename"]
        ):
            continue
        if not _NOT_A_SCRIPT.search(frame["filename"]) or "/everybyte/rehearsal/" in frame["filename"]:
            return None
        short = re.sub(r"^.*/(?:site|dist)-packages/", "", frame["filename"])
        return f"{short}:{frame['line']} {frame['name']}"
    return None


def call(frames: list[dict] | None) -> str | None:
    """The function of PyTorch's that asked, the innermost; None where the script itself did."""
    first = next((f for f in frames or () if not f["filename"].startswith("<")), None)
    return first["name"] if first and _TORCH.search(first["filename"]) else None


def holders(instant: Instant, rows: int = 12) -> list[dict]:
    """What lived at an instant, by the line of the script that made it: most bytes first, the rest together."""
    sizes, counts = Counter(), Counter()
    for size, frames in instant.held:
        where = (line(frames), inner(frames)) if frames else (None, None)
        sizes[where] += size
        counts[where] += 1
    told = [{"line": w[0], "inner": w[1], "tensors": counts[w], "bytes": size} for w, size in sizes.most_common(rows)]
    rest = instant.live - sum(row["bytes"] for row in told)
    left = len(instant.held) - sum(row["tensors"] for row in told)
    return told + ([{"line": "everything else", "inner": None, "tensors": left, "bytes": rest}] if left else [])
