"""From tensors to the card: what each layer between them adds, and where the card ends."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from .. import units
from .figures import _check_rows, _legend, _look, _scaled, amount, beside, canvas, card, named_rows, words
from .palette import INK, PARTS

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
    start = f", from {amount(low, unit)} on" if low else ""
    ax.set(xlim=(_scaled(low, unit), _scaled(low + 1.22 * wide, unit)), xlabel=f"{unit}{start}")
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


def _said(sizes, whole, capacity, title, total, unit, capacity_label):
    labels = list(sizes)
    inside = "; ".join(f"{units.signed(round(sizes[label]))} {label}" for label in labels[1:])
    said = f"{title}: {labels[0]} {amount(sizes[labels[0]], unit)}; {inside}; {total} {amount(whole, unit)}."
    if capacity is None:
        return said
    over = whole - capacity
    fits = f"{units.text(round(abs(over)))} {'beyond it' if over > 0 else 'to spare'}"
    return f"{said} {capacity_label[:1].upper()}{capacity_label[1:]} has {amount(capacity, unit)}: {fits}."
