"""From one amount to another in steps: a bar for each term of the difference."""

import textwrap
from itertools import accumulate

from matplotlib.figure import Figure

from .. import units
from .figures import _legend, _look, _scaled, amount, canvas, card, named_rows, words
from .palette import PARTS

#: Terms that are drawn, of those that are a thousandth of the whole; the smaller ones are one. Letters of a line of their words.
TERMS, WIDE = 11, 52


def waterfall(explanation, title: str = "") -> Figure:
    """The terms of an `Explanation`, each from where the one before it ends; what is not explained is named so."""
    ends, rows = _terms(explanation)
    unit = units.largest(max(map(abs, ends)))
    low, high = _limits(ends)
    wide = high - low
    said = f"Predicted {units.text(ends[0])}, seen {units.text(ends[-1])}"
    fig, ax = canvas(title or said, 1.6 + 0.45 * (len(rows) + 2))
    bars = [("predicted", "requested", low, ends[0], units.text(ends[0]))]
    bars += [
        (name, part, start, start + size, units.signed(size))
        for (name, part, size), start in zip(rows, ends, strict=False)
    ]
    bars.append(("seen", "requested", low, ends[-1], units.text(ends[-1])))
    for y, (_, part, start, end, text) in enumerate(bars):
        ax.barh(y, _scaled(end - start, unit), left=_scaled(start, unit), height=0.62, **_look(part))
        look = {
            "ha": "left",
            "fontweight": "bold" if y in (0, len(bars) - 1) else "normal",
            "bbox": card(),
            "zorder": 5,
        }
        words(ax, _scaled(max(start, end) + 0.02 * wide, unit), y, text, 9.5, **look)
    named_rows(ax, [_two_lines(name) for name, *_ in bars])
    ax.tick_params(axis="y", labelsize=9)
    start = f", from {amount(low, unit)} on" if low else ""
    ax.set(xlim=(_scaled(low, unit), _scaled(high + 0.35 * wide, unit)), xlabel=f"{unit}{start}")
    looks = {part for _, part, *_ in bars}
    _legend(fig, [name for name in PARTS if name in looks])
    inside = "; ".join(f"{units.signed(size)} {name}" for name, _, size in rows)
    fig.alt = (
        f"{said}. From {explanation.names[0]} to {explanation.names[1]}: {inside or 'no difference'}. "
        f"Not explained: {units.text(explanation.unexplained)}."
    )
    return fig


def _terms(explanation):
    """(what is reached before and after each term, (words, part, bytes) of each)."""
    least = max(explanation.seen, explanation.predicted) / 1000
    large = sorted((row for row in explanation.rows if abs(row.bytes) >= least), key=lambda row: -abs(row.bytes))
    kept = {id(row) for row in large[:TERMS]}
    rows = [(row.said, row.part, row.bytes) for row in explanation.rows if id(row) in kept]
    rest = [row.bytes for row in explanation.rows if id(row) not in kept]
    if rest:
        rows.append((f"{len(rest)} smaller term{'s' * (len(rest) > 1)}", "other", sum(rest)))
    return list(accumulate((size for *_, size in rows), initial=explanation.predicted)), rows


def _limits(ends):
    """The ends of the axis: from 0 on, or from shortly before the least, where all are far from 0."""
    low, high = min(0, *ends), max(ends)
    if min(ends) > 0.5 * high:
        low = min(ends) - 0.3 * max(high - min(ends), 0.02 * high)
    return low, max(high, low + 1)


def _two_lines(name):
    lines = textwrap.wrap(name, WIDE)
    return "\n".join([lines[0], lines[1] + "…" * (len(lines) > 2)] if lines[1:] else lines)
