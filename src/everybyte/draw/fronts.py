"""Memory against time, many ways to run one thing: which of them nothing beats in both."""

from collections.abc import Sequence

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


def fronts_alt(points: Sequence[tuple[str, float, float]], limit: float, title: str = "") -> str:
    """The text of `fronts`: the front, and how many points there are."""
    said = "; ".join(f"{name} {seconds:,.3g} s, {amount(size, 'GiB')}" for name, seconds, size in front_of(points))
    return f"Dots, {title}, peak memory over seconds a step, {len(points)} in all, {amount(limit, 'GiB')} usable. Beaten by none: {said}."


def fronts(points: Sequence[tuple[str, float, float]], limit: float, title: str = "") -> Figure:
    """Peak memory over seconds: a dot for each way, a line through those that none beats in both, and what is usable.

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
    for number, (name, seconds, size) in enumerate(best[:5]):
        ax.annotate(
            name, (seconds, units.to(size, "GiB")), textcoords="offset points", xytext=(8, 7 if number % 2 else -15),
            fontsize=9, color=INK,
        )  # fmt: skip
    ax.margins(x=0.15)
    ax.set_ylim(0, 1.15 * units.to(max(limit, *(size for *_, size in points)), "GiB"))
    ax.set_xlabel("seconds a step at the data sheet's rates")
    ax.set_ylabel("peak, GiB")
    fig.alt = fronts_alt(points, limit, title)
    return fig
