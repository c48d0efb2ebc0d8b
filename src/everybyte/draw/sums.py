"""Bars that add up, one from where another ends: from tensors to the card, from one amount to another; and a peak by its switches."""

import textwrap
from collections.abc import Mapping
from itertools import accumulate

from matplotlib.figure import Figure

from .. import units
from ..common import checks
from .figures import _check_rows, _legend, _look, _scaled, amount, beside, canvas, card, named_rows, words
from .palette import INK, MUTED, PARTS
from .schematics import _SHADES

#: The axis begins at this share of the first bar, where it is more than half of the last.
BEGINS = 0.9


def chain(
    steps: Mapping[str, Mapping[str, float]],
    capacity: float | None = None,
    title: str = "",
    total: str = "the process",
    unit: str = "GiB",
    capacity_label: str = "the card",
) -> Figure:
    """A bar for each step of a sum, each from where the one before it ends, then their sum, and a line where the capacity ends.

    Args:
        steps: {what it adds: {part: bytes}}, from the first on; parts by their names in `palette.PARTS`.
        capacity: bytes; a dashed line across the bars. title: above. total: what the last bar is called.
        unit: of the axis, a key of `units.UNITS`.

    Raises:
        ValueError: no steps, an unknown part, a negative amount.
    """
    _check_rows(steps)
    sizes = {label: sum(parts.values()) for label, parts in steps.items()}
    whole, first = sum(sizes.values()), next(iter(sizes.values()))
    one = units.UNITS[unit]
    low = BEGINS * first // one * one if first > whole / 2 else 0.0
    wide = max(whole, capacity or 0) - low
    fig, ax = canvas(title, 1.5 + 0.42 * (len(steps) + 1))
    at = 0.0
    for y, (label, parts) in enumerate(steps.items()):
        at = _bar(ax, y, parts.items(), at, low, unit)
        text = units.signed(round(sizes[label])) if y else amount(sizes[label], unit)
        _end(ax, at + 0.012 * wide, y, text, unit, "normal")
    _bar(ax, len(steps), [part for parts in steps.values() for part in parts.items()], 0.0, low, unit)
    _end(ax, whole + 0.012 * wide, len(steps), amount(whole, unit), unit, "bold")
    if capacity is not None:
        ax.axvline(_scaled(capacity, unit), color=INK, linestyle="--", linewidth=1.5, zorder=4)
        place = {"xycoords": ("data", "axes fraction"), "ha": "right", "va": "bottom"}
        beside(ax, (_scaled(capacity, unit), 1), f"{capacity_label} {amount(capacity, unit)}", size=9.5, **place)
    named_rows(ax, [*sizes, total])
    _across(ax, low, low + 1.22 * wide, unit)
    _legend(fig, [name for name in PARTS if any(parts.get(name) for parts in steps.values())])
    fig.alt = _said(sizes, whole, capacity, title, total, unit, capacity_label)
    return fig


def _bar(ax, y, parts, at, low, unit):
    """Draw parts end to end from a place on, as far as they are right of `low`; where they end."""
    for name, size in parts:
        left = max(low, at)
        ax.barh(y, _scaled(max(0.0, at + size - left), unit), left=_scaled(left, unit), height=0.62, **_look(name))
        at += size
    return at


def _end(ax, x, y, text, unit, weight):
    words(ax, _scaled(x, unit), y, text, 9.5, ha="left", fontweight=weight, bbox=card(), zorder=5)


def _across(ax, low, high, unit):
    """Set an axis of bytes, which says where it begins if that is not 0."""
    start = f", from {amount(low, unit)} on" if low else ""
    ax.set(xlim=(_scaled(low, unit), _scaled(high, unit)), xlabel=f"{unit}{start}")


def _said(sizes, whole, capacity, title, total, unit, capacity_label):
    labels = list(sizes)
    inside = "; ".join(f"{units.signed(round(sizes[label]))} {label}" for label in labels[1:])
    said = f"{title}: {labels[0]} {amount(sizes[labels[0]], unit)}; {inside}; {total} {amount(whole, unit)}."
    if capacity is None:
        return said
    over = whole - capacity
    fits = f"{units.text(round(abs(over)))} {'beyond it' if over > 0 else 'to spare'}"
    return f"{said} {capacity_label[:1].upper()}{capacity_label[1:]} has {amount(capacity, unit)}: {fits}."


#: Terms that are drawn, of those that are a thousandth of the whole; the smaller ones are one. Letters of a line of their words.
TERMS, WIDE = 11, 52


def waterfall(explanation) -> Figure:
    """The terms of an `Explanation`, each from where the one before it ends; what is not explained is named so."""
    ends, rows = _terms(explanation)
    unit = units.largest(max(map(abs, ends)))
    low, high = _limits(ends)
    wide = high - low
    said = f"Predicted {units.text(ends[0])}, seen {units.text(ends[-1])}"
    fig, ax = canvas(said, 1.6 + 0.45 * (len(rows) + 2))
    bars = [("predicted", "requested", low, ends[0], units.text(ends[0]))]
    bars += [
        (name, part, start, start + size, units.signed(size))
        for (name, part, size), start in zip(rows, ends, strict=False)
    ]
    bars.append(("seen", "requested", low, ends[-1], units.text(ends[-1])))
    for y, (_, part, start, end, text) in enumerate(bars):
        ax.barh(y, _scaled(end - start, unit), left=_scaled(start, unit), height=0.62, **_look(part))
        weight = "bold" if y in (0, len(bars) - 1) else "normal"
        _end(ax, max(start, end) + 0.02 * wide, y, text, unit, weight)
    named_rows(ax, [_two_lines(name) for name, *_ in bars])
    ax.tick_params(axis="y", labelsize=9)
    _across(ax, low, high + 0.35 * wide, unit)
    looks = {part for _, part, *_ in bars}
    _legend(fig, [name for name in PARTS if name in looks])
    inside = "; ".join(f"{units.signed(size)} {name}" for name, _, size in rows)
    fig.alt = (
        f"{said}. From {explanation.names[0]} to {explanation.names[1]}: {inside or 'no difference'}. "
        f"Not explained: {units.text(explanation.unexplained)}."
    )
    return fig


def _terms(explanation):
    """(what is reached before and after each term, (words, part, bytes) of each)."""
    least = max(explanation.seen, explanation.predicted) / 1000
    large = sorted((row for row in explanation.rows if abs(row.bytes) >= least), key=lambda row: -abs(row.bytes))
    kept = {id(row) for row in large[:TERMS]}
    rows = [(row.said, row.part, row.bytes) for row in explanation.rows if id(row) in kept]
    rest = [row.bytes for row in explanation.rows if id(row) not in kept]
    if rest:
        rows.append((f"{len(rest)} smaller term{'s' * (len(rest) > 1)}", "other", sum(rest)))
    return list(accumulate((size for *_, size in rows), initial=explanation.predicted)), rows


def _limits(ends):
    """The ends of the axis: from 0 on, or from shortly before the least, where all are far from 0."""
    low, high = min(0, *ends), max(ends)
    if min(ends) > 0.5 * high:
        low = min(ends) - 0.3 * max(high - min(ends), 0.02 * high)
    return low, max(high, low + 1)


def _two_lines(name):
    lines = textwrap.wrap(name, WIDE)
    return "\n".join([lines[0], lines[1] + "…" * (len(lines) > 2)] if lines[1:] else lines)


def switches(
    amounts: dict[str, int], limits: dict[str, int] | None = None, title: str = "Each switch in turn"
) -> Figure:
    """A bar for each step of turning switches on, on a logarithmic axis, against GPUs' memory.

    Args:
        amounts: {what was turned on: peak, bytes}. limits: {GPU: bytes}, lines across.

    Raises:
        ValueError: without amounts, or one below 1 byte.
    """
    for name, size in amounts.items():
        checks.whole("switches", f"amounts[{name!r}]", size, 1, 2**60)
    if not amounts:
        raise ValueError("switches.amounts: none; allowed: one or more")
    fig, ax = canvas(title, 1.2 + 0.42 * len(amounts))
    for y, size in enumerate(amounts.values()):
        ax.barh(y, size, height=0.62, color=_SHADES[1], edgecolor=INK, linewidth=0.8)
        words(ax, size * 1.08, y, units.text(size), 9.5, ha="left")
    for name, size in (limits or {}).items():
        ax.axvline(size, color=INK, linestyle="--", linewidth=1)
        words(ax, size, -0.75, name, 9, color=MUTED, bbox=card())
    sizes = [*amounts.values(), *(limits or {}).values()]
    low, high = min(sizes) / 2, max(sizes) * 4
    ax.set(xscale="log", xlim=(low, high), ylim=(len(amounts) - 0.4, -1.1))
    ax.set_yticks(range(len(amounts)), list(amounts))
    ax.tick_params(axis="y", labelsize=9, length=0)
    ax.xaxis.set_visible(False)
    for side in ("top", "right", "bottom"):
        ax.spines[side].set_visible(False)
    steps = "; ".join(f"{name}: {units.text(size)}" for name, size in amounts.items())
    against = "; ".join(f"{name} has {units.text(size)}" for name, size in (limits or {}).items())
    fig.alt = f"Bars, {title}. {steps}. {against}."
    return fig
