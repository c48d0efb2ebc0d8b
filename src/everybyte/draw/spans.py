"""Which tensors live while which operation runs: a bar for each tensor, as tall as it is large, and their sum below."""

import textwrap
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from .figures import _look, _on, amount, canvases, card, words
from .palette import INK, part


def lives(tensors: Mapping[str, tuple[str, int, int, float]], operations: Sequence[str], title: str = "") -> Figure:
    """A few tensors over a few operations: when each lives, how large it is, and what all of them take.

    Args:
        tensors: {label: (part, first operation, last operation, bytes)}, places in `operations`; drawn from the top down.
        operations: the operations' names, in order.

    Raises:
        ValueError: no tensors, no operations, a life that is not within the operations, an amount that is not positive.
    """
    if not tensors or not operations:
        raise ValueError(
            f"lives: {len(tensors)} tensors and {len(operations)} operations; allowed: one of each and more"
        )
    for label, (name, first, last, size) in tensors.items():
        part(name)
        if not 0 <= first <= last < len(operations) or not size > 0:
            raise ValueError(
                f"tensors[{label!r}]: from {first} to {last}, {size!r}; allowed: places from 0 to {len(operations) - 1}, in "
                "order, and an amount above 0"
            )
    totals = [sum(t[3] for t in tensors.values() if t[1] <= i <= t[2]) for i in range(len(operations))]
    rows, most = len(tensors), max(size for *_, size in tensors.values())
    ratios = [max(rows * 0.5, 1), 1.35]
    fig, (above, below) = canvases(title, 1.1 + sum(ratios), 2, sharex=True, height_ratios=ratios)
    for y, (_, (name, first, last, size)) in enumerate(tensors.items()):
        tall = 0.16 + 0.7 * size / most
        above.barh(y, last - first + 0.92, left=first - 0.46, height=tall, **_look(name))
        _on(above, (first + last) / 2, y, amount(size, "B"), part(name).color)
    above.set_yticks(range(rows), list(tensors))
    above.set_ylim(rows - 0.4, -0.6)
    above.grid(axis="y", visible=False)
    above.tick_params(axis="x", length=0)
    look = part(next(iter(tensors.values()))[0])
    for x, total in enumerate(totals):
        below.bar(x, total, width=0.92, facecolor=look.color, edgecolor="none", alpha=0.55)
        top = {"fontweight": "bold"} if total == max(totals) else {}
        words(below, x, total + 0.14 * max(totals), amount(total, "B"), 10, bbox=card(), **top)
    below.set_ylim(0, 1.3 * max(totals))
    below.set_yticks([])
    below.set_ylabel("together", color=INK)
    lines = textwrap.TextWrapper(12, break_long_words=False, break_on_hyphens=False)
    below.set_xticks(range(len(operations)), [lines.fill(name) for name in operations], fontsize=9)
    below.set_xlim(-0.5, len(operations) - 0.5)
    inside = "; ".join(
        f"{label} {amount(size, 'B')}, from {operations[first]} to {operations[last]}"
        for label, (_, first, last, size) in tensors.items()
    )
    highest = totals.index(max(totals))
    fig.alt = (
        f"Lives of tensors, {title}: {inside}. Together they take the most in {operations[highest]}: "
        f"{amount(totals[highest], 'B')}."
    )
    return fig
