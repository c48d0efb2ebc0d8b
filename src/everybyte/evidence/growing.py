"""Find in a snapshot what grows from step to step, and which tensors keep segments from going back to the driver."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from .naming import Made

#: How far an interval between two steps may be from the median one, as a share of it; and how many of them must be as near.
_NEAR, _MOST = 0.25, 0.6
#: Bytes of a page of a growing segment for small requests; what goes back to the driver is whole pages. Source: `CUDACachingAllocator.cpp`.
_SMALL_PAGE = 2 * 2**20


@dataclass(frozen=True)
class Growth:
    """What one line asks for in each step and nothing frees: `where`; its `part` of memory; `blocks` and `bytes` of a step, the last one
    where steps differ; in how many `steps` it was seen; whether the portions are `equal`."""

    where: str
    part: str
    blocks: int
    bytes: int
    steps: int
    equal: bool


@dataclass(frozen=True)
class Pinned:
    """Segments that are partly free and cannot go back, by the lines whose blocks hold them: `where`, the lines, most bytes first;
    `segments`; `blocks` and `bytes` that hold them; `free`: bytes that they keep."""

    where: tuple[str, ...]
    segments: int
    blocks: int
    bytes: int
    free: int


def steps(frames: Sequence, ours: Sequence[int]) -> list[int]:
    """The events at which the steps of a history begin; none where nothing repeats three times.

    A line that asks for memory once a step does so at even distances. Of all such lines the one that spans most of the history is taken,
    and of several the first.

    Args:
        frames: of each event. ours: the events that the script's own thread made, without those of parameters and states: layers are made
            one by one too.
    """
    places: dict[tuple, list[int]] = {}
    keys: dict[int, tuple] = {}
    for number in ours:
        found = frames[number]
        if id(found) not in keys:
            keys[id(found)] = tuple((f.get("filename"), f.get("line"), f.get("name")) for f in found)
        places.setdefault(keys[id(found)], []).append(number)
    even = [found for found in places.values() if _even(found)]
    longest = max((found[-1] - found[0] for found in even), default=0)
    spanning = [found for found in even if found[-1] - found[0] >= 0.9 * longest]
    return min(spanning, key=lambda found: (len(found), found[0]), default=[])


def _between(places):
    return [later - earlier for earlier, later in zip(places, places[1:], strict=False)]


def _even(places):
    """Whether something repeats at even distances, the first one aside: in the first step an optimizer makes its states."""
    if len(places) < 3:
        return False
    apart = _between(places)[1:] if len(places) > 3 else _between(places)
    usual = median(apart)
    return sum(abs(one - usual) <= _NEAR * usual + 4 for one in apart) >= _MOST * len(apart)


def grown(events: Sequence, begins: Sequence[int], standing: dict[int, Made], sizes: dict[int, int]) -> list[Growth]:
    """What each step leaves behind, line by line, most bytes first.

    What a step replaces (gradients, the last loss) is gone a step later; what the first step makes and keeps (an optimizer's states) is
    there once. So of each step but the first and the last it counts what still lives at the end of the history.

    Args:
        begins: events at which steps begin. standing: the name of each event's block that lives at the end. sizes: its bytes.
    """
    if len(begins) < 3:
        return []
    usual = median(_between(begins)[1:] or _between(begins))
    whole = len(events) - begins[-1] >= 0.9 * usual  # else it died in the middle of a step
    counted = range(len(begins) - 1 if whole else len(begins) - 2)
    portions: dict[tuple[str, str], dict[int, list[int]]] = {}
    for number, made in standing.items():
        step = bisect_right(begins, number) - 1
        if step in counted and made.part != "workspace":
            portions.setdefault((made.where, made.part), {}).setdefault(step, []).append(sizes[number])
    rows = []
    for (where, part), of in portions.items():
        found = [sum(of[step]) for step in counted if step in of and (step or len(counted) == 2)]
        equal = len(set(found)) == 1
        considered = len(counted) - (len(counted) > 2)
        if len(found) >= 2 and (equal and len(found) >= min(3, considered) or len(found) == considered > 2):
            last = of[max(of)]
            rows.append(Growth(where, part, len(last), sum(last), len(found), equal))
    return sorted(rows, key=lambda row: -row.bytes)


def _free(segment):
    return sum(block["size"] for block in segment["blocks"] if block["state"] == "inactive")


def emptied(segments: Sequence[dict], page: int) -> int:
    """Bytes that `torch.cuda.empty_cache()` gives back to the driver: segments without a block in use; of growing ones, whole free pages.

    Args:
        page: bytes of a page of a growing segment for large requests.
    """
    back = 0
    for segment in segments:
        if not segment.get("is_expandable"):
            back += segment["total_size"] if _free(segment) == segment["total_size"] else 0
            continue
        each, at = _SMALL_PAGE if segment["segment_type"] == "small" else page, 0
        for block in segment["blocks"]:
            at = block.get("address", segment["address"] + at) - segment["address"]
            if block["state"] == "inactive":
                back += max(0, (at + block["size"]) // each * each - -(-at // each) * each)
            at += block["size"]
    return back


def pinned(segments: Sequence[dict], names: dict[int, Made]) -> list[Pinned]:
    """Segments that are partly free, by the lines that hold them, the most free bytes first. names: of the blocks in use, by address."""
    found: dict[tuple[str, ...], list[int]] = {}
    for segment in segments:
        free, at, lines, blocks = _free(segment), segment["address"], {}, 0
        for block in segment["blocks"]:
            at = block.get("address", at)
            if block["state"] != "inactive":
                line = names[at].where if at in names else "a block that waits for another stream"
                lines[line] = lines.get(line, 0) + block["size"]
                blocks += 1
            at += block["size"]
        if free and lines:
            row = found.setdefault(tuple(sorted(lines, key=lambda line: -lines[line])), [0, 0, 0, 0])
            for place, more in enumerate((1, blocks, sum(lines.values()), free)):
                row[place] += more
    return sorted((Pinned(where, *row) for where, row in found.items()), key=lambda row: -row.free)
