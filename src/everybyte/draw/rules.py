"""How far rules of thumb are from what they stand for."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .figures import _keys, canvas, named_rows
from .palette import INK, MUTED

_LOOKS: tuple[dict[str, Any], ...] = (
    {"marker": "o", "markerfacecolor": INK},
    {"marker": "D", "markerfacecolor": "white"},
)


def off(rows: Mapping[str, Mapping[str, float]], title: str = "", within: float = 0.1) -> Figure:
    """Errors of rules, a row for each label, with zero in the middle and a band that says what counts as near.

    Args:
        rows: {label: {rule: error}}, an error of 0.02 is two percent too high; two rules at most.
        within: half the width of the band.

    Raises:
        ValueError: no rows, or more than two rules.
    """
    rules = list(dict.fromkeys(rule for errors in rows.values() for rule in errors))
    if not rules or len(rules) > len(_LOOKS):
        raise ValueError(f"rows: {len(rules)} rules; allowed: one or two, in one row or more")
    fig, ax = canvas(title, height=1.5 + 0.34 * len(rows))
    ax.axvspan(-100 * within, 100 * within, color=MUTED, alpha=0.15, linewidth=0)
    ax.axvline(0, color=INK, linewidth=1)
    for y, errors in enumerate(rows.values()):
        for rule, error in errors.items():
            look = _LOOKS[rules.index(rule)]
            ax.plot(100 * error, y, markersize=8, markeredgecolor=INK, linestyle="", **look)
    named_rows(ax, rows)
    far = max([within, *(abs(error) for errors in rows.values() for error in errors.values())])
    ax.set(xlim=(-115 * far, 115 * far), xlabel="off by, in percent")
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:+.0f} %" if value else "0")
    looks = zip(rules, _LOOKS, strict=False)
    _keys(
        fig,
        [Line2D([], [], linestyle="", label=rule, markeredgecolor=INK, markersize=8, **look) for rule, look in looks],
    )
    said = []
    for rule in rules:
        found = {label: errors[rule] for label, errors in rows.items() if rule in errors}
        low, high = min(found, key=found.__getitem__), max(found, key=found.__getitem__)
        said.append(f"{rule} from {found[low]:+.1%} ({low}) to {found[high]:+.1%} ({high})")
    fig.alt = f"Dots, {title}: {len(rows)} rows; {'; '.join(said)}. The band is {within:.0%} to either side."
    return fig
