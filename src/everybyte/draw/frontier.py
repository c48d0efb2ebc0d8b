"""Memory against time, many ways to run one thing: which of them nothing beats in both."""

from collections.abc import Sequence
from itertools import pairwise

from matplotlib.figure import Figure

from .. import units
from .figures import amount, canvas
from .palette import BLUE, INK, MUTED, VERMILION


def front_of(points: Sequence[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    """Of (name, seconds, bytes) those that no other beats in both, the fastest first."""
    kept: list[tuple[str, float, float]] = []
    for point in sorted(points, key=lambda one: (one[1], one[2])):
        if not kept or point[2] < kept[-1][2]:
            kept.append(point)
    return kept


def fronts(points: Sequence[tuple[str, float, float]], limit: float, title: str = "") -> Figure:
    """Peak memory over seconds: a dot for each way, a line through those that none beats in both, numbered, and what is usable.

    Args:
        points: (name, seconds, bytes) of each. limit: bytes that are usable.

    Raises:
        ValueError: no points, or an amount that is not above 0.
    """
    if not points or any(not (seconds > 0 and size > 0) for _, seconds, size in points):
        raise ValueError(f"points: {list(points)!r}; allowed: one or more, each (name, seconds, bytes), above 0")
    fig, ax = canvas(title, height=4.4)
    best = front_of(points)
    for name, seconds, size in points:
        fits = size <= limit
        ax.plot(
            seconds, units.to(size, "GiB"), marker="o" if fits else "x", markersize=7, linestyle="none",
            color=BLUE if fits else VERMILION, alpha=1 if (name, seconds, size) in best else 0.55,
        )  # fmt: skip
    ax.plot([s for _, s, _ in best], [units.to(b, "GiB") for *_, b in best], color=MUTED, linewidth=1.5, zorder=1)
    ax.axhline(units.to(limit, "GiB"), color=INK, linestyle="--", linewidth=1)
    ax.annotate(f"usable {amount(limit, 'GiB')}", (0.01, units.to(limit, "GiB")), xycoords=("axes fraction", "data"),
                xytext=(0, -12), textcoords="offset points", fontsize=9, color=INK)  # fmt: skip
    ax.margins(x=0.15)
    ax.set_ylim(0, 1.15 * units.to(max(limit, *(size for *_, size in points)), "GiB"))
    ax.set_xlabel("seconds a step at the data sheet's rates")
    ax.set_ylabel("peak, GiB")
    _number(fig, ax, [(seconds, units.to(size, "GiB")) for _, seconds, size in points], best)
    said = "; ".join(f"{name} {seconds:,.3g} s, {amount(size, 'GiB')}" for name, seconds, size in front_of(points))
    fig.alt = f"Dots, {title}, peak memory over seconds a step, {len(points)} in all, {amount(limit, 'GiB')} usable. Beaten by none: {said}."
    return fig


#: Sizes in points of type: of a digit, a line, and the distance from a dot.
_DIGIT, _LINE, _AWAY = 6.5, 10.0, 7.0


def _number(fig, ax, dots, named):
    """A number at each named dot, where it covers no dot, no other number and not the line; the names beside the axes."""
    said = "\n".join(f"{number}  {name}" for number, (name, *_) in enumerate(named, 1))
    ax.text(1.01, 1, said, transform=ax.transAxes, va="top", fontsize=9, color=INK, linespacing=1.5)
    fig.draw_without_rendering()  # settles the axes
    scale = 72 / fig.dpi
    front = [ax.transData.transform((seconds, units.to(size, "GiB"))) * scale for _, seconds, size in named]
    at = [ax.transData.transform(dot) * scale for dot in dots]
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in (*at, *_along(front))]
    for number, (x, y) in enumerate(front, 1):
        wide = _DIGIT * len(str(number))
        places = [(x + dx, y + dy, x + dx + wide, y + dy + _LINE) for dx, dy in _places(wide)]
        box = next((box for box in places if not any(_overlap(box, other) for other in taken)), places[0])
        ax.annotate(str(number), (named[number - 1][1], units.to(named[number - 1][2], "GiB")), xytext=(box[0] - x, box[1] - y + 1), textcoords="offset points",
                    fontsize=9, fontweight="bold", color=INK)  # fmt: skip
        taken.append(box)


def _along(corners):
    """Points of type along a line, from corner to corner, four apart or less."""
    for (x, y), (to_x, to_y) in pairwise(corners):
        steps = 1 + int(max(abs(to_x - x), abs(to_y - y)) // 4)
        yield from ((x + (to_x - x) * i / steps, y + (to_y - y) * i / steps) for i in range(steps))


def _places(wide):
    """Where a number may begin from its dot, in points: beside it, under it, above it, and at its corners."""
    beside, under, middle = (_AWAY, -_AWAY - wide), -_AWAY - _LINE, -wide / 2
    yield from ((dx, -_LINE / 2) for dx in beside)
    yield from ((middle, dy) for dy in (under, _AWAY))
    yield from ((dx, dy) for dx in beside for dy in (under, _AWAY))


def _overlap(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
