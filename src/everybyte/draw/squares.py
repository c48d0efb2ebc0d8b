"""A schematic of FlashAttention's tiles: which scores exist at one moment, and what is left of each row."""

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .. import checks
from .figures import canvas
from .palette import CARD, INK, MUTED, PARTS


def tiles_alt(tiles: int, title: str = "") -> str:
    """The text of `tiles`."""
    return (
        f"Schematic, {title}: the scores of queries, downwards, and keys, to the right, cut into {tiles} × {tiles} tiles. One tile "
        "alone exists, on the chip. The tiles to its left have been and are gone, those to its right are still to come, and those "
        "above the diagonal are masked. Beside each row of tiles stands what is written: its output, and one number a row, the log-sum-exp."
    )


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
            ax.add_patch(
                Rectangle(
                    (k, -q - 1), 0.92, 0.92, facecolor=PARTS["activations"].color if now else CARD, edgecolor=MUTED if masked else INK,
                    linewidth=0.5 if masked else 1, linestyle=":" if masked else "-",
                )
            )  # fmt: skip
            said = "on the\nchip" if now else "masked" if masked else "gone" if gone else "to come"
            ax.text(k + 0.46, -q - 0.54, said, ha="center", va="center", color=INK if now else MUTED, fontsize=8)
        for place, wide, what in ((tiles + 0.5, 1.4, "output"), (tiles + 2.1, 0.5, "lse")):
            written = q < row
            ax.add_patch(
                Rectangle((place, -q - 1), wide, 0.92, facecolor=CARD, edgecolor=INK, linestyle="-" if written else ":")
            )
            ax.text(
                place + wide / 2, -q - 0.54, what if written else "", ha="center", va="center", color=INK, fontsize=8
            )
    ax.text(tiles / 2, 0.25, "keys", ha="center", color=INK, fontsize=10)
    ax.text(-0.25, -tiles / 2, "queries", ha="center", va="center", rotation=90, color=INK, fontsize=10)
    ax.text(tiles + 1.5, 0.25, "written", ha="center", color=INK, fontsize=10)
    ax.set(xlim=(-0.6, tiles + 2.8), ylim=(-tiles - 0.2, 0.7), aspect="equal")
    ax.axis("off")
    fig.alt = tiles_alt(tiles, title)
    return fig
