"""Figures of an allocator: live bytes by part over a history, and how segments are filled."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .. import units
from .figures import _keys, _legend, _look, areas, canvas, canvases
from .palette import CARD, GRID, INK, MUTED, ORANGE, PARTS, part

#: The most places of a history that are drawn; the most segments.
PLACES, SEGMENTS = 400, 24


def _course(memory):
    """(numbers of events, {part: live bytes at each}): the highest moment of each of `PLACES` stretches, the largest part first."""
    crests = memory.crests(columns=PLACES)
    parts = dict.fromkeys(name for _, live in crests for name in live)
    lines = {name: [live.get(name, 0) for _, live in crests] for name in parts}
    return [at for at, _ in crests], dict(sorted(lines.items(), key=lambda row: -max(row[1])))


def memory(memory) -> Figure:
    """Live bytes by part over a snapshot's events, and its segments at the end as bars of used, rounding and free bytes."""
    at, course = _course(memory)
    title = f"What lived on GPU {memory.device}: at most {units.text(memory.peak)}"
    fig, (ax, below) = canvases(title, 6.2, 2, height_ratios=(3, 2))
    areas(ax, at, course, "GiB")
    ax.axvline(memory.peak_event, color=INK, linewidth=1)
    ax.set(xlabel="event of the history", ylabel="GiB", xlim=(0, max(at) or 1), ylim=(0, None))
    rows = sorted(memory.segments, key=lambda s: -s["total_size"])[:SEGMENTS]

    def asked(b):
        return b.get("requested_size", b["size"]) if b["state"] != "inactive" else 0

    _strips(below, [[(b["size"], asked(b)) for b in segment["blocks"]] for segment in rows], "GiB")
    below.set(xlabel="GiB in each segment, the largest first" if rows else "no segment", ylabel="segments")
    _legend(fig, list(course), extra=_states())
    inside = sorted(memory.parts().items(), key=lambda row: -row[1])
    fig.alt = (
        f"GPU {memory.device}: live bytes over {len(memory.events):,} events, at most {units.text(memory.peak)} after event "
        f"{memory.peak_event:,}: {', '.join(f'{name} {units.text(size)}' for name, size in inside)}. At the end "
        f"{len(memory.segments):,} segments have {units.text(memory.reserved)}, "
        f"{units.text(memory.allocated)} of it allocated."
    )
    return fig


USED, ROUNDING = ORANGE, MUTED


def _states():
    looks = ((USED, "in use"), (ROUNDING, "rounding, rests not split"), (CARD, "free"))
    return [Rectangle((0, 0), 1, 1, facecolor=color, edgecolor=MUTED, label=label) for color, label in looks]


def _filled(ax, rows, unit):
    """Draw rows from the top down, each of boxes (first byte, bytes, look)."""
    scale, widest = units.UNITS[unit], 0.0
    for number, row in enumerate(rows):
        x = 0.0
        for boxes in row:
            for start, size, look in boxes:
                ax.add_patch(Rectangle((x + start / scale, -number - 0.4), size / scale, 0.8, **look))
            x += sum(boxes[-1][:2]) / scale
        widest = max(widest, x)
    ax.set(xlim=(0, widest * 1.02 or 1), yticks=[])
    ax.grid(color=GRID, axis="x")


def _strips(ax, strips, unit):
    """Draw segments as bars of blocks, (bytes, requested bytes; 0 where it is free)."""
    edged = {"edgecolor": MUTED, "linewidth": 0.6}

    def boxes(size, asked):
        rest = [(asked, size - asked, {"facecolor": ROUNDING, "linewidth": 0})] if asked and size > asked else []
        used = [(0, asked, {"facecolor": USED} | edged)] if asked else []
        return [(0, size, {"facecolor": CARD} | edged), *used, *rest]

    _filled(ax, [[boxes(*block) for block in row] for row in strips], unit)
    ax.set(ylim=(-len(strips), 0.8))


def segments(rows: Sequence[Sequence[tuple[int, int, str]]], title: str = "", unit: str = "MiB") -> Figure:
    """Segments as bars of blocks, (bytes, requested bytes, part of the palette, "" where it is free)."""
    fig, ax = canvas(title, height=1.8 + 0.3 * max(1, len(rows)))
    sums: dict[str, int] = {}

    def boxes(size, asked, name):
        found = ((0, asked, name), (asked, size - asked, "unsplit")) if name else ((0, size, "cached"),)
        for _, wide, look in found:
            sums[look] = sums.get(look, 0) + wide
        return [(start, wide, _look(look) | {"linewidth": 0.4}) for start, wide, look in found if wide]

    _filled(ax, [[boxes(*block) for block in row] for row in rows], unit)
    ax.set(ylim=(-max(1, len(rows)) + 0.4, 0.6), xlabel=unit)
    sums = {name: size for name, size in sums.items() if size}
    _legend(fig, sorted(sums, key=list(PARTS).index))
    inside = ", ".join(f"{part(name).label} {units.text(size)}" for name, size in sums.items())
    fig.alt = f"{title}: {len(rows)} segments of {units.text(sum(sums.values()))}: {inside}."
    return fig


def blocks(allocator, title: str = "Segments and their blocks", unit: str = "MiB") -> Figure:
    """The current segments of an `everybyte.allocator.Allocator`, a bar for each, in order of allocation."""
    strips = []
    for block in allocator.segments.values():
        inside = []
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
