"""Explorers of the allocator's segments over time: of your own requests, a snapshot, a simulated training step."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .. import draw, units
from ..allocator import Allocator, OutOfMemory, settings
from ..common import checks
from ..common.tables import Table
from .beside import said as words_of
from .beside import table
from .controls import Slider, listed
from .explorer import Explorer, told
from .pictures import Kind, before

#: The most segments that are drawn: the largest ones.
ROWS = 24
#: The most lines of a text, and the number of moments of a history.
LINES, MOMENTS = 200, 40
#: Requests that fragment memory, as in chapter 41.
STORY = """
step = 60 MiB
free step
state = 2 MiB
step = 60 MiB
"""
#: (bytes, requested bytes, part of the palette, name); the part is "" where the block is free.
Block = tuple[int, int, str, str]


@dataclass(frozen=True)
class Moment:
    """The segments at one moment. The page and the file have the same fields.

    Attributes:
        label: what just happened. counts: requested, allocated and reserved bytes. parts: part -> requested bytes.
        segments: the blocks of each segment that is drawn, in order of address or of creation.
        count: the number of segments. hidden: (number of those not drawn, their bytes).
    """

    label: str
    counts: tuple[int, int, int]
    parts: dict[str, int]
    segments: list[list[Block]]
    count: int
    hidden: tuple[int, int] = (0, 0)

    def spec(self):
        """The moment as JSON."""
        return vars(self)


def moment(label: str, rows: Iterable[list[Block]], counts: tuple[int, int, int], merge: bool = False) -> Moment:
    """The moment with these segments. merge: whether neighbors of one part become one block."""
    every = [_merged(row) if merge else row for row in rows]
    parts: dict[str, int] = {}
    for _, asked, name, _ in (block for row in every for block in row if block[2]):
        parts[name] = parts.get(name, 0) + asked
    sizes = [sum(size for size, *_ in row) for row in every]
    shown = sorted(sorted(range(len(every)), key=lambda i: -sizes[i])[:ROWS])
    hidden = len(every) - len(shown), sum(sizes) - sum(sizes[i] for i in shown)
    return Moment(label, counts, parts, [every[i] for i in shown], len(every), hidden)


def _merged(row):
    found: list[Block] = []
    for size, asked, name, said in row:
        if found and found[-1][2] == name and (not name or found[-1][0] == found[-1][1]):
            found[-1] = found[-1][0] + size, found[-1][1] + asked, name, said
        else:
            found.append((size, asked, name, said))
    return found


def standing(label: str, allocator: Allocator, names: Mapping[int, str], merge: bool = False) -> Moment:
    """An allocator's segments now. names: address of a block -> its name."""
    rows = []
    for block in allocator.segments.values():
        row = []
        while block is not None:
            if block.mapped:
                used = block.requested, "requested", names.get(block.address, "")
                row.append((block.size, *(used if block.state != "free" else (0, "", ""))))
            block = block.after
        if row:
            rows.append(row)
    return moment(label, rows, (allocator.requested, allocator.allocated, allocator.reserved), merge)


@dataclass(frozen=True)
class Map(Kind):
    """Segments at a moment, each a bar of blocks.

    Attributes:
        moments: for each setting the moments after each event; the values `setting` and `moment` choose one.
        parts: (part of the palette, label), in the order of the sentence.
    """

    moments: Sequence[Sequence[Moment]]
    parts: Sequence[tuple[str, str]] = field(default=(("requested", "tensors"),))

    kind = "map"

    def compute(self, values) -> Moment:
        """The moment that the values choose; where the setting's history ended before it, the last one."""
        told = self.moments[values.get("setting", 0)]
        return told[min(values["moment"], len(told) - 1)]

    def _rows(self, now):
        """(what, bytes) of each part in use, then of rounding and unsplit rests, of what is kept free, and of all segments."""
        requested, allocated, reserved = now.counts
        used = [(label, now.parts[name]) for name, label in self.parts if now.parts.get(name)]
        free = ("kept free", reserved - allocated)
        return [*used, ("rounded up or not split", allocated - requested), free, ("reserved", reserved)]

    def describe(self, subject, values):
        now = self.compute(values)
        *used, rounded, free, reserved = [(label, units.text(size)) for label, size in self._rows(now)]
        inside = ", ".join(map(" ".join, used)) or "nothing"
        return (
            f"{before(subject)}{now.label}: {inside} in use; above it {rounded[1]} {rounded[0]} and "
            f"{free[1]} {free[0]}; {reserved[1]} {reserved[0]} in {now.count} segments."
        )

    def figure(self, title, subject, values, variants):
        now = self.compute(values)
        rows = [[(size, asked, name) for size, asked, name, _ in row] for row in now.segments]
        largest = max((sum(size for size, *_ in row) for row in rows), default=0)
        fig = draw.segments(rows, f"{title}, {now.label}", "GiB" if largest >= 2**30 else "MiB")
        fig.alt += f" {self.describe(subject, values)}"
        return fig

    def table(self, subject, values):
        now = self.compute(values)
        rows = [(label, size, units.text(size)) for label, size in self._rows(now)]
        return Table(("what", "bytes", "that is"), rows, f"{subject}: {now.label}")


# -- a reader's own requests

_ASK = re.compile(r"(?P<name>\w+)\s*=\s*(?P<size>.+)")
_FREE = re.compile(r"(?:free|del)\s+(?P<name>\w+)")


def requests(text: str) -> list[tuple[int, str, str, int]]:
    """(line, what, name, bytes) of each line of a text: `name = 60 MiB`, `free name` or `empty_cache`; # begins a comment.

    Raises:
        ValueError: naming the line, for anything else, a name that is not in use or already is, or too many lines.
    """
    checks.kind("allocations", "text", text, str)
    found, live = [], set()
    for number, line in enumerate(text.splitlines(), 1):
        said = line.partition("#")[0].strip()
        if not said:
            continue
        try:
            if len(found) == LINES:
                raise ValueError(f"the {LINES + 1}th request; allowed: {LINES} or fewer")
            what, name, size = _request(said, live)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"allocations.text: line {number}, {said[:60]!r}: {error}") from None
        live ^= {name} - {""}  # what is asked for comes in, what is freed goes
        found.append((number, what, name, size))
    if not found:
        raise ValueError("allocations.text: no request; allowed: lines such as name = 60 MiB, free name, empty_cache")
    return found


def _request(said, live):
    """(what, name, bytes) of one line. live: the names in use."""
    if said == "empty_cache":
        return said, "", 0
    if match := _FREE.fullmatch(said):
        if match["name"] not in live:
            names = ", ".join(sorted(live)) or "what was asked for before"
            raise ValueError(f"nothing of that name is in use; allowed: {names}")
        return "free", match["name"], 0
    if match := _ASK.fullmatch(said):
        if match["name"] in live:
            raise ValueError(f"the name is in use; allowed: free {match['name']} first, or another name")
        size = round(units.parse(match["size"]))
        if not 1 <= size <= 2**40:
            raise ValueError(f"{size:,} bytes; allowed: 1 B to 1 TiB")
        return "ask", match["name"], size
    raise ValueError("no request; allowed: name = 60 MiB, free name, empty_cache")


def allocations(
    text: str = STORY, memory: str | int | None = "100 MiB", configurations: Mapping[str, str] | None = None
) -> Explorer:
    """Your own requests, served one by one by PyTorch's rules: a picture of the segments, under several settings.

    Args:
        text: one request per line: `name = 60 MiB`, `free name`, `empty_cache`; # begins a comment.
        memory: of the GPU for this process, as text or in bytes; None for no limit.
        configurations: label -> `PYTORCH_ALLOC_CONF`; by default the three of chapter 41.

    Raises:
        ValueError: naming the line that is no request, or an unknown setting.
    """
    asked = requests(text)
    limit = round(units.parse(memory)) if isinstance(memory, str) else memory
    if limit is not None:
        checks.whole("allocations", "memory", limit, 1, 2**50)
    chosen = dict(words_of("allocations")["settings"] if configurations is None else configurations)
    moments = [_decided(asked, configuration, limit) for configuration in chosen.values()]
    controls = [
        listed("setting", "setting", list(chosen)),
        Slider("moment", "after request", 0, len(asked), len(asked)),
    ]
    usual = (text, memory, configurations) == (STORY, "100 MiB", None)  # no call without arguments opens another
    return told("allocations", controls, Map(moments), name="allocations" if usual else "")


def _decided(asked, configuration, memory):
    allocator, addresses = Allocator(settings(configuration), memory), {}
    at = [moment("before the first request", [], (0, 0, 0))]
    for number, what, name, size in asked:
        done = f"{name} = {units.text(size)}" if what == "ask" else f"{what} {name}".rstrip()
        label, dead = f"line {number}, {done}", False
        try:
            if what == "ask":
                addresses[name] = allocator.malloc(size)
            elif what == "free":
                allocator.free(addresses.pop(name))
            else:
                allocator.empty_cache()
        except OutOfMemory:
            label, dead = f"{label}: out of memory", True
        at.append(standing(label, allocator, {address: name for name, address in addresses.items()}))
        if dead:
            break
    return at


# -- a snapshot

#: (part, label) of the parts that frames indicate, in the order of the sentence.
PARTS: list[tuple[str, str]] = list(map(tuple, words_of("memory_map")["parts"]))


def memory_map(memory, parts: Sequence[tuple[str, str]] = ()) -> Explorer:
    """A snapshot's segments over its history; each block is colored by the part of memory that its frames indicate.

    The beginning, the peak and the end are among its moments. A history has the bytes that were requested, not a block's size. So bytes up to the next block count as kept free, except for
    rounding to 512 bytes.

    Args:
        memory: one GPU's side of a snapshot; or a snapshot, of which it takes the GPU with the most bytes.
        parts: (part, label) of a memory whose blocks have other parts than frames indicate, in the order of the sentence.
    """
    memory = getattr(memory, "main", memory)
    last = len(memory.events)
    between = (round(i * last / (MOMENTS - 1)) for i in range(1, MOMENTS - 1))
    places = sorted({0, memory.peak_event, last, *between})
    told = []
    for place, ranges in zip(places, memory.maps(places), strict=True):
        label = f"after event {place:,} of {last:,}" + (", the peak" if place == memory.peak_event else "")
        rows = [_row(memory, *found) for found in ranges]
        allocated = sum(size for row in rows for size, _, name, _ in row if name)
        requested = sum(asked for row in rows for _, asked, name, _ in row if name)
        told.append(moment(label, rows, (requested, allocated, sum(size for _, size, _ in ranges)), merge=True))
    peak = places.index(memory.peak_event)
    controls = [Slider("moment", "moment", 0, len(places) - 1, peak)]
    presets = {"Before the first event": {"moment": 0}, "The end": {"moment": len(places) - 1}}
    return Explorer(f"Segments of GPU {memory.device}", controls, Map([told], parts or PARTS), presets)


def _row(memory, address, size, inside):
    row, at = [], address
    for begin, asked, made in inside:
        if begin > at:
            row.append((begin - at, 0, "", ""))
        block = min(-(-asked // 512) * 512, address + size - begin)
        row.append((block, min(asked, block), made.part, ""))
        at = begin + block
    if at < address + size:
        row.append((address + size - at, 0, "", ""))
    return row


# -- a training step

#: The file of the simulated step's moments, beside this one; `tools/explorers.py` writes it.
FILE = "played.json"
#: Label -> `PYTORCH_ALLOC_CONF` of the simulation.
PLAYED: dict[str, str] = words_of("played")["settings"]


def played() -> Explorer:
    """GPT-2's first two steps, simulated by the allocator's rules: the segments as they fill, under two settings."""
    return _stored("played", "setting", FILE, PLAYED)


def _stored(name, label, file, settings):
    """The explorer of a file's moments under these settings. label: what a setting is called."""
    moments = [[Moment(**said) for said in table(file)[setting]] for setting in settings]
    last = len(moments[0]) - 1
    controls = [listed("setting", label, settings), Slider("moment", "moment", 0, last, last)]
    return told(name, controls, Map(moments))


# -- an epoch

#: The file of an epoch's moments, as `FILE` of a step's.
EPOCHS_FILE = "epochs.json"
#: Label -> (the order of the steps, `PYTORCH_ALLOC_CONF`).
EPOCHS: dict[str, tuple[str, str]] = {
    label: (said[0], said[1]) for label, said in words_of("epochs")["settings"].items()
}


def epochs() -> Explorer:
    """Chapter 49: 150 steps of many lengths on an H200, simulated: the segments when a step has the most, by the order of the steps."""
    return _stored("epochs", "order", EPOCHS_FILE, EPOCHS)
