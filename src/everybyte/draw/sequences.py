"""Heads swapped for tokens among GPUs, and what each switch leaves of a step."""

from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from .. import units
from ..common import checks
from .figures import canvas, card, words
from .palette import CARD, INK, MUTED
from .schematics import _SHADES, _box, _drawn

_WIDE, _BETWEEN = 3.2, 2.0


def swap(parts: int = 4, title: str = "Heads for tokens, and back") -> Figure:
    """DeepSpeed-Ulysses: who has which tokens of which heads before, during and after attention.

    Args:
        parts: GPUs, from 2 to 4.

    Raises:
        ValueError: another number.
    """
    checks.whole("swap", "parts", parts, 2, len(_SHADES))
    fig, ax = canvas(title, height=3.6)
    each = _WIDE / parts
    arrow: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 14, "color": INK}
    said = ("own tokens, all heads", "all tokens, own heads", "own tokens, all heads")
    for place, (by_tokens, below) in enumerate(zip((True, False, True), said, strict=True)):
        left = place * (_WIDE + _BETWEEN)
        for g in range(parts):
            for i in range(parts):
                x, y = (i, g) if by_tokens else (g, i)
                _box(ax, left + x * each, -(y + 1) * each, each, each, facecolor=_SHADES[g], linewidth=0.3)
            middle, down = (parts / 2, g + 0.5) if by_tokens else (g + 0.5, parts / 2)
            words(
                ax,
                left + middle * each,
                -down * each,
                f"GPU {g}",
                9,
                color=INK,
                bbox={"facecolor": CARD, "edgecolor": "none", "pad": 1.5},
            )
        words(ax, left + _WIDE / 2, 0.28, "heads", 9, color=MUTED)
        words(ax, left - 0.18, -_WIDE / 2, "tokens", 9, color=MUTED, rotation=90)
        words(ax, left + _WIDE / 2, -_WIDE - 0.3, below, 10)
        if place < 2:
            end, what = left + _WIDE, ("Q, K, V", "result")[place]
            ax.add_patch(FancyArrowPatch((end + 0.25, -_WIDE / 2), (end + _BETWEEN - 0.45, -_WIDE / 2), **arrow))
            words(ax, end + _BETWEEN / 2 - 0.1, -_WIDE / 2 + 0.3, what, 10)
            words(ax, end + _BETWEEN / 2 - 0.1, -_WIDE / 2 - 0.32, "all-to-all", 9, color=MUTED)
    words(ax, 1.5 * _WIDE + _BETWEEN, 0.62, "attention", 11)
    alt = (
        f"Schematic, {title}: three squares of tokens, downwards, by heads, across. In the first and the last each of {parts} GPUs has a "
        "band of tokens of all heads, in the middle one all tokens of a band of heads, where attention runs. Between them stand two "
        "all-to-alls: of Q, K and V there, of the result back."
    )
    return _drawn(fig, ax, (-0.5, 3 * _WIDE + 2 * _BETWEEN + 0.1), (-_WIDE - 0.6, 0.9), alt, aspect="equal")


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
    ax.set(
        xscale="log",
        xlim=(low, high),
        ylim=(len(amounts) - 0.4, -1.1),
        yticks=range(len(amounts)),
        yticklabels=list(amounts),
    )
    ax.tick_params(axis="y", labelsize=9, length=0)
    ax.xaxis.set_visible(False)
    for side in ("top", "right", "bottom"):
        ax.spines[side].set_visible(False)
    steps = "; ".join(f"{name}: {units.text(size)}" for name, size in amounts.items())
    against = "; ".join(f"{name} has {units.text(size)}" for name, size in (limits or {}).items())
    fig.alt = f"Bars, {title}. {steps}. {against}."
    return fig
