"""FSDP's gathers in time: when each unit's weights are gathered, whole and freed, and what of all blocks is whole at once."""

from dataclasses import dataclass
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from .. import units
from ..ask.setup import Setup
from ..catalog import Model
from ..common import checks
from ..step.course import MARKS
from ..theory import letters
from ..theory.budget import course_of
from .figures import _keys, _look, areas, beside, canvases, card, words
from .palette import INK, ink_on, part

#: From the top of a unit's row: what is gathered into and reduced from, whole weights, whole gradients.
LANES = ("communication", "unsharded", "gradients")
_SAID = {"gathered": "gather", "sent": "reduce", "unsharded": "weights", "gradients": "gradients"}
_LANE = 0.26
_LEAST, _MOST = 2, 5  # blocks; of more, those in the middle stand for others


class Span(NamedTuple):
    """One thing of one unit from the first operation that lives to see it to the last.

    unit: 0 is the root, n + 1 is block n. what: `gathered`, `sent`, or one of `LANES`. bytes: the most of it at once.
    """

    unit: int
    what: str
    first: int
    last: int
    bytes: int


@dataclass(frozen=True)
class Course:
    """What FSDP makes whole in forward and backward.

    spans: in the order of their beginnings. phases: of each operation. blocks: part -> bytes of all blocks together during each
    operation. root: the same of the root. numbers: of one block.
    """

    spans: list[Span]
    phases: list[str]
    blocks: dict[str, list[int]]
    root: dict[str, list[int]]
    numbers: int


def course(model: Model, setup: Setup) -> Course:
    """Read the course of a step, as `everybyte.budget` does. Raise ValueError as `gathered` does."""
    checks.whole("gathered", "model.layers", model.layers, _LEAST, _MOST)
    if setup.sharding not in ("zero2", "zero3") or setup.fsdp_version != 2 or setup.accumulation > 1:
        raise ValueError(f"gathered.setup: {setup}; allowed: FSDP2's zero2 or zero3, one micro-batch")
    reading = course_of(model, setup).at(letters(model, setup, 1, 0), 1)
    taken, spans, phases, held = {}, {}, [], {}
    lines = [{name: [] for name in LANES} for _ in range(2)]
    live = [dict.fromkeys(LANES, 0) for _ in range(2)]
    for operation, _, _ in reading.unrolled():
        if operation is None or operation.name in MARKS:
            continue
        if operation.phase == "optimizer step":
            break
        at = len(phases)
        phases.append("loss" if operation.loss else operation.phase)
        for piece in operation.taken:
            if piece.part not in LANES or operation.kind in ("received", "stored"):
                continue  # what is received is a shard
            unit, what = _unit(operation.owner), operation.kind or piece.part
            what = "gathered" if what == "communication" else what
            key = next((k for k in spans if k[:2] == (unit, what) and held.get(k)), (unit, what, at))
            taken[id(piece)] = key, piece.part, reading.amounts.size(piece)
            spans.setdefault(key, [at, at, 0])
            _change(live, held, key, piece.part, taken[id(piece)][2])
        for key, span in spans.items():
            if held.get(key):
                span[1:] = at, max(span[2], held[key])
        for i, line in enumerate(lines):
            for name in LANES:
                line[name].append(live[i][name])
        for piece in operation.freed:
            if id(piece) in taken:
                key, name, size = taken.pop(id(piece))
                _change(live, held, key, name, -size)
    found = [Span(unit, what, *span) for (unit, what, _), span in spans.items()]
    whole = max(s.bytes for s in found if s.unit and s.what == "unsharded")
    wide = 4 if setup.precision == "fp32" else 2  # as the policy casts shards before it gathers them
    return Course(sorted(found, key=lambda s: s.first), phases, lines[1], lines[0], whole // wide)


def _unit(owner):
    return int(owner.split(".")[1]) + 1 if owner.startswith("blocks.") else 0


def _change(live, held, key, name, size):
    live[key[0] > 0][name] += size
    held[key] = held.get(key, 0) + size


def _runs(found: Course) -> list[tuple[str, int, int]]:
    """(phase, first, end): the loss, from head to head's backward, stands between forward and backward."""
    blocks = min(s.first for s in found.spans if s.unit and s.what == "gradients")
    loss = [at for at, phase in enumerate(found.phases[:blocks]) if phase == "loss"]
    first, last = (loss[0], loss[-1] + 1) if loss else (blocks, blocks)
    return [("forward", 0, first), ("loss", first, last), ("backward", last, len(found.phases))]


def gathered(model: Model, setup: Setup, title: str = "When each unit is whole") -> Figure:
    """FSDP2 in time: a row for each unit, with its buffers, whole weights and whole gradients; below, the bytes of all blocks.

    Args:
        model: of 2 to 5 blocks, as more of them look alike. setup: with `sharding` `zero2` or `zero3`.

    Raises:
        ValueError: for another number of blocks, without FSDP2, or where the step is not derived.

    Example:
        >>> few = eb.model("llama-3.1-8b").replace(layers=4)
        >>> draw.show(draw.gathered(few, eb.Setup(batch=1, gpus=8, sharding="zero3", precision="bf16-mixed")))
    """
    found = course(model, setup)
    rows, end = model.layers + 1, len(found.phases)
    fig, (ax, below) = canvases(title, 2.6 + 0.72 * rows, 2, sharex=True, height_ratios=[rows, 2.6])
    for unit, what, first, last, _ in found.spans:
        lane = LANES.index("communication" if what in ("gathered", "sent") else what)
        top, wide, look = unit + 0.1 + lane * _LANE, last + 1 - first, _look(LANES[lane])
        ax.broken_barh([(first, wide)], (top, _LANE * 0.9), **look | {"edgecolor": INK, "linewidth": 0.6})
        if wide * 9 > end * 0.13 * len(_SAID[what]):
            box = {"boxstyle": "round,pad=0.1", "facecolor": look["facecolor"], "edgecolor": "none"}
            said = (first + wide / 2, top + _LANE * 0.45, _SAID[what])
            words(ax, *said, 8, color=ink_on(look["facecolor"]), bbox=box)
    named = ["root", *(f"block {i}" for i in range(model.layers))]
    ax.set_yticks([row + 0.5 for row in range(rows)], named)
    ax.set(ylim=(rows, -0.45), xlim=(0, end))
    ax.grid(visible=False)
    for name, first, stop in _runs(found):
        for axes in (ax, below):
            axes.axvline(first, color=INK, linestyle=":", linewidth=1)
        words(ax, (first + stop) / 2, -0.22, name, 10, bbox=card())
    lines = {name: found.blocks[name] for name in ("unsharded", "communication", "gradients")}
    areas(below, range(end + 1), {name: [*line, line[-1]] for name, line in lines.items()}, "MiB", linewidth=0.3)
    whole = [sum(line[at] for line in lines.values()) for at in range(end)]
    most = max(whole)
    at = whole.index(most)
    each = most / found.numbers
    told = f"{units.text(most)}: {each:.3g} bytes for each parameter of a block"
    below.plot([at], [units.to(most, "MiB")], "v", color=INK, markersize=8)
    beside(below, (at, units.to(most, "MiB")), told, (-8, 5), ha="right", fontweight="bold", bbox=card())
    below.set(ylim=(0, units.to(most, "MiB") * 1.3), ylabel="blocks, MiB", xticks=[])
    below.set_xlabel(f"the {end:,} operations of forward and backward, in order")
    _keys(fig, [Patch(label=part(name).label, **_look(name)) for name in LANES])
    times = sum(s.unit > 0 and s.what == "unsharded" for s in found.spans) // model.layers
    inside = ", ".join(f"{part(name).label} {units.text(line[at])}" for name, line in lines.items())
    fig.alt = (
        f"FSDP in time, {title}: the root and {model.layers} blocks of {found.numbers:,} parameters over {end:,} operations; each "
        f"block's weights are gathered {'once' if times == 1 else 'twice'}, the root's once, {units.text(max(found.root['unsharded']))}, which stay to the end "
        f"of backward. Of all blocks together at most {told}, in {found.phases[at]} ({inside})."
    )
    return fig
