"""An allocator's side of memory: what lived by part over a history, and how segments are filled."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .. import units
from .figures import _keys, _legend, _look, _style, _title, canvas
from .palette import CARD, GRID, INK, MUTED, ORANGE, PARTS, part

#: Most places at which a history is drawn, and most segments.
PLACES, SEGMENTS = 400, 24


def _course(memory, part_of):
    """(numbers of events, part -> live bytes at each)."""
    known: dict[int, str] = {}

    def named(frames):
        if id(frames) not in known:
            known[id(frames)] = part_of(frames)
        return known[id(frames)]

    standing = {address: (size, named(frames)) for address, (size, frames) in memory.alive(0).items()}
    now: dict[str, int] = {}
    for size, name in standing.values():
        now[name] = now.get(name, 0) + size
    every = max(1, len(memory.events) // PLACES)
    wanted = {*range(0, len(memory.events) + 1, every), memory.peak_event, len(memory.events)}
    at, course = [], []
    for number in range(len(memory.events) + 1):
        if number:
            action, address, size, _ = memory.events[number - 1]
            if action == "alloc":
                name = named(memory.frames[number - 1])
                standing[address] = size, name
                now[name] = now.get(name, 0) + size
            elif action == "free_requested" and address in standing:
                size, name = standing.pop(address)
                now[name] -= size
        if number in wanted:
            at.append(number)
            course.append(dict(now))
    names = sorted(
        {name for live in course for name in live}, key=lambda name: -max(live.get(name, 0) for live in course)
    )
    return at, {name: [live.get(name, 0) for live in course] for name in names}


def memory(memory) -> Figure:
    """Live bytes by part over the events of a snapshot, and its segments at the end, each a bar: used, rounding, free."""
    at, course = _course(memory, memory.part_of)
    fig, ax = canvas(f"What lived on GPU {memory.device}: at most {units.text(memory.peak)}", height=6.2)
    fig.clear()
    _title(fig, f"What lived on GPU {memory.device}: at most {units.text(memory.peak)}")
    ax, below = fig.subplots(2, 1, height_ratios=(3, 2))
    for each in (ax, below):
        _style(each)
    gib = units.UNITS["GiB"]
    floor = [0.0] * len(at)
    for name, line in course.items():
        top = [low + size / gib for low, size in zip(floor, line, strict=True)]
        ax.fill_between(at, floor, top, step="post", **_look(name))
        floor = top
    ax.axvline(memory.peak_event, color=INK, linewidth=1)
    ax.set(xlabel="event of the history", ylabel="GiB", xlim=(0, max(at) or 1), ylim=(0, None))
    rows = sorted(memory.segments, key=lambda s: -s["total_size"])[:SEGMENTS]

    def asked(b):
        return b.get("requested_size", b["size"]) if b["state"] != "inactive" else 0

    _strips(below, [[(b["size"], asked(b)) for b in segment["blocks"]] for segment in rows])
    below.set(xlabel="GiB in each segment, the largest first" if rows else "no segment", ylabel="segments")
    _legend(fig, list(course), extra=_states())
    parts = ", ".join(
        f"{name} {units.text(size)}" for name, size in sorted(memory.parts().items(), key=lambda p: -p[1])
    )
    fig.alt = (
        f"GPU {memory.device}: live bytes over {len(memory.events):,} events, at most {units.text(memory.peak)} after event "
        f"{memory.peak_event:,}: {parts}. At the end {len(memory.segments):,} segments have {units.text(memory.reserved)}, "
        f"{units.text(memory.allocated)} of it allocated."
    )
    return fig


USED, ROUNDING = ORANGE, MUTED


def _states():
    looks = ((USED, "in use"), (ROUNDING, "rounding, rests not split"), (CARD, "free"))
    return [Rectangle((0, 0), 1, 1, facecolor=color, edgecolor=MUTED, label=label) for color, label in looks]


def _strips(ax, strips, unit="GiB"):
    """Segments as bars of blocks: (bytes, bytes of it asked for; 0 where it is free)."""
    scale, widest = units.UNITS[unit], 0.0
    for row, inside in enumerate(strips):
        x = 0.0
        for size, asked in inside:
            edged = {"edgecolor": MUTED, "linewidth": 0.6}
            boxes = [(x, size, {"facecolor": CARD} | edged)]
            if asked:
                boxes.append((x, asked, {"facecolor": USED} | edged))
            if asked and size > asked:
                boxes.append((x + asked / scale, size - asked, {"facecolor": ROUNDING, "linewidth": 0}))
            for left, wide, look in boxes:
                ax.add_patch(Rectangle((left, -row - 0.4), wide / scale, 0.8, **look))
            x += size / scale
        widest = max(widest, x)
    ax.set(xlim=(0, widest * 1.02 or 1), ylim=(-len(strips), 0.8), yticks=[])
    ax.grid(color=GRID, axis="x")


def segments(rows: Sequence[Sequence[tuple[int, int, str]]], title: str = "", unit: str = "MiB") -> Figure:
    """Segments as bars of blocks, (bytes, bytes asked for, part of the palette, "" where it is free)."""
    fig, ax = canvas(title, height=1.8 + 0.3 * max(1, len(rows)))
    scale, seen, widest = units.UNITS[unit], {}, 0.0
    for number, row in enumerate(rows):
        x = 0.0
        for size, asked, name in row:
            for wide, look in ((asked, name), (size - asked, "unsplit")) if name else ((size, "cached"),):
                if wide:
                    seen[look] = True
                    ax.barh(-number, wide / scale, left=x, height=0.8, **_look(look) | {"linewidth": 0.4})
                    x += wide / scale
        widest = max(widest, x)
    ax.set(xlim=(0, widest * 1.02 or 1), ylim=(-max(1, len(rows)) + 0.4, 0.6), yticks=[], xlabel=unit)
    ax.grid(color=GRID, axis="x")
    ax.set_axisbelow(True)
    _legend(fig, sorted(seen, key=list(PARTS).index))
    sums: dict[str, int] = {}
    for row in rows:
        for size, asked, name in row:
            sums[name or "cached"] = sums.get(name or "cached", 0) + (asked if name else size)
            if name and size > asked:
                sums["unsplit"] = sums.get("unsplit", 0) + size - asked
    inside = ", ".join(f"{part(name).label} {units.text(size)}" for name, size in sums.items() if size)
    fig.alt = f"{title}: {len(rows)} segments of {units.text(sum(sums.values()))}: {inside}."
    return fig


def blocks(allocator, title: str = "Segments and their blocks", unit: str = "MiB") -> Figure:
    """How the segments of an `everybyte.allocator.Allocator` are filled now: one bar each, in the order in which they came."""
    strips = []
    for first in allocator.segments.values():
        inside, block = [], first
        while block is not None:
            if block.mapped:
                inside.append((block.size, block.requested if block.state != "free" else 0))
            block = block.after
        if inside:
            strips.append(inside)
    fig, ax = canvas(title, height=1.6 + 0.42 * max(1, len(strips)))
    _strips(ax, strips, unit)
    ax.set(xlabel=unit)
    _keys(fig, _states())
    free = allocator.reserved - allocator.allocated
    fig.alt = (
        f"{title}: {len(strips)} segments have {units.text(allocator.reserved)}, in them {units.text(allocator.allocated)} allocated, "
        f"for {units.text(allocator.requested)} requested, and {units.text(free)} free."
    )
    return fig
