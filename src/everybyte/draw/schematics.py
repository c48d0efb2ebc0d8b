"""Schematics: divided matrices, tiles of attention, chunks with a state, bits of formats, patches, a schedule."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Patch, Polygon, Rectangle

from .. import units
from ..ask.schedules import Turn, flying
from ..common import checks
from .figures import canvas, card, named_rows, words
from .palette import ACTIONS, BLUE, CARD, GRAY, GREEN, INK, MUTED, PARTS, ink_on, part


def _box(ax, x, y, wide, high, **look):
    frame: dict[str, Any] = {"facecolor": CARD, "edgecolor": INK, "linewidth": 1}
    ax.add_patch(Rectangle((x, y), wide, high, **frame | look))


def _arrow(ax, start, end, head, color=INK, **more):
    """Draw an arrow. head: its size. more: matplotlib's further arguments."""
    ax.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=head, color=color, **more))


def _drawn(fig, ax, across, up, alt, **more):
    """The schematic without axes, with these limits and its alternative text."""
    ax.set(xlim=across, ylim=up, **more)
    ax.axis("off")
    fig.alt = alt
    return fig


#: A shade for each GPU, without color, as colors mean parts of memory.
_SHADES = ("#77746C", "#A09D94", "#C6C3BA", "#E9E6DD")
#: X A = Y, Y B = Z: name, shape in words, drawn rows and columns, how it is divided, and the sign after it.
_PRODUCTS = (
    ("X", "S × H, on all", 1.6, 1.2, "", "×"), ("A", "H × 4H, by columns", 1.2, 2.4, "columns", "="),
    ("Y", "S × 4H, a part each", 1.6, 2.4, "columns", "×"), ("B", "4H × H, by rows", 2.4, 1.2, "rows", "="),
    ("Z", "S × H, to be summed", 1.6, 1.2, "sums", ""),
)  # fmt: skip
_SHIFT, _BETWEEN = 0.12, 0.5


def splits(parts: int = 4, title: str = "Columns, then rows") -> Figure:
    """X A = Y with A divided by columns, then Y B = Z with B divided by rows; a shade for each GPU.

    Args:
        parts: GPUs, from 2 to 4.

    Raises:
        ValueError: another number.
    """
    checks.whole("splits", "parts", parts, 2, len(_SHADES))
    fig, ax = canvas(title, height=3.4)
    x = 0.0
    for name, shape, height, width, cut, sign in _PRODUCTS:
        for i in range(parts if cut else 1):
            shade = _SHADES[i] if cut else CARD
            left, bottom, wide, high = x, -height / 2, width, height
            if cut == "columns":
                left, wide = x + i * width / parts, width / parts
            elif cut == "rows":
                bottom, high = height / 2 - (i + 1) * height / parts, height / parts
            elif cut == "sums":
                left, bottom = x + _SHIFT * i, -height / 2 + _SHIFT * i
            _box(ax, left, bottom, wide, high, facecolor=shade)
            if cut in ("columns", "rows"):
                words(ax, left + wide / 2, bottom + high / 2, str(i), 11, color=ink_on(shade))
        shift = _SHIFT * (parts - 1) if cut == "sums" else 0
        words(ax, x + (width + shift) / 2, height / 2 + shift + 0.12, name, 13, va="bottom")
        words(ax, x + (width + shift) / 2, -1.35, shape, va="top", color=MUTED)
        words(ax, x + width + shift + _BETWEEN / 2, 0, sign, 15)
        x += width + shift + _BETWEEN + (0.25 if name in "XB" else 0)
    alt = (
        f"Schematic, {title}: X of S rows and H columns times A, cut by columns among {parts} GPUs, gives {parts} blocks of "
        f"columns of Y, one on each GPU; Y times B, cut by rows among the same {parts} GPUs, gives {parts} partial sums of Z, "
        "each as large as Z, which the GPUs add up. Nothing is sent between the two products."
    )
    return _drawn(fig, ax, (-0.3, x - _BETWEEN + 0.1), (-1.8, 1.75), alt, aspect="equal")


def tiles() -> Figure:
    """FlashAttention's tiles of scores at one moment of forward: which exist, and what is kept of each row."""
    tiles, title = 5, "One tile of scores exists at a time; a row leaves its output and one number"
    fig, ax = canvas(title, height=3.6)
    now = tiles - 2, tiles // 2
    for q in range(tiles):
        for k in range(tiles):
            said, look, ink = "gone" if (q, k) < now else "to come", {}, MUTED
            if k > q:
                said, look = "masked", {"edgecolor": MUTED, "linewidth": 0.5, "linestyle": ":"}
            elif (q, k) == now:
                said, look, ink = "on the\nchip", {"facecolor": PARTS["activations"].color}, INK
            _box(ax, k, -q - 1, 0.92, 0.92, **look)
            words(ax, k + 0.46, -q - 0.54, said, 8, color=ink)
        for place, wide, what in ((tiles + 0.5, 1.4, "output"), (tiles + 2.1, 0.5, "lse")):
            written = q < now[0]
            _box(ax, place, -q - 1, wide, 0.92, linestyle="-" if written else ":")
            words(ax, place + wide / 2, -q - 0.54, what if written else "", 8)
    words(ax, tiles / 2, 0.25, "keys", 10, va="baseline")
    words(ax, -0.25, -tiles / 2, "queries", 10, rotation=90)
    words(ax, tiles + 1.5, 0.25, "written", 10, va="baseline")
    alt = (
        f"Schematic, {title}: the scores of queries, downwards, and keys, to the right, cut into {tiles} × {tiles} tiles. One tile "
        "alone exists, on the chip. The tiles to its left have been and are gone, those to its right are still to come, and those "
        "above the diagonal are masked. Beside each row of tiles stands what is written: its output, and one number a row, the log-sum-exp."
    )
    return _drawn(fig, ax, (-0.6, tiles + 2.8), (-tiles - 0.2, 0.7), alt, aspect="equal")


def chunks(parts: int = 4) -> Figure:
    """A sequence cut into chunks: a square of pairs in each, and the state that goes on to the next.

    Args:
        parts: chunks, from 2 to 6.

    Raises:
        ValueError: another number.
    """
    checks.whole("chunks", "parts", parts, 2, 6)
    title = "Squares within chunks, a state from one to the next"
    fig, ax = canvas(title, height=3.4)
    for i in range(parts):
        _box(ax, 2 * i, 1.2, 1.2, 1.2, facecolor=PARTS["activations"].color)
        ax.add_patch(Polygon([(2 * i, 2.4), (2 * i + 1.2, 2.4), (2 * i + 1.2, 1.2)], facecolor=CARD, edgecolor=INK))
        words(ax, 2 * i + 0.6, 2.55, f"chunk {i}", 10, va="baseline")
        words(ax, 2 * i + 0.42, 1.55, "Q × Q", 9, color=ink_on(PARTS["activations"].color))
        words(ax, 2 * i + 0.6, 0.95, "Q tokens", 8, color=MUTED)
    for i in range(parts + 1):
        _box(ax, 2 * i - 0.8, -0.3, 0.6, 0.6, facecolor=PARTS["cache"].color)
        words(ax, 2 * i - 0.5, 0, f"state\n{i}", 8, color=ink_on(PARTS["cache"].color))
        if i < parts:
            _arrow(ax, (2 * i - 0.2, 0), (2 * i + 1.2, 0), 12)
            _arrow(ax, (2 * i - 0.45, 0.3), (2 * i, 1.2), 12)
    words(ax, parts - 0.5, -0.55, "a state has the same size after any number of tokens", 9, va="top", color=MUTED)
    alt = (
        f"Schematic, {title}: a sequence cut into {parts} chunks of Q tokens. Within each chunk there is a square of Q × Q pairs, half "
        f"of it masked. A state goes from chunk to chunk, {parts + 1} of them in all, each of the same size; each chunk reads the "
        "one before it."
    )
    return _drawn(fig, ax, (-1.1, 2 * parts), (-1.0, 2.9), alt, aspect="equal")


#: A field of bits: its name, color and hatch, which are this figure's own, since no field is a part of memory.
FIELDS = (("sign", GRAY, "--"), ("exponent", GREEN, "//"), ("mantissa", BLUE, ""))


def bit_fields(formats: Mapping[str, tuple[int, int]], title: str = "") -> Figure:
    """A row of boxes for each format, with a box for each bit of sign, exponent and mantissa.

    Args:
        formats: {name: (exponent bits, mantissa bits)}, from the top down.

    Raises:
        ValueError: for no formats, or a number of bits that is not from 0 to 64.
    """
    if not formats:
        raise ValueError("bit_fields.formats: none; allowed: at least one")
    for name, pair in formats.items():
        for bits in pair:
            checks.whole("bit_fields", name, bits, 0, 64)
    fig, ax = canvas(title, height=0.55 * len(formats) + 1.1)
    for row, pair in enumerate(formats.values()):
        start = 0
        for (field, color, hatch), bits in zip(FIELDS, (1, *pair), strict=True):
            for bit in range(start, start + bits):
                _box(ax, bit, row - 0.35, 1, 0.7, facecolor=color, hatch=hatch, edgecolor=CARD)
            if bits > 1:
                words(ax, start + bits / 2, row, f"{field} {bits}" if bits > 6 else str(bits), 10, bbox=card(1.5))
            start += bits
    widest = max(1 + e + m for e, m in formats.values())
    ax.set(xlim=(-0.2, widest + 0.2), xlabel="bits: sign (gray), exponent (green), mantissa (blue)")
    named_rows(ax, formats)
    ax.grid(visible=False)
    said = "; ".join(
        f"{name} 1 sign, {e} exponent, {m} mantissa bits, {1 + e + m} in all" for name, (e, m) in formats.items()
    )
    fig.alt = f"Rows of bits, {title}: {said}."
    return fig


#: Who shares a scale, of a matrix of 4 rows of 8 blocks: name, rows and columns of a block as drawn, in words.
_SHARED = (
    ("a tensor", 4, 8, "one scale"), ("a row", 1, 8, "1 by all columns"), ("a tile", 4, 4, "128 by 128"),
    ("a piece of a row", 1, 2, "1 by 128, 32 or 16"),
)  # fmt: skip


def shared_scales() -> Figure:
    """A matrix under four granularities of scales, a shade for each block."""
    title = "Who shares a scale: from one for a tensor to one for 16 numbers"
    fig, ax = canvas(title, height=2.6)
    for number, (name, high, wide, said) in enumerate(_SHARED):
        left = 2.6 * number
        for row in range(0, 4, high):
            for column in range(0, 8, wide):
                shade = _SHADES[(row // high + column // wide) % len(_SHADES)]
                _box(ax, left + column / 4, -(row + high) / 4, wide / 4, high / 4, facecolor=shade)
        words(ax, left + 1, 0.14, name, 11)
        words(ax, left + 1, -1.16, said, 9.5, color=MUTED)
    alt = f"Schematic, {title}. Four copies of a matrix: " + "; ".join(
        f"{name}, {said}, drawn with a shade for each of {32 // (high * wide)}" for name, high, wide, said in _SHARED
    )
    return _drawn(fig, ax, (-0.1, 2.6 * len(_SHARED) - 0.5), (-1.35, 0.35), f"{alt}.", aspect="equal")


def schedule(
    gpus: Sequence[Sequence[Turn]], title: str = "", peaks: Mapping[int, int] | None = None, now: int | None = None
) -> Figure:
    """A pipeline's schedule: a row for each GPU with a box for each action, and below the micro-batches in flight.

    Args:
        gpus: from `schedules.timed`. peaks: {GPU: bytes}, at the end of its row. now: the marked GPU.

    Raises:
        ValueError: without a GPU.
    """
    if not gpus:
        raise ValueError("schedule.gpus: none; allowed: what pipelines.timed gives")
    end = max(turn.end for turns in gpus for turn in turns)
    flights = [list(flying(turns)) for turns in gpus]
    most = [max(count for _, count in flight) for flight in flights]
    fig, ax = canvas(title, height=1.3 + 0.75 * len(gpus))
    looks = {kind: (part(name), label) for kind, (name, label) in ACTIONS.items()}
    several = len({turn.action.stage for turns in gpus for turn in turns}) > len(gpus)
    for row, turns in enumerate(gpus):
        boxes: dict[tuple[str, bool], list[tuple[float, float]]] = {}
        for (kind, stage, batch), start, stop in turns:
            boxes.setdefault((kind, several and stage >= len(gpus)), []).append((start, stop - start))
            if end <= 60:
                color = looks[kind][0].color
                box = {"boxstyle": "round,pad=0.1", "facecolor": color, "edgecolor": "none"}
                words(ax, (start + stop) / 2, row + 0.25, str(batch), 7, color=ink_on(color), bbox=box)
        for (kind, further), spans in boxes.items():  # a GPU's further stages are paler
            look = {"facecolor": looks[kind][0].color, "hatch": looks[kind][0].hatch, "alpha": 0.55 if further else 1.0}
            ax.broken_barh(spans, (row, 0.5), edgecolor=INK, linewidth=0.6 if end <= 250 else 0.1, **look)
        when, counts = zip(*flights[row], (end, flights[row][-1][1]), strict=True)
        heights = [row + 0.92 - 0.36 * count / max(most) for count in counts]
        ax.fill_between(when, heights, row + 0.92, step="post", color=MUTED, alpha=0.6, linewidth=0)
        said = f"{most[row]} in flight" + (f"\n{units.text(peaks[row])}" if peaks else "")
        words(ax, end * 1.01, row + 0.45, said, 9, ha="left")
    labels = ["\N{BLACK RIGHT-POINTING TRIANGLE} " * (row == now) + f"GPU {row}" for row in range(len(gpus))]
    ax.set(xlim=(0, end * 1.16), ylim=(len(gpus), -0.1))
    ax.set_yticks([row + 0.25 for row in range(len(gpus))], labels)
    ax.set_xlabel("time, in forwards of a stage", loc="left")
    ax.grid(visible=False)
    used = {turn.action.kind for turns in gpus for turn in turns}
    shown = [(look, label) for kind, (look, label) in looks.items() if kind in used]
    keys = [Patch(facecolor=look.color, hatch=look.hatch, edgecolor=INK, label=label) for look, label in shown]
    keys.append(Patch(facecolor=MUTED, alpha=0.6, label="micro-batches in flight"))
    spread = {"frameon": False, "handlelength": 1.5, "columnspacing": 1.4}
    fig.legend(handles=keys, loc="lower right", ncols=len(keys), fontsize=9, **spread)
    said = ", ".join(
        f"GPU {i} {count} in flight" + (f" and {units.text(peaks[i])} at its peak" if peaks else "")
        for i, count in enumerate(most)
    )
    fig.alt = f"Schedule, {title}: {len(gpus)} GPUs in time, {end:g} units long; at most: {said}."
    return fig


def patches(sides: Sequence[tuple[int, int]]) -> Figure:
    """Pictures of several sizes, to one scale, each cut into patches; thick lines around the four that are one token.

    Args:
        sides: (width, height) in pixels of each, multiples of 32.
    """
    patch, token, x, gap = 16, 32, 0.0, max(width for width, _ in sides) / 12
    fig, ax = canvas("Patches and tokens", height=3.2)
    told = []
    for width, height in sides:
        for step, line in ((patch, 0.2), (token, 0.7)):
            for i in range(0, width + 1, step):
                ax.plot([x + i] * 2, [0, height], color=BLUE, linewidth=line)
            for i in range(0, height + 1, step):
                ax.plot([x, x + width], [i] * 2, color=BLUE, linewidth=line)
        count = width * height // patch**2
        told.append(f"{width} × {height}: {count:,} patches, {count // 4:,} tokens")
        ax.text(x, -gap / 3, told[-1].replace(": ", "\n").replace(", ", "\n"), va="top", color=INK, fontsize=8)
        x += width + gap
    alt = f"{len(sides)} pictures cut into patches of {patch} pixels. " + "; ".join(told) + "."
    top = max(height for _, height in sides)
    return _drawn(fig, ax, (-gap / 4, x), (-0.45 * top, 1.04 * top), alt, aspect="equal")
