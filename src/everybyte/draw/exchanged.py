"""What GPUs exchange: rows with experts and back, keys around a ring, heads for tokens, a GPU between engine and trainer.

from everybyte import draw
draw.show(draw.travel([[6, 1, 1, 0], [5, 2, 1, 0]], gpus=2, width=7168, expert_width=2048))
"""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from .. import units
from ..common import checks
from .figures import _look, beside, canvas, canvases, card, words
from .palette import CARD, INK, MUTED, PARTS, ink_on, part
from .schematics import _SHADES, _arrow, _box, _drawn

#: Of rows of experts, in order: what it is, the part with its look, whether it counts the rows that a GPU sends or those that come.
_STATIONS = (
    ("tokens", "activations", "tokens"), ("rows to send", "communication", "sent"), ("rows that came", "communication", "came"),
    ("saved by experts", "activations", "came"), ("rows back", "communication", "sent"),
)  # fmt: skip
_LANE, _BAR, _ROOM = 1.0, 0.5, 0.17  # of a GPU, of a bar; between stations, of all that is drawn
_EDGE = {"edgecolor": INK, "linewidth": 0.8}


def _sizes(rows, each, visits, width, expert_width, size):
    """Of each GPU the bytes at the five stations."""
    gpus = len(rows)
    for g in range(gpus):
        n = sum(rows[g])
        came = sum(sent[e] for sent in rows for e in range(g * each, (g + 1) * each))
        line = width * size
        yield [
            n * line // visits, n * (line + 8), came * (line + 8), came * (size * (width + 4 * expert_width) + 16), n * line,
        ]  # fmt: skip


def travel(
    rows: Sequence[Sequence[int]],
    gpus: int,
    width: int,
    expert_width: int,
    size: int = 2,
    visits: int = 2,
    title: str = "",
) -> Figure:
    """A lane for each GPU, from left to right: its tokens, the rows it sends, those that come, what experts save, what returns.

    Bars are as long as their bytes, all to one scale; arrows as thick as the rows that go from GPU to GPU.

    Args:
        rows: of each GPU, how many it sends to each expert. gpus: that divide the experts, side by side; from 2 to 6.
        width, expert_width: elements of a token, and of an expert within. size: bytes of an element. visits: experts of a token.

    Raises:
        ValueError: for another number of GPUs, or experts that they do not divide.
    """
    checks.whole("travel", "gpus", gpus, 2, 6)
    checks.whole("travel", "rows, how many", len(rows), gpus, gpus)
    if not rows[0] or len(rows[0]) % gpus or any(len(sent) != len(rows[0]) for sent in rows):
        raise ValueError(f"travel.rows: {[len(r) for r in rows]} experts; allowed: equally many, a multiple of {gpus}")
    each = len(rows[0]) // gpus
    amounts = list(_sizes(rows, each, visits, width, expert_width, size))
    longest = [max(of[i] for of in amounts) or 1 for i in range(len(_STATIONS))]
    room = _ROOM * sum(longest)
    starts, x = [], 0.0
    for i, long in enumerate(longest):
        starts.append(x)
        x += long + room * (0.45 if i == 0 else 0.35 if i == 2 else 1.1)
    fig, ax = canvas(title or "Rows leave in equal numbers, and arrive in unequal ones", height=1.5 + 0.62 * gpus)
    for g, of in enumerate(amounts):
        y = -g * _LANE
        words(ax, -0.25 * room, y, f"GPU {g}", 10, ha="right")
        for (_, name, _), start, held in zip(_STATIONS, starts, of, strict=True):
            _box(ax, start, y - _BAR / 2, held, _BAR, **_look(name) | _EDGE)
            words(ax, start, y + 0.37, units.text(held), 8.5, ha="left", color=INK)
    most = max(sum(sent[to * each : (to + 1) * each]) for sent in rows for to in range(gpus)) or 1
    for g, sent in enumerate(rows):
        for to in range(gpus):
            n = sum(sent[to * each : (to + 1) * each])
            there = (starts[1] + amounts[g][1], -g * _LANE), (starts[2], -to * _LANE)
            back = (starts[3] + amounts[to][3], -to * _LANE), (starts[4], -g * _LANE)
            for ends in (there, back) if n else ():
                thick = 0.4 + 3.2 * n / most
                _arrow(ax, *ends, 8, MUTED, linewidth=thick, shrinkA=2, shrinkB=1, alpha=0.75, zorder=0)
    for (said, *_), start in zip(_STATIONS, starts, strict=True):
        words(ax, start, 0.78, said, 9.5, ha="left", color=MUTED)
    told = "; ".join(
        f"GPU {g} sends {sum(rows[g]):,} rows in {units.text(of[1])}, gets {units.text(of[2])}, its experts save {units.text(of[3])}"
        for g, of in enumerate(amounts)
    )
    alt = f"Rows on their way to {each * gpus} experts on {gpus} GPUs and back, bars to scale: {told}."
    return _drawn(fig, ax, (-1.2 * room, x - 0.6 * room), (-(gpus - 0.5) * _LANE, 1.05), alt)


#: Between two GPUs, of a GPU, and of its largest expert.
_APART, _GPU, _EXPERT = 0.5, 2.4, 1.5


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
    for g, sent in enumerate(rows):
        left = g * (_GPU + _APART)
        _box(ax, left, 3.6, _GPU, 0.7, facecolor=part("activations").color)
        words(ax, left + _GPU / 2, 3.95, f"GPU {g}: {sum(sent):,} rows", 9, color=INK)
        for to in range(gpus):
            thick = 5 * sum(sent[to * each : (to + 1) * each]) / widest
            if thick:
                ends = (left + _GPU / 2, 3.58), (to * (_GPU + _APART) + _GPU / 2, 2.0)
                _arrow(ax, *ends, 9, MUTED, linewidth=thick, alpha=0.8, zorder=0)
        _box(ax, left, 0, _GPU, 1.95, facecolor=CARD)
        for i in range(each):
            wide, e = _GPU / each, g * each + i
            tall = _EXPERT * came[e] / most
            look = part("activations")
            _box(ax, left + (i + 0.1) * wide, 0, 0.8 * wide, tall, facecolor=look.color, hatch=look.hatch)
        here = sum(came[g * each : (g + 1) * each])
        words(ax, left + _GPU / 2, 1.75, f"{here:,} come", 9)
        own = f"experts {g * each} to {(g + 1) * each - 1}" if each > 1 else f"expert {g}"
        words(ax, left + _GPU / 2, -0.22, own, 9, color=MUTED)
    said = "; ".join(
        f"GPU {g} sends {sum(sent):,} and gets {sum(came[g * each : (g + 1) * each]):,}" for g, sent in enumerate(rows)
    )
    alt = f"Schematic, {title}: {gpus} GPUs with {each} of {experts} experts each, arrows from every GPU to every GPU. Rows: {said}."
    return _drawn(fig, ax, (-0.2, gpus * (_GPU + _APART) - _APART + 0.2), (-0.5, 4.4), alt)


def rounds(
    parts: int = 4,
    queries: int = 4,
    keys: int = 2,
    title: str = "Queries and results stay; keys and values move one GPU on in each turn",
) -> Figure:
    """Ring attention in time: what stays on each GPU, and whose keys and values are there in each turn.

    Args:
        parts: GPUs, from 2 to 4. queries: bytes of a GPU's queries. keys: bytes of its keys and values together. Widths are to scale.

    Raises:
        ValueError: another number of GPUs, or no bytes.
    """
    checks.whole("rounds", "parts", parts, 2, len(_SHADES))
    checks.whole("rounds", "queries", queries, 1, 2**60)
    checks.whole("rounds", "keys", keys, 1, 2**60)
    unit = 1.15 / max(queries, keys)
    own, pair = queries * unit, keys * unit
    said = (units.text(queries), units.text(keys)) if keys > 1000 else ("", "")
    stay = "queries and result stay" + (f", {said[0]} each" if said[0] else "")
    fig, ax = canvas(title, height=1.15 + 0.62 * parts)
    first = 2 * own + 0.9
    step = pair + 0.75
    for rank in range(parts):
        y = -rank
        words(ax, -0.12, y, f"GPU {rank}", 10, ha="right")
        for place, name in ((0, "Q"), (own + 0.08, "result")):
            _box(ax, place, y - 0.32, own, 0.64, facecolor=_SHADES[rank])
            words(ax, place + own / 2, y, f"{name} {rank}", 9, color=ink_on(_SHADES[rank]))
        for turn in range(parts):
            whose = (rank - turn) % parts
            left = first + turn * step
            _box(ax, left, y - 0.32, pair, 0.64, facecolor=_SHADES[whose])
            words(ax, left + pair / 2, y, f"K, V\n{whose}", 8.5, color=ink_on(_SHADES[whose]))
            if turn < parts - 1:
                down = (rank + 1) % parts
                here, there = (left + pair + 0.02, y), (left + step - 0.02, -down)
                line = ":" if down == 0 else "-"
                _arrow(ax, here, there, 10, MUTED, linewidth=1.2, linestyle=line, shrinkA=1, shrinkB=1)
    words(ax, own + 0.04, 0.62, stay, 10, color=MUTED)
    for turn in range(parts):
        words(ax, first + turn * step + pair / 2, 0.62, f"turn {turn}", 10, color=MUTED)
    if said[1]:
        middle, around = first + (parts * step - 0.75) / 2, f"keys and values go around, {said[1]} each"
        words(ax, middle, -parts + 0.4, around, color=MUTED)
    last = ", ".join(f"GPU {rank} has those of GPU {(rank - parts + 1) % parts}" for rank in range(parts))
    alt = (
        f"Schematic, {title}: {parts} GPUs, {parts} turns. Each GPU's {stay}. "
        f"Keys and values{f', {said[1]} a GPU,' if said[1] else ''} go to the next GPU {parts - 1} times; in the last turn {last}."
    )
    return _drawn(fig, ax, (-0.95, first + parts * step - 0.6), (-parts + 0.2, 0.9), alt)


def turn_of(parts: int, query: int, key: int) -> tuple[int, int] | None:
    """Which GPU of a ring multiplies a piece of queries by a piece of keys, and in which turn: (GPU, turn), None where masked."""
    if key > query:
        return None
    here, there = (min(piece, 2 * parts - 1 - piece) for piece in (query, key))
    return here, (here - there) % parts


def mask(parts: int = 4, title: str = "Two pieces for each GPU: in every turn all GPUs have the same work") -> Figure:
    """The causal mask of a sequence in 2 × parts pieces: in each tile the turn in which it is computed, in its GPU's shade.

    Args:
        parts: GPUs, from 2 to 4.

    Raises:
        ValueError: another number.
    """
    checks.whole("mask", "parts", parts, 2, len(_SHADES))
    pieces = 2 * parts
    fig, ax = canvas(title, height=0.9 + 0.36 * pieces)
    counts: dict[int, list[float]] = {turn: [0.0] * parts for turn in range(parts)}
    for query in range(pieces):
        for key in range(pieces):
            if (found := turn_of(parts, query, key)) is None:
                _box(ax, key, -query - 1, 0.94, 0.94, edgecolor=MUTED, linewidth=0.5, linestyle=":")
                continue
            gpu, turn = found
            counts[turn][gpu] += 0.5 if query == key else 1.0
            _box(ax, key, -query - 1, 0.94, 0.94, facecolor=_SHADES[gpu])
            words(ax, key + 0.47, -query - 0.53, str(turn), 10, color=ink_on(_SHADES[gpu]))
        owner = min(query, pieces - 1 - query)
        words(ax, -0.15, -query - 0.53, f"GPU {owner}: piece {query}", 9, ha="right")
    words(ax, pieces / 2, 0.28, "keys, piece by piece", 9.5, color=MUTED)
    lines = [f"turn {turn}: {of[0]:g} tiles on each GPU" for turn, of in counts.items()]
    for i, line in enumerate(lines):
        words(ax, pieces + 0.5, -1.2 - 0.75 * i, line, 10, ha="left")
    words(ax, pieces + 0.5, -1.7 - 0.75 * len(lines), "(a tile on the diagonal is half\nhidden, and counts as a half)", 9, ha="left", color=MUTED)  # fmt: skip
    alt = (
        f"Schematic, {title}: the causal mask of {pieces} × {pieces} pieces on {parts} GPUs, GPU r with the pieces r and "
        f"{pieces - 1} - r. In each tile stands the turn in which its GPU computes it: {'; '.join(lines)}."
    )
    return _drawn(fig, ax, (-2.6, pieces + 6.2), (-pieces - 0.1, 0.6), alt, aspect="equal")


_SIDE, _BETWEEN = 3.2, 2.0  # of a square of tokens by heads; between two of them


def swap(parts: int = 4) -> Figure:
    """DeepSpeed-Ulysses: who has which tokens of which heads before, during and after attention.

    Args:
        parts: GPUs, from 2 to 4.

    Raises:
        ValueError: another number.
    """
    checks.whole("swap", "parts", parts, 2, len(_SHADES))
    title = "Heads for tokens, and back"
    fig, ax = canvas(title, height=3.6)
    each = _SIDE / parts
    said = ("own tokens, all heads", "all tokens, own heads", "own tokens, all heads")
    for place, (by_tokens, below) in enumerate(zip((True, False, True), said, strict=True)):
        left = place * (_SIDE + _BETWEEN)
        for g in range(parts):
            for i in range(parts):
                x, y = (i, g) if by_tokens else (g, i)
                _box(ax, left + x * each, -(y + 1) * each, each, each, facecolor=_SHADES[g], linewidth=0.3)
            middle, down = (parts / 2, g + 0.5) if by_tokens else (g + 0.5, parts / 2)
            words(ax, left + middle * each, -down * each, f"GPU {g}", 9, bbox=card(1.5))
        words(ax, left + _SIDE / 2, 0.28, "heads", 9, color=MUTED)
        words(ax, left - 0.18, -_SIDE / 2, "tokens", 9, color=MUTED, rotation=90)
        words(ax, left + _SIDE / 2, -_SIDE - 0.3, below, 10)
        if place < 2:
            end, what = left + _SIDE, ("Q, K, V", "result")[place]
            _arrow(ax, (end + 0.25, -_SIDE / 2), (end + _BETWEEN - 0.45, -_SIDE / 2), 14)
            words(ax, end + _BETWEEN / 2 - 0.1, -_SIDE / 2 + 0.3, what, 10)
            words(ax, end + _BETWEEN / 2 - 0.1, -_SIDE / 2 - 0.32, "all-to-all", 9, color=MUTED)
    words(ax, 1.5 * _SIDE + _BETWEEN, 0.62, "attention", 11)
    alt = (
        f"Schematic, {title}: three squares of tokens, downwards, by heads, across. In the first and the last each of {parts} GPUs has a "
        "band of tokens of all heads, in the middle one all tokens of a band of heads, where attention runs. Between them stand two "
        "all-to-alls: of Q, K and V there, of the result back."
    )
    return _drawn(fig, ax, (-0.5, 3 * _SIDE + 2 * _BETWEEN + 0.1), (-_SIDE - 0.6, 0.9), alt, aspect="equal")


#: What each holder of a GPU is called, from the bottom up.
HOLDERS = ("engine", "trainer")


def _held(alignment):
    """Of each phase (name, {holder: {part: bytes}}, bytes in the host's memory)."""
    engine, between = alignment.held["rollout engine"], alignment.between
    own = sum(parts.get("parameters", 0) for name, parts in between.items() if name != "rollout engine")
    for phase in alignment.timeline().phases:
        stands = phase.parts.get("parameters", 0) >= own + engine["parameters"]
        theirs = {"parameters": engine["parameters"] if stands else 0, "cache": phase.parts.get("cache", 0)}
        theirs["other"] = engine.get("other", 0) if phase.parts.get("other", 0) >= engine.get("other", 0) else 0
        if phase.name == "generate":
            theirs["activations"] = phase.parts.get("activations", 0)
        rest = {name: size - theirs.get(name, 0) for name, size in phase.parts.items()}
        yield phase.name, {"engine": theirs, "trainer": rest}, sum(phase.host.values())


def _column(ax, i, name, held, host, high, used):
    """Draw one phase as a column, GiB up to `high`; note the parts in `used`. What it holds, in words."""
    gib, y = units.UNITS["GiB"], 0.0
    for holder in HOLDERS:
        bottom = y
        for piece in PARTS:
            if size := held[holder].get(piece, 0) / gib:
                ax.bar(i, size, bottom=y, width=0.7, **_look(piece) | {"linewidth": 0.4})
                used[piece] = True
                y += size
        if y - bottom > 0.01:
            ax.add_patch(Rectangle((i - 0.35, bottom), 0.7, y - bottom, fill=False, edgecolor=INK, linewidth=1.6))
        if y - bottom > 0.09 * high:
            words(ax, i, (y + bottom) / 2, f"{holder} {y - bottom:.1f}", 9, bbox=card(1.5))
    words(ax, i, y + 0.02 * high, f"{y:.1f} GiB", 10, va="bottom", fontweight="bold", bbox=card(0.8), zorder=5)
    if host:
        ax.bar(i, -host / gib, width=0.7, facecolor=CARD, edgecolor=MUTED, linestyle="--")
        words(ax, i, -host / gib / 2, f"host {host / gib:.1f}", 8.5, color=MUTED)
    parts = "".join(f", {holder} {sum(held[holder].values()) / gib:.1f}" for holder in HOLDERS)
    return f"{name}: {y:.1f} GiB{parts}" + (f", host {host / gib:.1f}" if host else "")


def alternation(ways: Mapping[str, Any], usable: int | None = None, title: str = "") -> Figure:
    """An engine and a trainer on one GPU, phase after phase, for each way of sharing it: who holds which bytes.

    The engine's part of a column is below, the trainer's above; below zero is what the host's memory holds for this GPU. Phases are
    equally wide: their durations are not known.

    Args:
        ways: {label: an `eb.align(..., rollout=...)`}. usable: bytes of the GPU, a line across.

    Raises:
        ValueError: without a way.
    """
    if not ways:
        raise ValueError("alternation.ways: {} has none; allowed: {label: an alignment with a rollout}")
    fig, axes = canvases(title or "Who holds the GPU, phase after phase", 0.9 + 2.7 * len(ways), len(ways))
    used, told = {}, []
    found = {label: list(_held(one)) for label, one in ways.items()}
    every = [phase for phases in found.values() for phase in phases]
    high = max([usable or 0, *(sum(sum(h.values()) for h in held.values()) for _, held, _ in every)])
    low = max(host for *_, host in every)
    gib = units.UNITS["GiB"]
    for ax, (label, phases) in zip(axes, found.items(), strict=True):
        for i, (name, held, host) in enumerate(phases):
            told.append(f"{label}, {_column(ax, i, name, held, host, high / gib, used)}")
        ax.set_xticks(range(len(phases)), [name for name, *_ in phases], fontsize=9.5)
        ax.set_title(label, loc="left", fontsize=10.5, color=INK)
        ax.set(ylabel="GiB", ylim=(-1.15 * low / gib, 1.18 * high / gib))
        ax.set_xlim(-0.6, max(map(len, found.values())) - 0.4)
        ax.axhline(0, color=INK, linewidth=1)
        if usable is not None:
            ax.axhline(usable / gib, color=INK, linestyle="--", linewidth=1.3)
            place = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
            beside(ax, (1, usable / gib), f"usable {units.text(usable)}", (-2, 2), 9, **place)
        ax.grid(axis="x", visible=False)
    handles = [Patch(label=part(name).label, **_look(name)) for name in PARTS if name in used]
    fig.legend(handles=handles, loc="outside lower left", ncols=5, frameon=False, fontsize=10)
    line = f" Usable: {units.text(usable)}." if usable is not None else ""
    fig.alt = f"Columns for each phase of an iteration, engine below, trainer above: {'; '.join(told)}.{line}"
    return fig


#: GPUs of a node; letters of a mesh's dimensions on a GPU that the first one talks to, and their shades.
_NODE = 8
_ALONG = {"tensor": ("T", 0), "context": ("C", 1), "data": ("D", 2), "pipeline": ("P", 3)}


def partners(mesh, gpus: int) -> Figure:
    """All GPUs, eight in a node: with whom the first one exchanges along each dimension of a mesh.

    Args:
        mesh: an `everybyte.Mesh`. gpus: of all, a multiple of eight and of the mesh's size.

    Raises:
        ValueError: where they do not divide.
    """
    checks.whole("partners", "gpus", gpus, _NODE, 512)
    if gpus % _NODE or gpus % mesh.size:
        raise ValueError(f"partners.gpus: {gpus}; allowed: a multiple of {_NODE} and of {mesh.size}")
    data = gpus // mesh.size
    here, counts = mesh.rank(0, data), dict.fromkeys(_ALONG, 0)
    rows = min(gpus // _NODE, 8)
    fig, ax = canvas(f"{gpus} GPUs, {_NODE} in a node: with whom GPU 0 talks", height=1.2 + 0.36 * rows)
    wide = _NODE + 1.2
    for rank in range(gpus):
        place, inside = divmod(rank, _NODE)
        x, y = (place // rows) * wide + inside, -(place % rows) * 1.15
        found = mesh.rank(rank, data)
        apart = [name for name in found if found[name] != here[name]]
        said = ""
        look: dict[str, Any] = {"facecolor": CARD, "edgecolor": MUTED, "linewidth": 0.5}
        if not apart:
            said, look = "0", {"facecolor": INK}
        elif len(apart) == 1:
            counts[apart[0]] += 1
            said, look = _ALONG[apart[0]][0], {"facecolor": _SHADES[_ALONG[apart[0]][1]]}
        _box(ax, x, y - 0.9, 0.92, 0.92, **look)
        words(ax, x + 0.46, y - 0.44, said, 10, color=ink_on(look["facecolor"]))
        if not inside:
            words(ax, x - 0.15, y - 0.44, f"node {place}", 9, ha="right", color=MUTED)
    right = -(-gpus // _NODE // rows) * wide + 0.2
    for i, (name, (letter, shade)) in enumerate(_ALONG.items()):
        _box(ax, right, -i * 1.3 - 0.9, 0.92, 0.92, facecolor=_SHADES[shade])
        words(ax, right + 0.46, -i * 1.3 - 0.44, letter, 10, color=ink_on(_SHADES[shade]))
        others = f"{name}: {counts[name]} other{'s' * (counts[name] != 1)}"
        words(ax, right + 1.2, -i * 1.3 - 0.44, others, 10, ha="left")
    told = ", ".join(f"{count} along {name}" for name, count in counts.items())
    alt = f"Schematic, {gpus} GPUs in nodes of {_NODE}, a mesh of {mesh}, data {data}: GPU 0 exchanges with {told}."
    return _drawn(fig, ax, (-1.8, right + 7.5), (-rows * 1.15 - 0.1, 0.3), alt, aspect="equal")
