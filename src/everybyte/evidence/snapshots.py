"""Read PyTorch's memory snapshot safely: what lived at the peak, which line asked for it, and how the segments are filled.

Source of its format: PyTorch 2.13, `torch/csrc/cuda/memory_snapshot.cpp` and `torch/cuda/_memory_viz.py`.
"""

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from ..allocator import ACTIONS, GIVES, TAKES, Replayed, Settings, before, replay, settings
from ..common import checks
from ..common.tables import Shown, Table
from ..units import text
from .growing import Growth, Pinned, emptied, grown, pinned, steps
from .naming import Frames, Made, Names, part
from .pickles import Refused, read, refuse

STATES = ("active_allocated", "active_awaiting_free", "active_pending_free", "inactive")


@dataclass(frozen=True)
class Held:
    """Blocks that live at a moment and were requested at one line: `where`, `part` of memory (from the frames), `blocks`, `bytes`."""

    where: str
    part: str
    blocks: int
    bytes: int


@dataclass(frozen=True, eq=False, repr=False)
class Memory(Shown):
    """One GPU's data in a snapshot.

    Attributes:
        device: its number. segments: at the end, as PyTorch has them. events: (action, address, bytes, stream), the oldest first; of
            `oom` the bytes that the driver had free stand for an address.
        frames: of each event, or None. settings: `PYTORCH_ALLOC_CONF`, where it is known.
    """

    device: int
    segments: list[dict]
    events: list[tuple[str, int, int, int]]
    frames: list[Frames | None]
    settings: str = ""

    @property
    def rules(self) -> Settings:
        """Its allocator's settings as they are read; PyTorch's own, where one of them is of another release."""
        try:
            return settings(self.settings)
        except ValueError:
            return settings("")

    @property
    def reserved(self) -> int:
        """Bytes of all segments at the end."""
        return sum(segment["total_size"] for segment in self.segments)

    @property
    def allocated(self) -> int:
        """Bytes of all blocks that are allocated at the end."""
        return sum(segment.get("allocated_size", 0) for segment in self.segments)

    @cached_property
    def requested(self) -> int:
        """Bytes that were requested for these blocks."""
        return sum(size for size, _ in self._standing.values())

    @cached_property
    def _standing(self):
        """{address: (bytes requested, frames)} of what is allocated at the end."""
        found = {}
        for segment in self.segments:
            at = segment["address"]
            for block in segment["blocks"]:
                at = block.get("address", at)
                if block["state"] == "active_allocated":
                    found[at] = block.get("requested_size", block["size"]), block.get("frames") or None
                at += block["size"]
        return found

    @cached_property
    def _start(self):
        """The same for what was allocated before the first event: each event is undone from the end."""
        found = dict(self._standing)
        for action, address, size, _ in reversed(self.events):
            if action == "alloc":
                found.pop(address, None)
            elif action == "free_requested":
                found[address] = size, None
        for address in found:  # what outlives the history tells its frames at the end
            if address in self._standing and found[address][0] == self._standing[address][0]:
                found[address] = self._standing[address]
        return found

    @cached_property
    def live(self) -> list[int]:
        """Live requested bytes: before the first event, and after each event."""
        signs = {"alloc": 1, "free_requested": -1}
        changes = (signs.get(action, 0) * size for action, _, size, _ in self.events)
        return list(accumulate(changes, initial=sum(size for size, _ in self._start.values())))

    @cached_property
    def peak_event(self) -> int:
        """The number of events until the first peak of live bytes."""
        return self.live.index(max(self.live))

    @property
    def peak(self) -> int:
        """The most live bytes."""
        return self.live[self.peak_event]

    def alive(self) -> dict[int, tuple[int, Frames | None]]:
        """{address: (bytes requested, frames)} of what lived at the peak."""
        return {
            address: self._start[address] if number is None else (size, self.frames[number])
            for address, (size, number) in self.lived().items()
        }

    def lived(self, event: int | None = None) -> dict[int, tuple[int, int | None]]:
        """{address: (bytes requested, the event that asked for it or None)} of what lived after a number of events, by default at the peak."""
        found: dict[int, tuple[int, int | None]] = {address: (size, None) for address, (size, _) in self._start.items()}
        self._go_on(found, {}, 0, self.peak_event if event is None else event)
        return found

    def _go_on(self, live, ranges, done, until):
        """Apply the events from one to another to what lives, and to the ranges of memory. Raise ValueError for one that is not there."""
        checks.whole("moment", "event", until, done, len(self.events))
        for number, (action, address, size, _) in enumerate(self.events[done:until], done):
            if action == "alloc":
                live[address] = size, number
            elif action == "free_requested":
                live.pop(address, None)
            elif action in TAKES:
                _add(ranges, address, size, action == "segment_map")
            elif action in GIVES:
                _remove(ranges, address, size)

    @cached_property
    def names(self) -> Names:
        """What each block is: those from before the recording, of backward, and libraries' workspaces are told apart."""
        return Names(self.events, self.frames, self._start)

    def made(self, event: int | None = None) -> dict[int, tuple[int, Made]]:
        """{address: (bytes requested, what it is)} of what lived after a number of events, by default at the peak."""
        return {address: (size, self._made(address, number)) for address, (size, number) in self.lived(event).items()}

    def _made(self, address, number):
        return self.names.first[address] if number is None else self.names.of(number)

    def _part(self, address, number):
        return self._made(address, number).part

    def held(self, event: int | None = None) -> list[Held]:
        """What lived after a number of events, by default at the peak, by the line that requested it; most bytes first."""
        sizes: dict[tuple[str, str], list[int]] = {}
        for size, made in self.made(event).values():
            sizes.setdefault(made[:2], []).append(size)
        rows = [Held(line, name, len(of), sum(of)) for (line, name), of in sizes.items()]
        return sorted(rows, key=lambda row: -row.bytes)

    @cached_property
    def steps(self) -> list[int]:
        """The numbers of the events at which its steps begin; none where no line repeats three times at even distances."""
        return steps(
            self.frames, [n for n in self.names.ours if self.names.of(n).part not in ("parameters", "optimizer")]
        )

    @property
    def died(self) -> int | None:
        """The number of events before its last failure; None where it records none."""
        return next((number for number in range(len(self.events) - 1, -1, -1) if self.events[number][0] == "oom"), None)

    def reserved_at(self, event: int) -> int:
        """Bytes of all segments after a number of events."""
        ranges = self._first_ranges()
        self._go_on({}, ranges, 0, event)
        return sum(size for size, _ in ranges.values())

    @cached_property
    def leaks(self) -> list[Growth]:
        """What each step leaves behind, by the line that asked for it, most bytes first; none where nothing grows."""
        live = {number: size for size, number in self.lived(len(self.events)).values() if number is not None}
        return grown(self.events, self.steps, {number: self.names.of(number) for number in live}, live)

    @property
    def emptied(self) -> int:
        """Bytes that `torch.cuda.empty_cache()` would give back to the driver at the end."""
        return emptied(self.segments, self.rules.large_segment)

    @cached_property
    def pinned(self) -> list[Pinned]:
        """Segments that are partly free at the end, by the lines whose blocks hold them; the most free bytes first."""
        return pinned(self.segments, {address: made for address, (_, made) in self.made(len(self.events)).items()})

    def maps(self, events: Iterable[int]) -> Iterator[list[tuple[int, int, list[tuple[int, int, Made]]]]]:
        """The ranges of memory that the allocator had, by address, after each of some numbers of events, ascending.

        Returns:
            (address, bytes, [(address, bytes requested, what it is) of each block in use]) of each range; neighbors that grew are one.
        """
        ranges, live, done = self._first_ranges(), self.lived(0), 0
        for until in events:
            self._go_on(live, ranges, done, until)
            done, places = until, sorted(ranges)
            found: list[tuple[int, int, list]] = [(at, ranges[at][0], []) for at in places]
            for address, (size, number) in sorted(live.items()):
                place = bisect_right(places, address) - 1
                if place >= 0 and address < places[place] + ranges[places[place]][0]:
                    found[place][2].append((address, size, self._made(address, number)))
            yield found

    def _first_ranges(self):
        """{address: (bytes, whether it grows)} of the memory before the first event: each event is undone from the end."""
        ranges = {s["address"]: (s["total_size"], bool(s.get("is_expandable"))) for s in self.segments}
        for action, address, size, _ in reversed(self.events):
            if action in TAKES:
                _remove(ranges, address, size)
            elif action in GIVES:
                _add(ranges, address, size, action == "segment_unmap")
        return ranges

    part_of = staticmethod(part)

    def parts(self, event: int | None = None) -> dict[str, int]:
        """Bytes of each part, from the frames, after a number of events, by default at the peak."""
        found: dict[str, int] = {}
        for row in self.held(event):
            found[row.part] = found.get(row.part, 0) + row.bytes
        return found

    def replayed(self, total: int | None = None) -> Replayed:
        """The history replayed by `everybyte.allocator`.

        Raises:
            ValueError: for a history of growing segments that lacks its beginning.
        """
        return replay(self.events, self.settings, total, before(self.segments, self.events))

    def crests(self, first: int = 0, last: int | None = None, columns: int = 400) -> list[tuple[int, dict[str, int]]]:
        """Each of some equal stretches of the history at its highest: (events until then, bytes of each part).

        Args:
            first, last: the range, in events; by default all. columns: stretches, or one for each event where there are fewer.
        """
        checks.whole("crests", "first", first, 0, len(self.events))
        last = len(self.events) if last is None else last
        checks.whole("crests", "last", last, first, len(self.events))
        checks.whole("crests", "columns", columns, 1, 10_000)
        many = min(columns, last - first + 1)
        edges = [first + (last - first + 1) * column // many for column in range(many + 1)]
        tops = [max(range(a, b), key=self.live.__getitem__) for a, b in pairwise(edges)]
        return list(zip(tops, self.sums(tops), strict=True))

    def sums(self, events: Sequence[int]) -> Iterator[dict[str, int]]:
        """Live bytes of each part, after each of some numbers of events, ascending."""
        done = events[0]
        live = {address: (size, self._part(address, number)) for address, (size, number) in self.lived(done).items()}
        now = dict.fromkeys(sorted({name for _, name in live.values()}), 0)
        for size, name in live.values():
            now[name] += size
        for until in events:
            checks.whole("moment", "event", until, done, len(self.events))
            for number, (action, address, size, _) in enumerate(self.events[done:until], done):
                if action == "alloc":
                    name = self._part(address, number)
                    live[address] = size, name
                    now[name] = now.get(name, 0) + size
                elif action == "free_requested" and address in live:
                    freed, name = live.pop(address)
                    now[name] -= freed
            done = until
            yield {name: size for name, size in now.items() if size}

    def table(self, rows: int = 12) -> Table:
        """What lived at the peak, by the line that requested it."""
        found = self.held()
        first, rest = found[:rows], found[rows:]
        if rest:
            size = sum(row.bytes for row in rest)
            first.append(Held("everything else", "", sum(row.blocks for row in rest), size))
        first.append(Held("total", "", sum(row.blocks for row in found), self.peak))
        cells = [[row.where, row.part, row.blocks, row.bytes, text(row.bytes)] for row in first]
        said = f"GPU {self.device}: {self.peak:,} B lived after event {self.peak_event:,} of {len(self.events):,}; at the end "
        said += f"{text(self.requested)} requested, {text(self.allocated)} allocated, {text(self.reserved)} reserved"
        return Table(["asked for in", "part, by its frames", "blocks", "bytes", "size"], cells, said)

    def tables(self) -> list[Table]:
        """What lived at the peak; what grows from step to step, and what keeps segments, where anything does."""
        found = [self.table()]
        if self.leaks:
            rows = []
            for g in self.leaks:
                seen = f"{g.steps} steps" + ("" if g.equal else ", not alike")
                rows.append([g.where, g.part, g.blocks, g.bytes, text(g.bytes), seen])
            size = sum(g.bytes for g in self.leaks)
            said = f"GPU {self.device}: each of {len(self.steps)} steps leaves {text(size)} behind"
            columns = ["asked for in", "part", "blocks a step", "bytes a step", "size", "seen in"]
            found.append(Table(columns, rows, said))
        if self.pinned:
            rows = [["; ".join(p.where[:3]), p.segments, p.bytes, p.free, text(p.free)] for p in self.pinned]
            said = f"GPU {self.device}: empty_cache() gives back {text(self.emptied)}; what blocks in use keep from going back:"
            found.append(Table(["held by blocks of", "segments", "bytes in use", "free", "size"], rows[:12], said))
        return found

    def figure(self):
        """Live bytes over the events, and the segments at the end: matplotlib's figure, with its text as `alt`."""
        from .. import draw

        return draw.memory(self)

    def as_dict(self) -> dict:
        """As JSON holds it."""
        return {
            "device": self.device, "events": len(self.events), "peak": self.peak, "peak_event": self.peak_event,
            "requested": self.requested, "allocated": self.allocated, "reserved": self.reserved, "parts": self.parts(),
            "held": [vars(row) for row in self.held()], "steps": self.steps, "leaks": [vars(row) for row in self.leaks],
            "emptied": self.emptied, "pinned": [vars(row) for row in self.pinned],
        }  # fmt: skip

    def __repr__(self):
        return f"Memory(GPU {self.device}: peak {self.peak:,} B, {len(self.events):,} events, {self.reserved:,} B reserved)"


@dataclass(frozen=True, eq=False, repr=False)
class Snapshot:
    """A file that PyTorch's `torch.cuda.memory._dump_snapshot` wrote.

    Attributes:
        name: of the file. devices: {number: `Memory`} of the GPUs with any data.
    """

    name: str
    devices: dict[int, Memory] = field(default_factory=dict)

    def __getattr__(self, name) -> Any:
        """An attribute of the GPU that had the most."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.main, name)

    @property
    def main(self) -> Memory:
        """The GPU on which the most bytes lived."""
        return max(self.devices.values(), key=lambda memory: memory.peak)

    def as_dict(self) -> dict:
        """As JSON holds it."""
        return {"snapshot": self.name, "devices": [memory.as_dict() for memory in self.devices.values()]}

    def __repr__(self):
        return "\n\n".join([self.name, *(repr(table) for memory in self.devices.values() for table in memory.tables())])

    def _repr_html_(self):
        return "".join(table._repr_html_() for memory in self.devices.values() for table in memory.tables())


def snapshot(source: str | os.PathLike | bytes, progress: bool | None = None) -> Snapshot:
    """Read a memory snapshot. Nothing in it is executed.

    Args:
        source: a file's path, or its bytes, as a notebook's upload gives them.
        progress: whether a bar shows how far it is; by default after two seconds, in a terminal or a notebook.

    Raises:
        Refused: a ValueError, where the file is no pickle, no snapshot, hostile, cut short or larger than 500 MB.
    """
    if not isinstance(source, str | os.PathLike | bytes):
        raise Refused(f"snapshot.source: a {type(source).__name__}; allowed: a file's path, or its bytes")
    named = "bytes" if isinstance(source, bytes) else checks.printable(Path(source).name, checks.SHOWN)
    said, size = read(source, progress)
    if isinstance(said, list):  # PyTorch before 2.0
        said = {"segments": said, "device_traces": []}
    if not isinstance(said, dict) or not isinstance(said.get("segments"), list):
        names = sorted(key for key in said if isinstance(key, str))[:4] if isinstance(said, dict) else ()
        keys = f"a dict of {checks.shown(names)}" if isinstance(said, dict) else f"a {type(said).__name__}"
        refuse(f"{named} holds {keys}", "a memory snapshot, with segments and device_traces")
    traces = said.get("device_traces", [])
    if not isinstance(traces, list):
        refuse(f"device_traces is a {type(traces).__name__}", "a list")
    _check_number(said["segments"], traces, size)
    known: set[int] = set()  # frames are shared, and looked at once
    segments: dict[int, list[dict]] = {}
    for segment in said["segments"]:
        checked = _segment(segment, known)
        segments.setdefault(checked["device"], []).append(checked)
    settings = said.get("allocator_settings")
    conf = settings.get("PYTORCH_CUDA_ALLOC_CONF", "") if isinstance(settings, dict) else ""
    numbers = sorted({*segments, *(i for i, trace in enumerate(traces) if trace)})
    devices = {n: _memory(n, segments.get(n, []), traces[n] if n < len(traces) else [], conf, known) for n in numbers}
    if not devices:
        raise Refused(
            f"snapshot: {named} has no segment and no event; record first: torch.cuda.memory._record_memory_history()"
        )
    return Snapshot(named, devices)


#: Defaults of a segment's fields.
_USUAL = {"device": 0, "stream": 0, "segment_type": "large"}
#: A frame's fields: type, and the most characters or the largest number.
_FRAME = {"filename": (str, 2**12), "name": (str, 2**16), "line": (int, 2**31)}
#: Bytes that a segment, a block or an event takes in a file at least; and whole numbers, in a machine's word, are below this one.
LEAST, WORD = 16, 2**64


def _check_number(segments, traces, size):
    """Raise where there are more items than a file of that size can have: a pickle may refer to one list many times."""
    lists = [s.get("blocks") for s in segments if isinstance(s, dict)] + traces
    number = len(segments) + sum(len(some) for some in lists if isinstance(some, list))
    if number > size // LEAST + 1000:
        refuse(f"{number:,} segments, blocks and events in {size:,} bytes, which name the same ones again", "each once")


def _segment(said, known):
    _check("segment", said, {"address": int, "total_size": int, "blocks": list})
    for name, usual in _USUAL.items():
        if not isinstance(said.get(name, usual), type(usual)):
            refuse(f"a segment whose {name} is a {type(said[name]).__name__}")
    if not 0 <= said.get("device", 0) < WORD or not all(_number(said.get(n, 0)) for n in ("stream", "allocated_size")):
        refuse("a segment on no device, on no stream, or without its bytes")
    for block in said["blocks"]:
        _check("block", block, {"size": int, "state": str})
        _check_frames(block, known)
        if not _number(block.get("requested_size", 0)) or not _number(block.get("address", 0)):
            refuse("a block whose requested_size or address is no whole number")
        if block["state"] not in STATES:
            refuse(f"a block whose state is {checks.shown(block['state'])}", ", ".join(STATES))
    return _USUAL | said


def _check_frames(said, known):
    """Raise unless the frames of a block or an event are missing, or a list of dicts of text and numbers."""
    frames = said.get("frames") or []
    if id(frames) in known:
        return
    if not isinstance(frames, list) or not all(isinstance(frame, dict) for frame in frames):
        refuse("frames that are no list of dicts")
    for frame in frames:
        if frame.get("line") == 2**64 - 1:  # a frame without a line, as PyTorch says it
            frame["line"] = 0
        for name, (kind, most) in _FRAME.items():
            found = frame.get(name, kind())
            if not isinstance(found, kind) or (abs(found) if kind is int else len(found)) > most:
                refuse(f"a frame whose {name} is no {kind.__name__}, or above {most:,}")
    known.add(id(frames))


def _number(value):
    return isinstance(value, int) and -WORD < value < WORD


def _check(what, said, wanted):
    for name, kind in wanted.items():
        found = said.get(name) if isinstance(said, dict) else None
        if not isinstance(found, kind) or isinstance(found, bool) or kind is int and not _number(found):
            refuse(f"a {what} without a {name} that is a {kind.__name__}")


def _memory(device, segments, trace, conf, known):
    if not isinstance(trace, list):
        refuse(f"the trace of GPU {device} is a {type(trace).__name__}", "a list")
    events, frames = [], []
    for event in trace:
        action = event.get("action") if isinstance(event, dict) else None
        if not isinstance(action, str):
            refuse("an event without an action")
        if action not in ACTIONS:
            continue
        size, stream = event.get("size"), event.get("stream", 0)
        address = event.get("device_free" if action == "oom" else "addr", 0)
        if not _number(size) or not _number(address):
            refuse(f"a {action} without bytes or address")
        if not _number(stream):
            refuse(f"a {action} on a stream without a number")
        _check_frames(event, known)
        events.append((action, address, size, stream))
        frames.append(event.get("frames") or None)
    return Memory(device, segments, events, frames, conf if isinstance(conf, str) else "")


def _add(ranges, address, size, grows):
    """Add a mapped range; join it with growing neighbors."""
    end = address + size
    if grows and ranges.get(end, (0, False))[1]:
        size += ranges.pop(end)[0]
    before = next((at for at, (n, growing) in ranges.items() if growing and at + n == address), None) if grows else None
    if before is not None:
        address, size = before, size + ranges.pop(before)[0]
    ranges[address] = size, grows


def _remove(ranges, address, size):
    """Remove a mapped range; the rest of a growing range, before and after it, stays."""
    for at, (n, grows) in list(ranges.items()):
        if at <= address and address + size <= at + n:
            del ranges[at]
            if address > at:
                ranges[at] = address - at, grows
            if at + n > address + size:
                ranges[address + size] = at + n - address - size, grows
            return
