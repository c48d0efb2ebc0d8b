"""What was said over what is so, a dot for each, on a logarithmic axis."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from .figures import _keys, canvas, named_rows
from .palette import CARD, INK, MUTED

#: How a kind of dot looks, in the order of the kinds: full, hollow, a triangle, a cross. Parts of memory keep the colors.
_MARKERS: tuple[dict[str, Any], ...] = (
    {"marker": "o", "markerfacecolor": MUTED}, {"marker": "o", "markerfacecolor": CARD},
    {"marker": "^", "markerfacecolor": INK}, {"marker": "X", "markerfacecolor": INK},
)  # fmt: skip
_BIN = 0.055  # of a power of ten: as wide as a dot
_STEP = 0.052  # of a row: as high as a dot


def ratios(rows: Mapping[str, Sequence[tuple[float, str, str]]], kinds: Sequence[str], title: str = "") -> Figure:
    """Ratios about one, a row of dots for each label, those that would cover each other stacked.

    Args:
        rows: {label: [(ratio, kind, words)]}, ratios above 0; the words stand beside the farthest dot to either side.
        kinds: up to four, each with a shape of its own.

    Raises:
        ValueError: no rows, a row without dots, a ratio that is not above 0, an unknown kind, too many kinds.
    """
    if len(kinds) > len(_MARKERS):
        raise ValueError(f"kinds: {len(kinds)} kinds; allowed: up to {len(_MARKERS)}")
    if not rows or not all(rows.values()):
        raise ValueError("rows: a row without dots; allowed: {label: [(ratio, kind, words)]}")
    for label, dots in rows.items():
        for ratio, kind, _ in dots:
            if not 0 < ratio < math.inf or kind not in kinds:
                raise ValueError(
                    f"rows[{label!r}]: {ratio!r}, {kind!r}; allowed: ratios above 0, kinds {', '.join(kinds)}"
                )
    fig, ax = canvas(title, height=1.5 + 1.15 * len(rows))
    for y, dots in enumerate(rows.values()):
        columns = {}
        for ratio, kind, _ in sorted(dots, key=lambda dot: (round(math.log10(dot[0]) / _BIN), kinds.index(dot[1]))):
            column = columns.setdefault(round(math.log10(ratio) / _BIN), [])
            column.append((ratio, kind))
        for column in columns.values():
            for place, (ratio, kind) in enumerate(column):
                height = y + _STEP * (place - (len(column) - 1) / 2)
                ax.plot(
                    ratio, height, markersize=6, markeredgecolor=INK, markeredgewidth=0.8, **_MARKERS[kinds.index(kind)]
                )
    far = sorted((ratio, y, words) for y, dots in enumerate(rows.values()) for ratio, _, words in dots)
    for ratio, y, words in (far[0], far[-1]):
        ax.annotate(textwrap.fill(words, 30), (ratio, y), xytext=(0, 8), textcoords="offset points", fontsize=10, color=INK,
                    ha="left" if ratio < 1 else "right", va="bottom")  # fmt: skip
    every = [ratio for ratio, _, _ in far]
    ends = math.floor(math.log2(min([*every, 0.5]) * 0.9)), math.ceil(math.log2(max([*every, 2]) * 1.1))
    ax.axvline(1, color=MUTED, linewidth=1, zorder=0)
    ax.set(xscale="log", xlim=(2.0 ** ends[0], 2.0 ** ends[1]))
    ax.set_xlabel("stated over computed")
    ax.set_xticks([2.0**k for k in range(ends[0], ends[1] + 1)])
    ax.xaxis.set_major_formatter(lambda v, _: f"{v:g} ×" if v >= 1 else f"1/{1 / v:g}")
    ax.xaxis.set_minor_locator(NullLocator())
    named_rows(ax, rows)
    ax.set_ylim(top=-0.6)  # room for the words above
    handles = [
        Line2D([], [], linestyle="", markersize=6, markeredgecolor=INK, markeredgewidth=0.8, label=kind, **look)
        for kind, look in zip(kinds, _MARKERS, strict=False)
    ]
    _keys(fig, handles)
    said = []
    for label, dots in rows.items():
        near = sum(1 / 1.1 <= ratio <= 1.1 for ratio, _, _ in dots)
        low, high = min(dots), max(dots)
        said.append(
            f"{label}, {len(dots)} numbers, {near} of them within a tenth, from {low[0]:.2g} times ({low[2]}) to {high[0]:.2g} times ({high[2]})"
        )
    fig.alt = f"Dots on a logarithmic axis, {title}: " + "; ".join(said) + "."
    return fig
