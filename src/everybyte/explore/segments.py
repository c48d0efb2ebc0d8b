"""Explorers of segments and their blocks, moment by moment: a reader's own requests, a snapshot, a training step played."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

import ipywidgets as widgets

from .. import draw, units
from ..allocator import Allocator, OutOfMemory, settings
from ..common import checks
from ..common.tables import Table
from ..evidence import snapshot
from .beside import said as words_of
from .beside import table
from .controls import Slider, listed
from .explorer import Explorer, told
from .pictures import Kind, before

#: Most segments that are drawn: of more, the largest.
ROWS = 24
#: Most lines of a reader's text, and most moments of a history.
LINES, MOMENTS = 200, 40
#: Fragmentation by hand, as chapter 41 builds it.
STORY = """
step = 60 MiB
free step
state = 2 MiB
step = 60 MiB
"""
#: (bytes, bytes asked for, part of the palette, name); the part "" where it is free.
Block = tuple[int, int, str, str]


@dataclass(frozen=True)
class Moment:
    """What stands at a moment, as the page and the file have it too.

    Attributes:
        label: what just happened. counts: requested, allocated and reserved bytes. parts: part -> bytes asked for.
        segments: the blocks of each that is drawn, in the order of their addresses or as they came.
        count: how many segments there are. hidden: (how many are not drawn, their bytes).
    """

    label: str
    counts: tuple[int, int, int]
    parts: dict[str, int]
    segments: list[list[Block]]
    count: int
    hidden: tuple[int, int] = (0, 0)

    def spec(self):
        """As the page and the file have it."""
        return vars(self)


def unpacked(said: Mapping) -> Moment:
    rows = [[tuple(block) for block in row] for row in said["segments"]]
    return Moment(said["label"], tuple(said["counts"]), said["parts"], rows, said["count"], tuple(said["hidden"]))


def moment(label: str, rows: Iterable[list[Block]], counts: tuple[int, int, int], merge: bool = False) -> Moment:
    """A moment of all these segments; `merge`: neighbors of one part become one block."""
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
    """The segments of an allocator now. names: address of a block -> what it is called."""
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
        moments: for each setting, what stood after each event; the values name the `setting` and the `moment`.
        parts: (part of the palette, label), in the order in which they are said.
    """

    moments: Sequence[Sequence[Moment]]
    parts: Sequence[tuple[str, str]] = field(default=(("requested", "tensors"),))

    kind = "map"

    def compute(self, values) -> Moment:
        """The moment that the values name; of a setting that ended earlier, its last."""
        told = self.moments[values.get("setting", 0)]
        return told[min(values["moment"], len(told) - 1)]

    def _rows(self, now):
        """(what, bytes) of each part in use; then of what is above them, of what is kept free, and of all."""
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
    """(line, what, name, bytes) of each request in a text of lines: `name = 60 MiB`, `free name`, `empty_cache`; # begins a comment.

    Raises:
        ValueError: with the line, for what is none of these, a name that is free or in use already, or too many lines.
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
    """(what, name, bytes) of a line, where `live` are the names in use."""
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
    """Your own requests, decided one by one by PyTorch's rules: the segments as a picture, under several settings.

    Args:
        text: a request a line: `name = 60 MiB`, `free name`, `empty_cache`; # begins a comment.
        memory: of the GPU for this process, as text or bytes; None for no limit.
        configurations: label -> `PYTORCH_ALLOC_CONF`; by default the three of chapter 41.

    Raises:
        ValueError: with the line, for what is no request; for an unknown setting.
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
    return told("allocations", controls, Map(moments))


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

#: The parts that frames tell, in the order in which they are said, with what they are called.
PARTS: list[tuple[str, str]] = list(map(tuple, words_of("memory_map")["parts"]))


def memory_map(memory, most: int = MOMENTS) -> Explorer:
    """A snapshot's segments over its history, each block by the part of memory that its frames tell.

    Of a block's own size a history says what was asked for; what stands beside it up to the next block counts as kept free, but for
    the rounding to 512 bytes.

    Args:
        memory: one GPU's side of a snapshot, or the snapshot: then of the GPU that had the most. most: moments, of which the last is the
            end; the peak and the moment before the first event are among them.
    """
    memory = getattr(memory, "main", memory)
    last = len(memory.events)
    checks.whole("memory_map", "most", most, 3, 500)
    places = sorted({0, memory.peak_event, last, *(round(i * last / (most - 1)) for i in range(1, most - 1))})
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
    return Explorer(f"Segments of GPU {memory.device}", controls, Map([told], PARTS), presets)


def _row(memory, address, size, inside):
    row, at = [], address
    for begin, asked, frames in inside:
        if begin > at:
            row.append((begin - at, 0, "", ""))
        block = min(-(-asked // 512) * 512, address + size - begin)
        row.append((block, min(asked, block), memory.part_of(frames), ""))
        at = begin + block
    if at < address + size:
        row.append((address + size - at, 0, "", ""))
    return row


# -- a training step

#: The file of the moments of a step, beside this one: made by `tools/explorers.py`.
FILE = "played.json"
#: Label -> `PYTORCH_ALLOC_CONF`, under which the step is played.
PLAYED: dict[str, str] = words_of("played")["settings"]


def played() -> Explorer:
    """GPT-2's first two steps, played through the allocator: the segments as they fill, under two settings."""
    moments = [[unpacked(said) for said in table(FILE)[label]] for label in PLAYED]
    last = len(moments[0]) - 1
    controls = [listed("setting", "setting", list(PLAYED)), Slider("moment", "moment", 0, last, last)]
    return told("played", controls, Map(moments))


# -- a snapshot of the reader's own, put into the notebook

_SAID = (
    "A memory snapshot of your own: press the button and choose the file. It is read here, and nothing in it is run."
)


class Upload(widgets.VBox):
    """A button for a file, and below it the table of its peak and the map of its segments, or why it was refused.

    A notebook's server takes files up to some 10 MB this way; of larger ones `eb.snapshot(path)` reads up to 500 MB.
    """

    def __init__(self):
        self.button = widgets.FileUpload(accept=".pickle,.pkl", multiple=False, description="snapshot")
        self.said = widgets.HTML(f"<p>{escape(_SAID)}</p>")
        super().__init__([self.button, self.said])
        self.add_class("everybyte-upload")
        self.button.observe(self._given, "value")

    def _given(self, change):
        if not change["new"]:
            return
        (file,) = change["new"]
        try:
            memory = snapshot(bytes(file["content"])).main
            self.said.value = f"<p>{escape(str(file['name']))}</p>{memory._repr_html_()}"
            self.children = [self.button, self.said, memory_map(memory)]
        except ValueError as error:
            self.said.value = f'<p role="alert">{escape(str(error))}</p>'
            self.children = [self.button, self.said]

    def _repr_mimebundle_(self, **kwargs):
        shown = {"version_major": 2, "version_minor": 0, "model_id": self.model_id}
        return {"text/plain": _SAID, "application/vnd.jupyter.widget-view+json": shown}, {}


def upload() -> Upload:
    """A button that takes a snapshot of your own, and shows it."""
    return Upload()
