"""A schematic of FlashAttention's tiles: which scores exist at one moment, and what is left of each row."""

from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ..common import checks
from .figures import canvas, words
from .palette import CARD, INK, MUTED, PARTS


def tiles(
    tiles: int = 5, title: str = "One tile of scores exists at a time; a row leaves its output and one number"
) -> Figure:
    """The square of scores in tiles, at one moment of forward.

    Args:
        tiles: in each direction, from 3 to 8.

    Raises:
        ValueError: another number.
    """
    checks.whole("tiles", "tiles", tiles, 3, 8)
    fig, ax = canvas(title, height=3.6)
    row, column = tiles - 2, tiles // 2
    for q in range(tiles):
        for k in range(tiles):
            now, masked = (q, k) == (row, column), k > q
            gone = not masked and (q, k) < (row, column)
            edge: dict[str, Any] = (
                {"edgecolor": MUTED, "linewidth": 0.5, "linestyle": ":"}
                if masked
                else {"edgecolor": INK, "linewidth": 1}
            )
            ax.add_patch(
                Rectangle((k, -q - 1), 0.92, 0.92, facecolor=PARTS["activations"].color if now else CARD, **edge)
            )
            said = "on the\nchip" if now else "masked" if masked else "gone" if gone else "to come"
            words(ax, k + 0.46, -q - 0.54, said, 8, color=INK if now else MUTED)
        for place, wide, what in ((tiles + 0.5, 1.4, "output"), (tiles + 2.1, 0.5, "lse")):
            written = q < row
            frame: dict[str, Any] = {"facecolor": CARD, "edgecolor": INK, "linestyle": "-" if written else ":"}
            ax.add_patch(Rectangle((place, -q - 1), wide, 0.92, **frame))
            words(ax, place + wide / 2, -q - 0.54, what if written else "", 8)
    words(ax, tiles / 2, 0.25, "keys", 10, va="baseline")
    words(ax, -0.25, -tiles / 2, "queries", 10, rotation=90)
    words(ax, tiles + 1.5, 0.25, "written", 10, va="baseline")
    ax.set(xlim=(-0.6, tiles + 2.8), ylim=(-tiles - 0.2, 0.7), aspect="equal")
    ax.axis("off")
    fig.alt = (
        f"Schematic, {title}: the scores of queries, downwards, and keys, to the right, cut into {tiles} × {tiles} tiles. One tile "
        "alone exists, on the chip. The tiles to its left have been and are gone, those to its right are still to come, and those "
        "above the diagonal are masked. Beside each row of tiles stands what is written: its output, and one number a row, the log-sum-exp."
    )
    return fig
