"""A schematic of a ring of GPUs: which pieces of a sequence each has, and what goes around."""

from math import cos, pi, sin

from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch

from ..common import checks
from .figures import canvas, words
from .palette import CARD, INK, MUTED


def ring(parts: int = 4, title: str = "Queries stay, keys and values go around") -> Figure:
    """GPUs in a ring, each with its two pieces of the sequence.

    Args:
        parts: GPUs, from 2 to 8.

    Raises:
        ValueError: another number.
    """
    checks.whole("ring", "parts", parts, 2, 8)
    fig, ax = canvas(title, height=4.2)
    places = [(1.5 * sin(2 * pi * r / parts), 1.5 * cos(2 * pi * r / parts)) for r in range(parts)]
    for r, (x, y) in enumerate(places):
        ax.add_patch(Circle((x, y), 0.46, facecolor=CARD, edgecolor=INK, linewidth=1))
        words(ax, x, y + 0.12, f"GPU {r}", 10)
        words(ax, x, y - 0.14, f"pieces {r}, {2 * parts - 1 - r}", 9, color=MUTED)
        arrow = FancyArrowPatch(
            (x, y), places[(r + 1) % parts], shrinkA=36, shrinkB=36, arrowstyle="-|>", mutation_scale=14, color=INK,
            connectionstyle="arc3,rad=-0.15",
        )  # fmt: skip
        ax.add_patch(arrow)
    words(ax, 0, 0, "K and V", 12)
    ax.set(xlim=(-2.6, 2.6), ylim=(-2.2, 2.2), aspect="equal")
    ax.axis("off")
    fig.alt = (
        f"Schematic, {title}: {parts} GPUs in a ring. The sequence is cut into {2 * parts} pieces; GPU r has the pieces r and "
        f"{2 * parts - 1} - r. Queries stay; keys and values go to the next GPU, {parts - 1} times."
    )
    return fig
