"""Dots and measured curves: ratios and errors of stated numbers, memory against time, a lab's measurements, steps of a run."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from itertools import cycle, pairwise
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator

from .. import units
from .figures import _keys, amount, beside, canvas, card, named_rows
from .palette import BLUE, CARD, GREEN, INK, MUTED, ORANGE, PINK, VERMILION, part

#: The looks of dots, in the order of the kinds: full, hollow, a triangle, a cross. Colors are left to parts of memory.
_MARKERS: tuple[dict[str, Any], ...] = (
    {"marker": "o", "markerfacecolor": MUTED}, {"marker": "o", "markerfacecolor": CARD},
    {"marker": "^", "markerfacecolor": INK}, {"marker": "X", "markerfacecolor": INK},
)  # fmt: skip
_EDGE: dict[str, Any] = {"markersize": 6, "markeredgecolor": INK, "markeredgewidth": 0.8}
_BIN = 0.055  # of a power of ten: as wide as a dot
_STEP = 0.052  # of a row: as high as a dot


def ratios(rows: Mapping[str, Sequence[tuple[float, str, str]]], kinds: Sequence[str], title: str = "") -> Figure:
    """Ratios around 1: a row of dots for each label; dots that would overlap are stacked.

    Args:
        rows: {label: [(ratio, kind, words)]}, ratios above 0; the words stand beside the farthest dot to either side.
        kinds: up to four, each with a shape of its own.

    Raises:
        ValueError: no rows, a row without dots, a ratio that is not above 0, an unknown kind, too many kinds.
    """
    if len(kinds) > len(_MARKERS):
        raise ValueError(f"kinds: {len(kinds)} kinds; allowed: up to {len(_MARKERS)}")
    if not rows or not all(rows.values()):
        raise ValueError("rows: a row without dots; allowed: {label: [(ratio, kind, words)]}")
    for label, dots in rows.items():
        for ratio, kind, _ in dots:
            if not 0 < ratio < math.inf or kind not in kinds:
                raise ValueError(
                    f"rows[{label!r}]: {ratio!r}, {kind!r}; allowed: ratios above 0, kinds {', '.join(kinds)}"
                )
    fig, ax = canvas(title, height=1.5 + 1.15 * len(rows))
    for y, dots in enumerate(rows.values()):
        columns = {}
        for ratio, kind, _ in sorted(dots, key=lambda dot: (round(math.log10(dot[0]) / _BIN), kinds.index(dot[1]))):
            column = columns.setdefault(round(math.log10(ratio) / _BIN), [])
            column.append((ratio, kind))
        for column in columns.values():
            for place, (ratio, kind) in enumerate(column):
                height = y + _STEP * (place - (len(column) - 1) / 2)
                ax.plot(ratio, height, **_EDGE, **_MARKERS[kinds.index(kind)])
    far = sorted((ratio, y, words) for y, dots in enumerate(rows.values()) for ratio, _, words in dots)
    for ratio, y, words in (far[0], far[-1]):
        beside(ax, (ratio, y), textwrap.fill(words, 30), (0, 8), ha="left" if ratio < 1 else "right", va="bottom")
    every = [ratio for ratio, _, _ in far]
    ends = math.floor(math.log2(min([*every, 0.5]) * 0.9)), math.ceil(math.log2(max([*every, 2]) * 1.1))
    ax.axvline(1, color=MUTED, linewidth=1, zorder=0)
    ax.set(xscale="log", xlim=(2.0 ** ends[0], 2.0 ** ends[1]), xlabel="stated over computed")
    ax.set_xticks([2.0**k for k in range(ends[0], ends[1] + 1)])
    ax.xaxis.set_major_formatter(lambda v, _: f"{v:g} ×" if v >= 1 else f"1/{1 / v:g}")
    ax.xaxis.set_minor_locator(NullLocator())
    named_rows(ax, rows)
    ax.set_ylim(top=-0.6)  # room for the words above
    shown = zip(kinds, _MARKERS, strict=False)
    _keys(fig, [Line2D([], [], linestyle="", label=kind, **_EDGE, **look) for kind, look in shown])
    said = []
    for label, dots in rows.items():
        near = sum(1 / 1.1 <= ratio <= 1.1 for ratio, _, _ in dots)
        low, high = min(dots), max(dots)
        said.append(
            f"{label}, {len(dots)} numbers, {near} of them within a tenth, from {low[0]:.2g} times ({low[2]}) to {high[0]:.2g} times ({high[2]})"
        )
    fig.alt = f"Dots on a logarithmic axis, {title}: " + "; ".join(said) + "."
    return fig


def front_of(points: Sequence[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    """The points (name, seconds, bytes) that no other beats in both, the fastest first."""
    kept: list[tuple[str, float, float]] = []
    for point in sorted(points, key=lambda one: (one[1], one[2])):
        if not kept or point[2] < kept[-1][2]:
            kept.append(point)
    return kept


def fronts(
    points: Sequence[tuple[str, float, float]], limit: float, title: str = "", runs: Sequence[object] | None = None
) -> Figure:
    """Peak memory over seconds: a dot for each point, a line through the numbered ones that none beats in both, and the limit.

    Args:
        points: (name, seconds, bytes) of each. limit: usable bytes. runs: of each point whether it runs, None for one that does not;
            by default those that are not above the limit do.

    Raises:
        ValueError: no points, an amount that is not above 0, or not as many of `runs`.
    """
    if runs is not None and len(runs) != len(points):
        raise ValueError(f"runs: {len(runs)}; allowed: {len(points)}, one for each point")
    if not points or any(not (seconds > 0 and size > 0) for _, seconds, size in points):
        raise ValueError(f"points: {list(points)!r}; allowed: one or more, each (name, seconds, bytes), above 0")
    fig, ax = canvas(title, height=4.4)
    best = front_of(points)
    dots = [(seconds, units.to(size, "GiB")) for _, seconds, size in points]
    front, usable = [(seconds, units.to(size, "GiB")) for _, seconds, size in best], units.to(limit, "GiB")
    running = [size <= limit for *_, size in points] if runs is None else [one is not None for one in runs]
    for point, dot, well in zip(points, dots, running, strict=True):
        marker, color = ("o", BLUE) if well else ("x", VERMILION)
        look = {"marker": marker, "color": color, "markersize": 7, "linestyle": "none"}
        ax.plot(*dot, **look, alpha=1 if point in best else 0.55)
    ax.plot(*zip(*front, strict=True), color=MUTED, linewidth=1.5, zorder=1)
    ax.axhline(usable, color=INK, linestyle="--", linewidth=1)
    place = {"xycoords": ("axes fraction", "data")}
    beside(ax, (0.01, usable), f"usable {amount(limit, 'GiB')}", (0, -12), 9, **place)
    ax.margins(x=0.15)
    most = 1.15 * max(usable, *(size for _, size in dots))
    ax.set(ylim=(0, most), xlabel="seconds a step, as computed", ylabel="peak, GiB")
    _number(fig, ax, dots, front, [name for name, *_ in best])
    said = "; ".join(f"{name} {seconds:,.3g} s, {amount(size, 'GiB')}" for name, seconds, size in best)
    fig.alt = f"Dots, {title}, peak memory over seconds a step, {len(points)} in all, {amount(limit, 'GiB')} usable, {sum(running)} run. Beaten by none: {said}."
    return fig


#: Sizes in points of type: of a digit, a line, and the distance from a dot.
_DIGIT, _LINE, _AWAY = 6.5, 10.0, 7.0


def _number(fig, ax, dots, front, names):
    """Write a number at each dot of the front where it covers no dot, number or line, and the names beside the axes."""
    said = "\n".join(f"{number}  {name}" for number, name in enumerate(names, 1))
    ax.text(1.01, 1, said, transform=ax.transAxes, va="top", fontsize=9, color=INK, linespacing=1.5)
    fig.draw_without_rendering()  # settles the axes
    at, line = ([ax.transData.transform(dot) * 72 / fig.dpi for dot in some] for some in (dots, front))
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in (*at, *_along(line))]
    for number, (x, y) in enumerate(line, 1):
        wide = _DIGIT * len(str(number))
        places = [(x + dx, y + dy, x + dx + wide, y + dy + _LINE) for dx, dy in _places(wide)]
        box = next((box for box in places if not any(_overlap(box, other) for other in taken)), places[0])
        beside(ax, front[number - 1], str(number), (box[0] - x, box[1] - y + 1), 9, fontweight="bold")
        taken.append(box)


def _along(corners):
    """Points along a line through its corners, at most four points of type apart."""
    for (x, y), (to_x, to_y) in pairwise(corners):
        steps = 1 + int(max(abs(to_x - x), abs(to_y - y)) // 4)
        yield from ((x + (to_x - x) * i / steps, y + (to_y - y) * i / steps) for i in range(steps))


def _places(wide):
    """Possible offsets of a number from its dot, in points: beside, under and above it, and at its corners."""
    beside, under, middle = (_AWAY, -_AWAY - wide), -_AWAY - _LINE, -wide / 2
    yield from ((dx, -_LINE / 2) for dx in beside)
    yield from ((middle, dy) for dy in (under, _AWAY))
    yield from ((dx, dy) for dx in beside for dy in (under, _AWAY))


def _overlap(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


#: The looks of lines, in order: color, dash and marker together, so that none depends on color alone.
_LOOKS = (
    (BLUE, "-", "o"), (VERMILION, "--", "s"), (GREEN, "-.", "^"), (ORANGE, ":", "D"), (PINK, (0, (5, 1)), "v"),
    (INK, (0, (1, 1)), "P"), (MUTED, (0, (3, 1, 1, 1)), "X"),
)  # fmt: skip


def costs(points: Mapping[str, tuple[float, float | None]], x_label: str, title: str = "") -> Figure:
    """Memory against cost: a dot for each way to run the step; lower and further left is better.

    Args:
        points: name -> (bytes at the peak, the price on the x axis: milliseconds, or arithmetic beside another's). Where
            any price is None, bars stand side by side, which no axis of prices orders: the label says why.

    Raises:
        ValueError: no points, or an amount below 0.
    """
    if not points or any(not (size >= 0 and (price is None or price >= 0)) for size, price in points.values()):
        raise ValueError(f"points: {dict(points)!r}; allowed: one or more, each (bytes, price), 0 or more")
    fig, ax = canvas(title, height=4.2)
    unpriced = any(price is None for _, price in points.values())
    for number, (name, (size, price)) in enumerate(points.items()):
        color, _, marker = _LOOKS[number % len(_LOOKS)]
        if unpriced:
            ax.bar(number, units.to(size, "GiB"), width=0.6, color=color)
            beside(ax, (number, units.to(size, "GiB")), amount(size, "GiB"), (-16, 4))
            continue
        ax.plot(price, units.to(size, "GiB"), marker=marker, markersize=10, color=color, linestyle="none")
        beside(ax, (price, units.to(size, "GiB")), f"{name}\n{amount(size, 'GiB')}", (9, 5 if number % 2 else -17))
    ax.margins(x=0.05 if unpriced else 0.22)
    if unpriced:
        ax.set_xticks(range(len(points)), [name.replace(", ", ",\n") for name in points])
    most = 1.2 * units.to(max(size for size, _ in points.values()), "GiB")
    ax.set(ylim=(0, most or 1), xlabel=x_label, ylabel="peak, GiB")
    said = "; ".join(
        f"{name} {amount(size, 'GiB')}" + ("" if price is None else f" at {price:,.4g}")
        for name, (size, price) in points.items()
    )
    fig.alt = f"{'Bars' if unpriced else 'Dots'}, {title}, peak memory over {x_label}: {said}."
    return fig


def losses(curves: Mapping[str, Sequence[float | None]], title: str = "") -> Figure:
    """The loss of each step, a line for each run; a step without a finite loss is a gap.

    Raises:
        ValueError: where no run has a finite loss.
    """
    if not any(loss is not None for curve in curves.values() for loss in curve):
        raise ValueError(f"curves: {dict(curves)!r} has no finite loss; allowed: name -> the loss of each step")
    runs = {name: [list(enumerate(curve, 1))] for name, curve in curves.items()}
    every = [{"markevery": (i, max(1, len(curve) // 8)), "alpha": 0.9} for i, curve in enumerate(curves.values())]
    steps = max(map(len, curves.values()))
    fig = _falling(runs, every, "step", "loss, nats a token", title)
    fig.alt = (
        f"Lines, {title}: the loss of {len(curves)} runs ({', '.join(curves)}) over {steps} steps on the same text."
    )
    return fig


def _falling(curves, looks, x_label, y_label, title):
    """Draw curves of (x, loss or None), with one look for each name, changed by `looks`."""
    fig, ax = canvas(title, height=4.0)
    for (name, runs), (color, dash, marker), more in zip(curves.items(), cycle(_LOOKS), looks):
        for number, points in enumerate(runs):
            x, y = zip(*[(at, float("nan") if loss is None else loss) for at, loss in points], strict=True)
            look = {"color": color, "linestyle": dash, "marker": marker, "markersize": 5}
            ax.plot(x, y, label=None if number else name, **look, **more)
    ax.set(xlabel=x_label, ylabel=y_label)
    for text in ax.legend(frameon=False, fontsize=10).get_texts():
        text.set_color(INK)
    return fig


def learned(curves: Mapping[str, Sequence[Sequence[tuple]]], x_label: str, title: str = "") -> Figure:
    """The loss on validation data: a thin line for each seed, with one look for each way.

    Args:
        curves: {name: for each seed its points (steps or seconds, loss)}; a loss of None is a gap.

    Raises:
        ValueError: where there are no runs, or a run has no points.
    """
    if not curves or not all(runs and all(runs) for runs in curves.values()):
        raise ValueError(
            f"curves: {dict(curves)!r}; allowed: name -> for each seed (steps or seconds, loss), one or more"
        )
    looks = [{"linewidth": 1.3, "alpha": 0.85}] * len(curves)
    fig = _falling(curves, looks, x_label, "validation loss, nats a byte", title)
    seeds = max(map(len, curves.values()))
    times = "one seed" if seeds == 1 else f"{seeds} seeds at most"
    fig.alt = f"Lines, {title}, over {x_label}: the validation loss of {len(curves)} ways ({', '.join(curves)}), {times} each."
    return fig


def by_step(
    reserved: Sequence[int], allocated: Sequence[int], title: str = "", unit: str = "GiB", capacity: int | None = None
) -> Figure:
    """Reserved bytes by step, and above which of them allocated ones lie. capacity: bytes; a line across."""
    fig, ax = canvas(title, height=3.9)
    steps = range(1, len(reserved) + 1)
    high = units.to(max(*reserved, capacity or 0), unit)
    for values, name in ((reserved, "cached"), (allocated, "requested")):
        drawn = [units.to(value, unit) for value in values]
        look = part(name)
        ax.fill_between(steps, drawn, step="mid", color=look.color, hatch=look.hatch, edgecolor=CARD, linewidth=0)
        most = max(range(len(values)), key=values.__getitem__)
        said = f"{'reserved' if name == 'cached' else 'allocated'} {amount(values[most], unit)}"
        side = "right" if most > len(values) / 2 else "left"
        beside(ax, (most + 1, drawn[most]), said, (0, 5), ha=side, fontweight="bold", bbox=card())
    if capacity is not None:
        ax.axhline(units.to(capacity, unit), color=INK, linestyle="--", linewidth=1.5)
    ax.set(xlim=(0.5, len(reserved) + 0.5), ylim=(0, high * 1.15), xlabel="step", ylabel=unit)
    line = f"; the allocator has {amount(capacity, unit)}" if capacity is not None else ""
    fig.alt = (
        f"Bytes by step, {title}: of {len(reserved):,} steps the most reserved are {amount(max(reserved), unit)}, first in step "
        f"{reserved.index(max(reserved)) + 1:,}; the most allocated {amount(max(allocated), unit)}{line}."
    )
    return fig


def batches(steps: Sequence[tuple[int, int]], title: str = "", mark: int | None = None) -> Figure:
    """A bar for each batch: its tokens below, and above them its padding.

    Args:
        steps: (tokens of the texts, tokens with padding) of each batch, in the order of the steps.
        mark: the number of a step to name, from 1 on; by default the first of the largest.

    Raises:
        ValueError: no steps, a batch with more tokens than it has with padding, a step to mark that is not there.
    """
    if not steps or any(not 0 < text <= whole for text, whole in steps):
        raise ValueError(
            f"steps: {list(steps)[:3]!r} …; allowed: (tokens, tokens with padding), the second not smaller"
        )
    whole = [each for _, each in steps]
    place = whole.index(max(whole)) + 1 if mark is None else mark
    if not 1 <= place <= len(steps):
        raise ValueError(f"mark: {mark!r}; allowed: 1 to {len(steps)}")
    fig, ax = canvas(title, height=3.6)
    numbers = range(1, len(steps) + 1)
    texts = [text for text, _ in steps]
    ax.bar(numbers, texts, width=1.0, color=INK, linewidth=0)
    rest = [all_ - text for text, all_ in steps]
    ax.bar(numbers, rest, width=1.0, bottom=texts, color=MUTED, alpha=0.45, hatch="//", edgecolor="white", linewidth=0)
    text, most = steps[place - 1]
    said = f"step {place:,}: {most:,}, of them {text:,} of text"
    side = "right" if place > len(steps) / 2 else "left"
    beside(ax, (place, most), said, (0, 5), ha=side, fontweight="bold", bbox=card())
    ax.set(xlim=(0.5, len(steps) + 0.5), ylim=(0, max(whole) * 1.18), xlabel="step", ylabel="tokens of the batch")
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    look: dict[str, Any] = {"facecolor": MUTED, "alpha": 0.45, "hatch": "//", "edgecolor": "white"}
    _keys(fig, [Patch(label="text", facecolor=INK), Patch(label="padding", **look)])
    share = 1 - sum(texts) / sum(whole)
    fig.alt = (
        f"Bars, {title}: {len(steps):,} batches of {min(whole):,} to {max(whole):,} tokens; {share:.0%} of all tokens are padding. "
        f"Step {place:,} has {most:,} tokens, of them {text:,} of text."
    )
    return fig


_RULE: dict[str, Any] = {"markersize": 8, "markeredgecolor": INK, "linestyle": ""}
_RULES = _RULE | {"marker": "o", "markerfacecolor": INK}, _RULE | {"marker": "D", "markerfacecolor": "white"}
_NEAR = 0.1  # half the width of the band of errors


def off(rows: Mapping[str, Mapping[str, float]], title: str = "") -> Figure:
    """Errors of rules, a row for each label, with zero in the middle and a band that says what counts as near.

    Args:
        rows: {label: {rule: error}}, an error of 0.02 is two percent too high; two rules at most.

    Raises:
        ValueError: no rows, or more than two rules.
    """
    rules = list(dict.fromkeys(rule for errors in rows.values() for rule in errors))
    if not rules or len(rules) > len(_RULES):
        raise ValueError(f"rows: {len(rules)} rules; allowed: one or two, in one row or more")
    fig, ax = canvas(title, height=1.5 + 0.34 * len(rows))
    ax.axvspan(-100 * _NEAR, 100 * _NEAR, color=MUTED, alpha=0.15, linewidth=0)
    ax.axvline(0, color=INK, linewidth=1)
    for y, errors in enumerate(rows.values()):
        for rule, error in errors.items():
            ax.plot(100 * error, y, **_RULES[rules.index(rule)])
    named_rows(ax, rows)
    far = max([_NEAR, *(abs(error) for errors in rows.values() for error in errors.values())])
    ax.set(xlim=(-115 * far, 115 * far), xlabel="off by, in percent")
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:+.0f} %" if value else "0")
    _keys(fig, [Line2D([], [], label=rule, **look) for rule, look in zip(rules, _RULES, strict=False)])
    said = []
    for rule in rules:
        found = {label: errors[rule] for label, errors in rows.items() if rule in errors}
        low, high = min(found, key=found.__getitem__), max(found, key=found.__getitem__)
        said.append(f"{rule} from {found[low]:+.1%} ({low}) to {found[high]:+.1%} ({high})")
    fig.alt = f"Dots, {title}: {len(rows)} rows; {'; '.join(said)}. The band is {_NEAR:.0%} to either side."
    return fig
