"""Inside a block: its weights as squares of the model's width, and what each of its operations saves for backward."""

from collections.abc import Sequence
from math import ceil

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ..catalog import Model
from ..catalog.weights import weights
from ..common import checks
from .figures import amount, canvas, card, words
from .palette import INK, MUTED, ink_on, part
from .schematics import _box, _drawn

#: Narrower than this, in squares, or by letters of its words, a box has them above or beside it.
_NARROW, _LETTER = 0.7, 0.13


def squares(models: Sequence[Model], title: str = "One block, in squares of H × H") -> Figure:
    """The matrices of one block of each model, end to end, as a strip as tall as the model is wide: its length counts squares.

    Args:
        models: from one to four, dense.

    Raises:
        ValueError: for another number of models, or a mixture.
    """
    checks.whole("squares", "models, how many", len(models), 1, 4)
    strips = [_strip(m) for m in models]
    fig, ax = canvas(title, height=0.9 + 1.35 * len(models))
    longest, said = max(sum(wide for _, wide, _ in strip) for strip in strips), []
    for row, (m, strip) in enumerate(zip(models, strips, strict=True)):
        bottom, left = -2.1 * row, 0.0
        for name, wide, group in strip:
            look = part(group)
            _box(ax, left, bottom, wide, 1, facecolor=look.color, linewidth=1.4)
            for cut in range(1, ceil(wide)):
                for end in (0, 0.82):
                    ax.plot([left + cut] * 2, [bottom + end, bottom + end + 0.18], color=INK, linewidth=0.8)
            inside = wide > _NARROW
            at = bottom + (0.5 if inside else -0.25)
            words(ax, left + wide / 2, at, name, 10, color=ink_on(look.color) if inside else INK)
            left += wide
        words(ax, left + 0.15, bottom + 0.5, f"{left:g} squares", 11, ha="left", fontweight="bold")
        words(ax, 0, bottom + 1.2, f"{m.name}, H = {m.width:,}", 10.5, ha="left", va="baseline", color=MUTED)
        inside = ", ".join(f"{n} {w:g}" for n, w, _ in strip)
        said.append(f"{m.name}, H = {m.width:,}: {inside}, in all {left:g}")
    looks = [Patch(label=part(g).label, facecolor=part(g).color, edgecolor=INK) for g in ("attention", "mlp")]
    fig.legend(handles=looks, loc="outside lower left", ncols=2, frameon=False, fontsize=10)
    alt = f"Strips to scale, {title}; each matrix is one square high. " + "; ".join(said) + "."
    return _drawn(fig, ax, (-0.2, longest + 2.2), (-2.1 * (len(models) - 1) - 0.5, 1.7), alt, aspect="equal")


def _strip(m):
    """(name, other side over the width, part of the palette) of each matrix of a block."""
    checks.whole("squares", f"experts of {m.name}", m.experts, 0, 0)
    strip = []
    for w in weights(m):
        if w.count and w.group in ("block", "dense") and len(w.shape) == 2:
            name = w.name.removesuffix(".weight").rpartition(".")[2]
            sides = list(w.shape)
            sides.remove(m.width)
            strip.append((name, sides[0] / m.width, "attention" if w.name.startswith("attention") else "mlp"))
    return strip


def saves(rows: Sequence[tuple], title: str = "", unit: str = "B") -> Figure:
    """The operations of a block from top to bottom, and beside each, to scale, the tensors that it saves for backward.

    Args:
        rows: (operation, [(tensor, bytes)]), and why where it saves nothing. An operation without tensors saves nothing, and one called `add` adds what came
            before the branch. unit: of the bytes, as `draw.amount` has it.

    Raises:
        ValueError: for no rows, or where nothing is saved.
    """
    totals = [sum(size for _, size in tensors) for _, tensors, *_ in rows]
    if not any(totals):
        raise ValueError(f"saves.rows: {len(rows)} rows that save nothing; allowed: one that saves, and more")
    fig, ax = canvas(title, height=1.2 + 0.47 * len(rows))
    scale, look, entered = 7.0 / max(totals), part("activations"), 0.62
    arrow = {"arrowstyle": "-|>", "color": INK}
    for i, ((operation, tensors, *why), total) in enumerate(zip(rows, totals, strict=True)):
        y = -i
        if i:
            ax.annotate("", (0, y + 0.31), (0, y + 0.69), arrowprops=arrow | {"linewidth": 1})
        if operation == "add":
            ax.plot([0, -1.6, -1.6], [entered, entered, y], color=INK, linewidth=1.4)
            ax.annotate("", (-0.3, y), (-1.6, y), arrowprops=arrow | {"linewidth": 1.4})
            entered = y - 0.5
        words(ax, 0, y, "+" if operation == "add" else operation, 10, bbox=card(2.5, MUTED))
        left = 1.9
        for name, size in tensors:
            wide = size * scale
            _box(ax, left, y - 0.32, wide, 0.64, facecolor=look.color)
            if wide > _LETTER * len(name):
                words(ax, left + wide / 2, y, name, 9, color=ink_on(look.color))
            left += wide
        small = ", ".join(name for name, size in tensors if size * scale <= _LETTER * len(name))
        end = (*why, "nothing")[0] if not total else amount(total, unit) + (f"  ({small})" if small else "")
        words(ax, left + 0.12, y, end, 9.5, ha="left", color=INK if total else MUTED)
    whole = f"in all {amount(sum(totals), unit)}"
    words(ax, 1.9, -len(rows) + 0.1, whole, 11, ha="left", fontweight="bold")
    ax.plot([0, 0], [0.62, 0.31], color=INK, linewidth=1)
    said = "; ".join(
        f"{operation}: " + (", ".join(f"{n} {amount(s, unit)}" for n, s in tensors) or "nothing")
        for operation, tensors, *_ in rows
    )
    alt = f"What each operation of a block saves for backward, {title}: {said}; {whole}."
    return _drawn(fig, ax, (-2.0, 12.6), (-len(rows) - 0.4, 0.9), alt)
