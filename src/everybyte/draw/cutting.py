"""A schematic of two matrices divided among GPUs: the first by columns, the second by rows."""

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ..common import checks
from .figures import canvas, words
from .palette import CARD, INK, MUTED, ink_on

#: A GPU each: no color, as colors mean parts of memory.
_SHADES = ("#77746C", "#A09D94", "#C6C3BA", "#E9E6DD")
_GAP = 0.5


def splits(parts: int = 4, title: str = "Columns, then rows") -> Figure:
    """X A = Y with A cut by columns, then Y B = Z with B cut by rows: what each GPU has is of one shade.

    Args:
        parts: GPUs, from 2 to 4.

    Raises:
        ValueError: another number.
    """
    checks.whole("splits", "parts", parts, 2, len(_SHADES))
    fig, ax = canvas(title, height=3.4)
    tokens, narrow, wide, x = 1.6, 1.2, 2.4, 0.0
    pieces = (
        ("X", "S × H, on all", tokens, narrow, "", "×"), ("A", "H × 4H, by columns", narrow, wide, "columns", "="),
        ("Y", "S × 4H, a part each", tokens, wide, "columns", "×"), ("B", "4H × H, by rows", wide, narrow, "rows", "="),
        ("Z", "S × H, to be summed", tokens, narrow, "sums", ""),
    )  # fmt: skip
    for name, shape, height, width, cut, sign in pieces:
        shift = 0.12 * (parts - 1) if cut == "sums" else 0
        for i in range(parts if cut else 1):
            shade = _SHADES[i] if cut else CARD
            place, size = _piece(x, height, width, cut, i, parts)
            ax.add_patch(Rectangle(place, *size, facecolor=shade, edgecolor=INK, linewidth=1))
            if cut in ("columns", "rows"):
                middle = place[0] + size[0] / 2, place[1] + size[1] / 2
                words(ax, *middle, str(i), 11, color=ink_on(shade))
        words(ax, x + (width + shift) / 2, height / 2 + shift + 0.12, name, 13, va="bottom")
        words(ax, x + (width + shift) / 2, -1.35, shape, va="top", color=MUTED)
        words(ax, x + width + shift + _GAP / 2, 0, sign, 15)
        x += width + shift + _GAP + (0.25 if name in "XB" else 0)
    ax.set(xlim=(-0.3, x - _GAP + 0.1), ylim=(-1.8, 1.75), aspect="equal")
    ax.axis("off")
    fig.alt = (
        f"Schematic, {title}: X of S rows and H columns times A, cut by columns among {parts} GPUs, gives {parts} blocks of "
        f"columns of Y, one on each GPU; Y times B, cut by rows among the same {parts} GPUs, gives {parts} partial sums of Z, "
        "each as large as Z, which the GPUs add up. Nothing is sent between the two products."
    )
    return fig


def _piece(x, height, width, cut, i, parts):
    """(left, bottom), (width, height) of one GPU's part."""
    if cut == "columns":
        return (x + i * width / parts, -height / 2), (width / parts, height)
    if cut == "rows":
        return (x, height / 2 - (i + 1) * height / parts), (width, height / parts)
    shift = 0.12 * i if cut == "sums" else 0
    return (x + shift, -height / 2 + shift), (width, height)
