"""Static figures, as functions of a state. Nothing here keeps state between calls or uses pyplot.

Each figure's alternative text is made from the same state, and is its `fig.alt`.
"""

import textwrap
from collections.abc import Mapping, Sequence
from itertools import pairwise

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import NullFormatter, NullLocator

from .. import units
from . import clock
from .palette import ABOVE, CARD, GRID, INK, MUTED, PARTS, ink_on, part

#: Inches wide; 72 CSS pixels each.
WIDTH = 9.5
#: An outline of lines, so that any color is visible on the card.
_CASING = [withStroke(linewidth=4, foreground=MUTED)]


def canvas(title: str, height: float = 3.6):
    """An empty figure in the book's style: (figure, axes). Inches."""
    fig, (ax,) = canvases(title, height)
    return fig, ax


def canvases(title: str, height: float, rows: int = 1, **more):
    """An empty figure with several axes one below the other: (figure, axes)."""
    fig = Figure(figsize=(WIDTH, height), layout="constrained", facecolor=CARD)
    fig.suptitle(textwrap.fill(title, int(WIDTH * 8.5)), x=0.01, ha="left", fontsize=13, color=INK, fontweight="bold")
    axes = fig.subplots(rows, squeeze=False, **more)[:, 0]
    for ax in axes:
        _style(ax)
    return fig, axes


def _style(ax):
    ax.set_facecolor(CARD)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(MUTED)
    ax.tick_params(colors=INK, labelsize=11)
    for axis in (ax.xaxis, ax.yaxis):
        axis.label.set(color=INK, fontsize=11)
    ax.grid(color=GRID, linewidth=0.8)
    ax.set_axisbelow(True)


def amount(value: float, unit: str) -> str:
    """`value` as text in `unit`: bytes where it is a key of `units.UNITS`; else a count of things."""
    if unit == "B":
        return f"{value:,.2f}".removesuffix(".00") + " B"  # there are no parts of a byte
    if unit in units.UNITS:
        return f"{units.to(value, unit):,.2f} {unit}"
    return f"{units.number(value)} {unit}".rstrip()


def words(ax, x, y, said, size=9.5, **more):
    """Write words centered at a place. more: matplotlib's further arguments."""
    return ax.text(x, y, said, **{"ha": "center", "va": "center", "color": INK, "fontsize": size} | more)


def beside(ax, at, said, offset=(0, 0), size=10.0, **more):
    """Write words at some points from a place. more: matplotlib's further arguments."""
    look = {"xytext": offset, "textcoords": "offset points", "color": INK, "fontsize": size}
    return ax.annotate(said, at, **look | more)


def card(pad=1.0, edge="none", **more):
    """The background of words on a line or a color."""
    return {"facecolor": CARD, "edgecolor": edge} | ({"pad": pad} if not more else more)


def _on(ax, x, y, said, color):
    """Write words on a part of this color, readable over its hatch."""
    box = {"boxstyle": "round,pad=0.15", "facecolor": color, "edgecolor": "none"}
    words(ax, x, y, said, color=ink_on(color), bbox=box)


def named_rows(ax, labels):
    ax.set_yticks(range(len(labels)), list(labels))
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.grid(axis="y", visible=False)


def areas(ax, x, lines, unit, **more):
    """Draw amounts of parts, {part: amounts}, one on top of the other."""
    floor = [0.0] * len(x)
    for name, line in lines.items():
        top = [low + _scaled(value, unit) for low, value in zip(floor, line, strict=True)]
        ax.fill_between(x, floor, top, step="post", **_look(name) | more)
        floor = top


def _scaled(value, unit):
    return units.to(value, unit) if unit in units.UNITS else value


def _look(name):
    p = part(name)
    return {"facecolor": p.color, "hatch": p.hatch, "edgecolor": CARD, "linewidth": 1}


def _legend(fig, names, extra=()):
    handles = [Patch(label=part(n).label, **_look(n)) for n in names] + list(extra)
    _keys(fig, handles)


def _keys(fig, handles):
    """Draw a legend below, in as many columns as fit."""
    words = [len(h.get_label()) for h in handles]

    def wide(columns):  # in inches
        rows, longer = divmod(len(words), columns)  # matplotlib's first columns have a row more
        starts = [n * rows + min(n, longer) for n in range(columns + 1)]
        return sum(0.6 + 0.088 * max(words[a:b]) for a, b in pairwise(starts))

    columns = next((n for n in range(min(len(words), 6), 1, -1) if wide(n) < fig.get_figwidth()), 1)
    legend = fig.legend(handles=handles, loc="outside lower left", ncols=columns, frameon=False, fontsize=11)
    for text in legend.get_texts():
        text.set_color(INK)


def _check_rows(rows):
    if not rows:
        raise ValueError("rows: {} has no rows; allowed: {label: {part: amount}}")
    for label, parts in rows.items():
        for name, value in parts.items():
            part(name)
            if not value >= 0:
                raise ValueError(f"rows[{label!r}][{name!r}]: {value!r} is not an amount; allowed: 0 or more")


def _inside(parts, unit):
    return ", ".join(f"{part(name).label} {amount(value, unit)}" for name, value in parts.items() if value)


def _stacked_said(rows, capacity, title, unit, capacity_label):
    said = []
    for label, parts in rows.items():
        inside = _inside(parts, unit)
        said.append(f"{label} {amount(sum(parts.values()), unit)}" + (f" ({inside})" if inside else ""))
    text = f"Stacked bars, {title}: " + "; ".join(said) + "."
    if capacity is not None:
        over = [label for label, parts in rows.items() if sum(parts.values()) > capacity]
        text += f" {capacity_label[:1].upper()}{capacity_label[1:]} {amount(capacity, unit)}: "
        text += f"{', '.join(over)} {'does' if len(over) == 1 else 'do'} not fit." if over else "all are below it."
    return text


def stacked(
    rows: Mapping[str, Mapping[str, float]],
    capacity: float | None = None,
    title: str = "",
    unit: str = "GiB",
    capacity_label: str = "capacity",
) -> Figure:
    """Horizontal stacked bars by part, each part with a label where there is room.

    Args:
        rows: {label: {part: bytes}}, parts by their names in `palette.PARTS`; drawn from the top down.
        capacity: bytes; a line across the bars; where it is more than four times the longest bar, only named.
        title: above. unit: of the axis, a key of `units.UNITS`; with any other word amounts are counts.

    Raises:
        ValueError: no rows, an unknown part, a negative amount.
    """
    _check_rows(rows)
    names = [name for name in PARTS if any(parts.get(name) for parts in rows.values())]
    fig, ax = canvas(title, height=1.5 + 0.55 * len(rows) + 0.06 * max(0, len(names) - 20))  # more words in the legend
    longest = max(sum(parts.values()) for parts in rows.values()) or 1
    shown = capacity if capacity is not None and capacity <= 4 * longest else None
    limit = max(longest * 1.16, (shown or 0) * 1.1)
    for y, parts in enumerate(rows.values()):
        left = 0.0
        for name in (name for name in names if parts.get(name)):
            value = parts[name]
            ax.barh(y, _scaled(value, unit), left=_scaled(left, unit), height=0.62, **_look(name))
            text = amount(value, unit).removesuffix(f" {unit}")
            if value / limit > 0.014 * len(text):
                _on(ax, _scaled(left + value / 2, unit), y, text, part(name).color)
            left += value
        end = {"ha": "left", "fontweight": "bold", "bbox": card(), "zorder": 5}
        words(ax, _scaled(left + 0.008 * limit, unit), y, amount(left, unit), 10, **end)
    if capacity is not None:
        said, at, right = f"{capacity_label} {amount(capacity, unit)}", 1, True
        if shown is None:
            said += ", beyond this scale \N{RIGHTWARDS ARROW}"
        else:
            at, right = _scaled(shown, unit), shown > limit / 2
            ax.axvline(at, color=INK, linestyle="--", linewidth=1.5, zorder=4)
        across = "axes fraction" if shown is None else "data"
        place = {"xycoords": (across, "axes fraction"), "ha": "right" if right else "left", "va": "bottom"}
        beside(ax, (at, 1), said, size=9.5, **place)
    named_rows(ax, rows)
    ax.set(xlim=(0, _scaled(limit, unit)), xlabel=unit)
    _legend(fig, names)
    fig.alt = _stacked_said(rows, capacity, title, unit, capacity_label)
    return fig


def shares(parts: Mapping[str, float], title: str = "", unit: str = "parameters") -> Figure:
    """One stacked bar of all parts, with each part's share on it or below it.

    Args:
        parts: {part: amount}, amounts in `unit`, bytes where it is a key of `units.UNITS`.

    Raises:
        ValueError: an unknown part, a negative amount, nothing in all.
    """
    _check_rows({title or "shares": parts})
    total = sum(parts.values())
    if not total:
        raise ValueError(f"parts: {dict(parts)!r} sum to 0; allowed: at least one amount above 0")
    fig, ax = canvas(f"{title}: {amount(total, unit)}", height=2.1)
    left, small = 0.0, []
    for name, value in ((name, value) for name, value in parts.items() if value):
        share, label = value / total, part(name).label
        ax.barh(0, share, left=left, height=0.6, **_look(name))
        if share > 0.105:
            said = f"{label}\n{amount(value, unit).removesuffix(unit).strip()} · {share:.1%}"
            _on(ax, left + share / 2, 0, said, part(name).color)
        else:
            small.append(Patch(label=f"{label}: {amount(value, unit)} · {share:.2%}", **_look(name)))
        left += share
    if small:
        _keys(fig, small)
    ax.set(xlim=(0, 1), ylim=(-0.4, 0.4))
    ax.set_axis_off()
    largest = sorted(((name, value) for name, value in parts.items() if value), key=lambda row: -row[1])
    rows = ", ".join(f"{part(name).label} {amount(value, unit)} ({value / total:.1%})" for name, value in largest)
    fig.alt = f"One bar, {title}: {amount(total, unit)} in all; {rows}."
    return fig


def _lines_said(x, curves, x_label, title, unit, near):
    def at(i, ys):
        return f"{amount(ys[i], unit)} at {x[i]:,g}"

    said = [f"{label} from {at(0, ys)} to {at(-1, ys)}" for label, (_, ys) in curves.items()]
    text = f"Lines, {title}, over {x_label}: " + "; ".join(said) + "."
    if near is not None:
        now = ", ".join(f"{label} {amount(ys[near], unit)}" for label, (_, ys) in curves.items())
        text += f" At {x[near]:,g}: {now}."
    return text


def lines(
    x: Sequence[float],
    curves: Mapping[str, tuple[str, Sequence[float]]],
    x_label: str = "",
    title: str = "",
    unit: str = "GiB",
    mark: float | None = None,
    log: bool = False,
    capacity: float | None = None,
) -> Figure:
    """Curves over one quantity, each named at its end.

    Args:
        x: ascending. curves: {label: (part, values)}, values in bytes where `unit` is a key of `units.UNITS`.
        mark: an x to mark with each curve's value. log: whether both axes are logarithmic. capacity: usable bytes, a horizontal line.

    Raises:
        ValueError: an unknown part, a curve that is not as long as `x`, fewer than two points.
    """
    if len(x) < 2 or any(b <= a for a, b in pairwise(x)):
        raise ValueError(f"x: {list(x)!r} is not ascending; allowed: two or more values, each above the one before")
    fig, ax = canvas(title, height=4.2)
    styles = ("-", "--", ":", "-.")
    near = None if mark is None else min(range(len(x)), key=lambda i: abs(x[i] - mark))
    for number, (label, (name, ys)) in enumerate(curves.items()):
        if len(ys) != len(x):
            raise ValueError(f"curves[{label!r}]: {len(ys)} values do not go with {len(x)} of x; allowed: as many")
        color = part(name).color
        drawn = [_scaled(y, unit) for y in ys]
        ax.plot(x, drawn, styles[number % len(styles)], color=color, linewidth=2.5, path_effects=_CASING)
        if near is not None:
            ax.plot([x[near]], [_scaled(ys[near], unit)], "o", color=color, markersize=8, markeredgecolor=INK)
    if log:
        ax.set_xscale("log", base=2)
        ax.set_yscale("log", base=2)
        for axis in (ax.xaxis, ax.yaxis):  # plain numbers: no formula is typeset in a figure
            axis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:.6g}")
            axis.set_minor_formatter(NullFormatter())
    else:
        ax.set_ylim(bottom=0)
    if capacity is not None:
        at = _scaled(capacity, unit)
        ax.axhline(at, color=INK, linestyle="--", linewidth=1.5)
        place = {"xycoords": ("axes fraction", "data"), "va": "bottom"}
        beside(ax, (0.01, at), f"usable {amount(capacity, unit)}", size=9.5, **place)
    _name_ends(ax, {label: _scaled(ys[-1], unit) for label, (_, ys) in curves.items()})
    if near is not None:
        ax.axvline(x[near], color=MUTED, linestyle=":", linewidth=1.2)
        said = [f"at {x[near]:,g}", *(f"{label}: {amount(ys[near], unit)}" for label, (_, ys) in curves.items())]
        box = card(edge=GRID, boxstyle="round,pad=0.4")
        place = {"ha": "left", "va": "top", "transform": ax.transAxes, "bbox": box}
        words(ax, 0.02, 0.96, "\n".join(said), 10, **place)
    ax.set(xlabel=x_label, ylabel=unit)
    fig.alt = _lines_said(x, curves, x_label, title, unit, near)
    return fig


def _name_ends(ax, ends):
    """Write each curve's name at its end, moved up where two would touch."""
    ax.get_ylim()  # settles the limits
    place = ax.transData + ax.transAxes.inverted()
    at = -1.0
    for label, y in sorted(ends.items(), key=lambda kv: kv[1]):
        at = max(place.transform((ax.get_xlim()[0], y))[1], at + 0.06)
        beside(ax, (1, at), f" {label}", xycoords="axes fraction", va="center", annotation_clip=False)


def _peak_of(trace):
    inside = ", ".join(f"{part(n).label} {units.text(v)}" for n, v in trace.parts.items() if v)
    return f"the peak of {units.text(trace.peak)} is in {trace.peak_at} ({inside})"


def timeline(
    trace,
    title: str = "",
    unit: str = "GiB",
    capacity: float | None = None,
    at: int | None = None,
    places: str = "operations",
) -> Figure:
    """Live bytes by part over the operations of one training step, with its phases and its peak marked.

    Args:
        trace: from `everybyte.dry_run` or `everybyte.budget`, with `timeline()`, `live`, `marks`, `peak`,
            `peak_operation`, `peak_at`, `parts`.
        capacity: bytes; a line across. at: the number of an operation to mark. places: what the places of the step are.
    """
    fig, ax = canvas(title, height=4.6)
    names, middles = _course(ax, trace, unit, max(trace.peak, capacity or 0))
    if capacity is not None:
        ax.axhline(_scaled(capacity, unit), color=INK, linestyle="--", linewidth=1.5)
    if at is not None:
        ax.plot([middles[at]], [0], "^", color=INK, markersize=9, clip_on=False, zorder=5)
    ax.set_xlabel(_axis(trace, places))
    _legend(fig, names)
    marks = ", ".join(f"{name.replace('_', ' ')} {units.text(trace.live[i])}" for name, i in trace.marks.items())
    fig.alt = f"Live bytes over the {len(trace.live):,} {places} of one step, {title}: {_peak_of(trace)}. At the marks: {marks}."
    return fig


def _axis(trace, places="operations"):
    return f"the {len(trace.live):,} {places} of the step, in order; short phases, and those about the peak, are drawn wider"


def _course(ax, trace, unit, high):
    """Draw a timeline on axes that reach above `high` bytes; return its parts and the middle of each place."""
    lines = {name: line for name, line in trace.timeline().items() if any(line)}
    phases = clock.phases(trace)
    ends = clock.edges(phases, trace.peak_operation)
    middles = [(a + b) / 2 for a, b in pairwise(ends)]
    areas(ax, ends, {name: [*line, line[-1]] for name, line in lines.items()}, unit, linewidth=0.3)
    high = _scaled(high, unit) * 1.22
    for name, first, end in phases:
        if first:
            ax.axvline(ends[first], color=INK, linestyle=":", linewidth=1.2)
        if (ends[end] - ends[first]) * WIDTH > 0.1 * len(name):
            words(ax, (ends[first] + ends[end]) / 2, high * 0.965, name, color=INK, gid=ABOVE)
    peak = (middles[trace.peak_operation], _scaled(trace.peak, unit))
    ax.plot(*peak, "v", color=INK, markersize=9)
    right = peak[0] > 0.5
    said = f"peak {amount(trace.peak, unit)}, {trace.peak_at}"
    beside(ax, peak, said, (-8 if right else 8, 6), ha="right" if right else "left", fontweight="bold", bbox=card())
    ax.set(xlim=(0, 1), ylim=(0, high), ylabel=unit, xticks=[])
    return list(lines), middles


def timelines(traces: Mapping, title: str = "") -> Figure:
    """Timelines one below the other, with the same scale.

    Args:
        traces: {label: a trace as for `timeline`}.

    Raises:
        ValueError: where there are none.
    """
    if not traces:
        raise ValueError("traces: {} has no timelines; allowed: {label: a dry run or a budget}")
    fig, axes = canvases(title, 1.2 + 3 * len(traces), len(traces))
    names = []
    for ax, (label, trace) in zip(axes, traces.items(), strict=True):
        names += _course(ax, trace, "GiB", max(t.peak for t in traces.values()))[0]
        ax.set_title(label, loc="left", fontsize=10.5, color=INK)
    axes[-1].set_xlabel("operations of the step, in order; short phases, and those about the peak, are drawn wider")
    _legend(fig, list(dict.fromkeys(names)))
    said = "; ".join(f"{label}, {len(t.live):,} operations: {_peak_of(t)}" for label, t in traces.items())
    fig.alt = f"Live bytes over the operations of one step, {title}: {said}."
    return fig


def _regions_said(x, y, where, regions, x_label, y_label, title):
    flat = [int(i) for row in where for i in row]
    counts = [(label, flat.count(i)) for i, (_, label) in enumerate(regions)]
    said = ", ".join(f"{label} at {n:,} ({n / len(flat):.1%})" for label, n in counts if n)
    ends = [(j, i) for j in (0, -1) for i in (0, -1)]
    corners = ", ".join(
        f"{regions[int(where[j][i])][1]} at {x_label} {x[i]:,g} and {y_label} {y[j]:,g}" for j, i in ends
    )
    return f"Map, {title}, {len(flat):,} points: {said}. In the corners: {corners}."


def regions(
    x: Sequence[float],
    y: Sequence[float],
    where,
    regions: Sequence[tuple[str, str]],
    x_label: str = "",
    y_label: str = "",
    title: str = "",
    limits: Mapping[str, tuple] | None = None,
) -> Figure:
    """A map of regions on two logarithmic axes, each named where it is widest.

    Args:
        x, y: ascending, above 0. where: a row for each y, with an index of `regions` for each x.
        regions: [(part of the palette, label)].
        limits: {label: (amounts like `where`, an amount)}: a line where the amounts pass it.

    Raises:
        ValueError: where `where` lacks a row for a y or a number for an x, or has an index of no region.
    """
    if len(where) != len(y) or any(len(row) != len(x) for row in where):
        raise ValueError(f"where: {len(where)} rows do not go with {len(y)} of y and {len(x)} of x; allowed: one each")
    present = sorted({int(i) for row in where for i in row})
    if not 0 <= present[0] <= present[-1] < len(regions):
        raise ValueError(f"where: {present} name no region; allowed: 0 to {len(regions) - 1}")
    fig, ax = canvas(title, height=4.6)
    ax.set(xscale="log", yscale="log", xlabel=x_label, ylabel=y_label)
    for i in present:
        name, label = regions[i]
        mask = [[float(int(v) == i) for v in row] for row in where]
        look = part(name)
        paint = {"colors": [look.color], "hatches": [look.hatch or None]}
        ax.contourf(x, y, mask, levels=[0.5, 1.5], **paint).set_edgecolor(CARD)
        row = max(range(len(y)), key=lambda j: sum(mask[j]))
        inside = [k for k in range(len(x)) if mask[row][k]]
        at = (x[inside[0]] * x[inside[-1]]) ** 0.5, y[row]
        up = 12 if row == 0 else -12 if row == len(y) - 1 else 0
        box = card(edge=GRID, boxstyle="round,pad=0.25")
        beside(ax, at, label, (0, up), ha="center", va="center", fontweight="bold", bbox=box)
    for label, (amounts, limit) in (limits or {}).items():
        every = [amount for row in amounts for amount in row]
        if not min(every) < limit < max(every):
            continue
        line = ax.contour(x, y, amounts, levels=[limit], colors=[INK], linewidths=2, linestyles="--")
        right, top = max((point for piece in line.allsegs[0] for point in piece), key=lambda point: point[0])
        beside(ax, (right, top), label, (-4, 6), 9.5, ha="right", va="bottom", bbox=card(1.5))
    for axis, values in ((ax.xaxis, x), (ax.yaxis, y)):
        axis.set_major_formatter(lambda v, _: f"{v:,g}")
        axis.set_minor_locator(NullLocator())
        axis.set_ticks([2**k for k in range(31) if values[0] <= 2**k <= values[-1]])
    ax.grid(False)
    fig.alt = _regions_said(x, y, where, regions, x_label, y_label, title)
    return fig


def _place(f, mark):
    if mark > f["largest"]:
        return "overflows at"
    if mark < f["smallest"] - 1:
        return "loses"
    return "holds" if mark >= f["normal"] else "holds with fewer bits"


def ranges(
    formats: Mapping[str, Mapping[str, float]], mark: float | None = None, title: str = "Number formats"
) -> Figure:
    """The positive range of number formats on a logarithmic axis; the subnormal part is hatched, the normal part solid.

    Args:
        formats: {label: {"smallest", "normal", "largest"}}, each the base-2 logarithm of a positive number:
            the smallest subnormal, the smallest normal, the largest.
        mark: the base-2 logarithm of a number to mark, such as a gradient.

    Raises:
        ValueError: no formats, or bounds that do not ascend.
    """
    if not formats:
        raise ValueError("formats: {} has no formats; allowed: {label: {smallest, normal, largest}}")
    fig, ax = canvas(title, height=1.6 + 0.5 * len(formats))
    said = []
    for y, (label, f) in enumerate(formats.items()):
        if not f["smallest"] <= f["normal"] < f["largest"]:
            raise ValueError(f"formats[{label!r}]: {dict(f)!r} does not ascend; allowed: smallest <= normal < largest")
        smallest, normal, largest = f["smallest"], f["normal"], f["largest"]
        ax.barh(y, normal - smallest, left=smallest, height=0.5, **_look("casts"))
        ax.barh(y, largest - normal, left=normal, height=0.5, **_look("parameters"))
        beside(ax, (smallest, y), f"2^{smallest:g} ", size=9.5, ha="right", va="center")
        beside(ax, (largest, y), f" 2^{round(largest, 3):g}", size=9.5, ha="left", va="center")
        text = f"{label} from 2^{smallest:g} (normal from 2^{normal:g}) to 2^{round(largest, 3):g}"
        said.append(text if mark is None else f"{text}, {_place(f, mark)} 2^{mark:g}")
    every = [end for f in formats.values() for end in (f["smallest"], f["largest"])]
    every += [] if mark is None else [mark]
    low, high = min(every), max(every)
    if mark is not None:
        ax.axvline(mark, color=part("gradients").color, linewidth=2.5)
        words(ax, mark, 1, f"2^{mark:g}", 10, va="bottom", transform=ax.get_xaxis_transform())
    room = 0.1 * (high - low)
    ax.set(xlim=(low - room, high + room), xlabel="magnitude")
    named_rows(ax, formats)
    ax.xaxis.set_major_formatter(lambda v, _: f"2^{v:g}")
    _keys(fig, [Patch(label="subnormal: fewer bits", **_look("casts")), Patch(label="normal", **_look("parameters"))])
    fig.alt = f"{title}, positive numbers that each can hold: " + "; ".join(said) + "."
    return fig
