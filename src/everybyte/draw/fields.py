"""Number formats as rows of bits: sign, exponent, mantissa."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ..common import checks
from .figures import canvas, named_rows, words
from .palette import BLUE, CARD, GRAY, GREEN

#: What a field of bits is called, its color, its hatch: a figure's own, since no field is a part of memory.
FIELDS = (("sign", GRAY, "--"), ("exponent", GREEN, "//"), ("mantissa", BLUE, ""))


def bit_fields(formats: Mapping[str, tuple[int, int]], title: str = "") -> Figure:
    """A row of boxes for each format, a box for each bit: its sign, exponent and mantissa.

    Args:
        formats: name -> (exponent bits, mantissa bits), from above.

    Raises:
        ValueError: where there is no format, or a number of bits is not from 0 to 64.
    """
    if not formats:
        raise ValueError("bit_fields.formats: none; allowed: at least one")
    for name, pair in formats.items():
        for bits in pair:
            checks.whole("bit_fields", name, bits, 0, 64)
    fig, ax = canvas(title, height=0.55 * len(formats) + 1.1)
    widest = max(1 + e + m for e, m in formats.values())
    for row, (e, m) in enumerate(formats.values()):
        start = 0
        for (field, color, hatch), bits in zip(FIELDS, (1, e, m), strict=True):
            for bit in range(start, start + bits):
                look = {"facecolor": color, "hatch": hatch, "edgecolor": CARD, "linewidth": 1}
                ax.add_patch(Rectangle((bit, row - 0.35), 1, 0.7, **look))
            if bits > 1:
                box = {"facecolor": CARD, "edgecolor": "none", "pad": 1.5}
                words(ax, start + bits / 2, row, f"{field} {bits}" if bits > 6 else str(bits), 10, bbox=box)
            start += bits
    ax.set(xlim=(-0.2, widest + 0.2), xlabel="bits: sign (gray), exponent (green), mantissa (blue)")
    named_rows(ax, formats)
    ax.grid(visible=False)
    said = "; ".join(
        f"{name} 1 sign, {e} exponent, {m} mantissa bits, {1 + e + m} in all" for name, (e, m) in formats.items()
    )
    fig.alt = f"Rows of bits, {title}: {said}."
    return fig
