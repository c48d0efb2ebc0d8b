"""The batches of an epoch: what is text in them, and what is padding."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from .figures import _keys, beside, canvas, card
from .palette import INK, MUTED


def batches(steps: Sequence[tuple[int, int]], title: str = "", mark: int | None = None) -> Figure:
    """A bar for each batch: its tokens below, and above them its padding.

    Args:
        steps: (tokens of the texts, tokens with padding) of each batch, in the order of the steps.
        mark: the number of a step to name, from 1 on; by default the first of the largest.

    Raises:
        ValueError: no steps, a batch with more tokens than it has with padding, a step to mark that is not there.
    """
    if not steps or any(not 0 < text <= whole for text, whole in steps):
        raise ValueError(
            f"steps: {list(steps)[:3]!r} …; allowed: (tokens, tokens with padding), the second not smaller"
        )
    whole = [each for _, each in steps]
    place = whole.index(max(whole)) + 1 if mark is None else mark
    if not 1 <= place <= len(steps):
        raise ValueError(f"mark: {mark!r}; allowed: 1 to {len(steps)}")
    fig, ax = canvas(title, height=3.6)
    numbers = range(1, len(steps) + 1)
    texts = [text for text, _ in steps]
    ax.bar(numbers, texts, width=1.0, color=INK, linewidth=0)
    rest = [all_ - text for text, all_ in steps]
    ax.bar(numbers, rest, width=1.0, bottom=texts, color=MUTED, alpha=0.45, hatch="//", edgecolor="white", linewidth=0)
    text, most = steps[place - 1]
    said = f"step {place:,}: {most:,}, of them {text:,} of text"
    side = "right" if place > len(steps) / 2 else "left"
    beside(ax, (place, most), said, (0, 5), ha=side, fontweight="bold", bbox=card())
    ax.set(xlim=(0.5, len(steps) + 0.5), ylim=(0, max(whole) * 1.18), xlabel="step", ylabel="tokens of the batch")
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    look: dict[str, Any] = {"facecolor": MUTED, "alpha": 0.45, "hatch": "//", "edgecolor": "white"}
    _keys(fig, [Patch(label="text", facecolor=INK), Patch(label="padding", **look)])
    share = 1 - sum(texts) / sum(whole)
    fig.alt = (
        f"Bars, {title}: {len(steps):,} batches of {min(whole):,} to {max(whole):,} tokens; {share:.0%} of all tokens are padding. "
        f"Step {place:,} has {most:,} tokens, of them {text:,} of text."
    )
    return fig
