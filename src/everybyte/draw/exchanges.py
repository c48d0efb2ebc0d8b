"""Experts on several GPUs: the rows that each GPU sends, and how many come to whom."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from ..common import checks
from .figures import canvas, words
from .palette import CARD, INK, MUTED, part
from .schematics import _box, _drawn

_GAP, _WIDE, _TALL = 0.5, 2.4, 1.5


def exchange(
    rows: Sequence[Sequence[int]], gpus: int, title: str = "Each row goes to the GPU of its expert, and comes back"
) -> Figure:
    """Rows of tokens above, experts below: an arrow is as thick as the rows that it sends, an expert as tall as those that come.

    Args:
        rows: of each GPU, how many it sends to each expert. gpus: that divide the experts, side by side; from 2 to 8.

    Raises:
        ValueError: for another number of GPUs, or experts that they do not divide.
    """
    checks.whole("exchange", "gpus", gpus, 2, 8)
    checks.whole("exchange", "rows, how many", len(rows), gpus, gpus)
    experts = len(rows[0])
    for sent in rows:
        checks.whole("exchange", "rows, experts", len(sent), experts, experts)
    if not experts or experts % gpus:
        raise ValueError(f"exchange.rows: {experts} experts on {gpus} GPUs; allowed: a multiple of {gpus}")
    fig, ax = canvas(title, height=4.4)
    each = experts // gpus
    came = [sum(sent[e] for sent in rows) for e in range(experts)]
    most = max(*came, 1)
    widest = max(sum(sent[g * each : (g + 1) * each]) for sent in rows for g in range(gpus)) or 1
    arrow: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 9, "color": MUTED, "alpha": 0.8, "zorder": 0}
    for g, sent in enumerate(rows):
        left = g * (_WIDE + _GAP)
        _box(ax, left, 3.6, _WIDE, 0.7, facecolor=part("activations").color)
        words(ax, left + _WIDE / 2, 3.95, f"GPU {g}: {sum(sent):,} rows", 9, color=INK)
        for to in range(gpus):
            thick = 5 * sum(sent[to * each : (to + 1) * each]) / widest
            if thick:
                ends = (left + _WIDE / 2, 3.58), (to * (_WIDE + _GAP) + _WIDE / 2, 2.0)
                ax.add_patch(FancyArrowPatch(*ends, linewidth=thick, **arrow))
        _box(ax, left, 0, _WIDE, 1.95, facecolor=CARD)
        for i in range(each):
            wide, e = _WIDE / each, g * each + i
            tall = _TALL * came[e] / most
            look = part("activations")
            _box(ax, left + (i + 0.1) * wide, 0, 0.8 * wide, tall, facecolor=look.color, hatch=look.hatch)
        here = sum(came[g * each : (g + 1) * each])
        words(ax, left + _WIDE / 2, 1.75, f"{here:,} come", 9)
        words(
            ax,
            left + _WIDE / 2,
            -0.22,
            f"experts {g * each} to {(g + 1) * each - 1}" if each > 1 else f"expert {g}",
            9,
            color=MUTED,
        )
    said = "; ".join(
        f"GPU {g} sends {sum(sent):,} and gets {sum(came[g * each : (g + 1) * each]):,}" for g, sent in enumerate(rows)
    )
    alt = f"Schematic, {title}: {gpus} GPUs with {each} of {experts} experts each, arrows from every GPU to every GPU. Rows: {said}."
    return _drawn(fig, ax, (-0.2, gpus * (_WIDE + _GAP) - _GAP + 0.2), (-0.5, 4.4), alt)
