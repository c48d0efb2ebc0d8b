"""What recomputation does: blocks in time with what each has saved, and the bytes, with checkpointing and without."""

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from .. import units
from ..common import checks
from .figures import _keys, _look, _scaled, beside, canvases, card, named_rows
from .palette import GRID, INK
from .schematics import _SHADES, _box

#: Backward's time, in forwards of a block: two products for each one of forward.
_BACK = 2
_HIGH = 0.86


def recomputed(
    blocks: int = 4,
    saved: int = 16,
    kept: int = 1,
    again: float = 1.0,
    title: str = "Checkpointed, a block waits with its input alone, and runs again",
) -> Figure:
    """Blocks in time, forward and backward: above without checkpointing, in the middle with it, below the bytes of both.

    A box is as wide as its arithmetic, a band of activations as high as its bytes: what a block has saved from the
    moment it is saved until the block's backward has read it.

    >>> recomputed(4, saved=849 * 2**20, kept=32 * 2**20).alt.partition(": ")[2].partition(";")[0]
    'without checkpointing at most 3.32 GiB are saved for backward, when forward ends'

    Args:
        blocks: from 2 to 6. saved: bytes that a block saves without checkpointing, its output among them.
        kept: bytes of its input. again: the share of forward that runs again.

    Raises:
        ValueError: for another number of blocks, an input that is not smaller than what a block saves, a share outside (0, 1].
    """
    checks.whole("recomputed", "blocks", blocks, 2, 6)
    checks.whole("recomputed", "saved", saved, 2, 2**60)
    checks.whole("recomputed", "kept", kept, 1, saved - 1)
    if not 0 < again <= 1:
        raise ValueError(f"recomputed.again: {again!r}; allowed: above 0, at most 1")
    fig, axes = canvases(
        title, 4.4 + 0.56 * blocks, rows=3, sharex=True, gridspec_kw={"height_ratios": [blocks, blocks, 4.2]}
    )
    courses = {"without": _course(blocks, 0), "with": _course(blocks, again)}
    end = courses["with"][-1][2]
    for ax, (name, course) in zip(axes, courses.items(), strict=False):
        _lanes(ax, blocks, course, kept / saved if name == "with" else 1.0)
        ax.set_title(f"{name} checkpointing", loc="left", fontsize=10.5, color=INK)
    most = _curves(axes[2], courses, saved, kept)
    axes[2].set(xlim=(0, end * 1.01))
    keys = [
        Patch(label="forward", facecolor=_SHADES[3], edgecolor=INK),
        Patch(label="forward again", facecolor=_SHADES[2], edgecolor=INK, hatch=".."),
        Patch(label="backward", facecolor=_SHADES[0], edgecolor=INK),
        Patch(label="saved for backward", **_look("activations")),
    ]
    _keys(fig, keys)
    longer = end / courses["without"][-1][2] - 1
    fig.alt = (
        f"{blocks} blocks in time, forward and then backward: without checkpointing at most {units.text(most['without'])} are saved "
        f"for backward, when forward ends; with it each block keeps its input of {units.text(kept)}, runs again just before its "
        f"backward, and at most {units.text(most['with'])} are saved, for {longer:.0%} more arithmetic in the blocks. {title}."
    )
    return fig


def _curves(ax, courses, saved, kept):
    """Draw the bytes of both courses; the most of each, {name: bytes}."""
    curves = {name: _bytes(course, saved, kept, name == "with") for name, course in courses.items()}
    most = {name: max(amount for _, amount in curve) for name, curve in curves.items()}
    unit = units.largest(most["without"])
    for name, curve in curves.items():
        when, amounts = zip(*curve, strict=True)
        drawn = [_scaled(amount, unit) for amount in amounts]
        if name == "with":
            ax.fill_between(when, drawn, **_look("activations"))
        ax.plot(when, drawn, "-" if name == "with" else "--", color=INK, linewidth=1.6)
        top = max(range(len(drawn)), key=drawn.__getitem__)
        beside(ax, (when[top], drawn[top]), f"{name}: {units.text(most[name])}", (10, 4), 9.5, bbox=card(), zorder=6)
    ax.set(ylim=(0, _scaled(most["without"], unit) * 1.2), ylabel=f"saved, {unit}", xticks=[])
    ax.set_xlabel("time, in arithmetic; a block's backward is drawn as two of its forwards")
    return most


def _course(blocks, again):
    """(what runs, which block, when it ends) in order; nothing runs again where `again` is 0."""
    at, course = 0.0, []
    for block in range(blocks):
        at += 1
        course.append(("forward", block, at))
    for block in reversed(range(blocks)):
        if again:
            at += again
            course.append(("again", block, at))
        at += _BACK
        course.append(("backward", block, at))
    return course


def _lanes(ax, blocks, course, thin):
    """A lane for each block: its boxes, and behind them a band as high as what it has saved."""
    look = {"forward": {"facecolor": _SHADES[3]}, "again": {"facecolor": _SHADES[2], "hatch": ".."}}
    look["backward"] = {"facecolor": _SHADES[0]}
    start = 0.0
    ends = {(what, block): end for what, block, end in course}
    for block in range(blocks):
        first = ends["forward", block]
        last = ends["backward", block]
        whole = ends.get(("again", block), first)
        low = block + _HIGH / 2
        color = _look("activations")["facecolor"]
        ax.fill_between([first, whole], low - _HIGH * thin, low, facecolor=color, edgecolor=color, linewidth=1)
        ax.fill_between([whole, last - _BACK], low - _HIGH, low, facecolor=color, linewidth=0)
        ax.axhline(block + 0.5, color=GRID, linewidth=0.8)
    for what, block, end in course:
        _box(ax, start, block - _HIGH / 2, end - start, _HIGH, zorder=3, **look[what])
        start = end
    named_rows(ax, [f"block {n + 1}" for n in range(blocks)])
    ax.tick_params(length=0)
    ax.tick_params(axis="x", labelbottom=False)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    ax.grid(visible=False)


def _bytes(course, saved, kept, checkpointed):
    """(when, bytes saved for backward) at the corners of the curve. A recomputed block's output is not saved: it is the next one's input."""
    curve = [(0.0, 0)]
    for what, block, end in course:
        if what == "forward":
            amount = (block + 1) * (kept if checkpointed else saved)
        elif what == "again":
            amount = (block + 1) * kept + saved - kept
        else:
            amount = block * (kept if checkpointed else saved)
        curve.append((end, amount))
    return curve
