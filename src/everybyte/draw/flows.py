"""Where bytes come from and go to: through a linear layer with adapters, and over the bus of an offloaded step."""

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from .. import units
from ..common import checks
from .figures import canvas, canvases, named_rows, words
from .palette import CARD, INK, PARTS, ink_on, part
from .schematics import _arrow, _box


def _key(name, label):
    """An entry of a legend with the look of a part."""
    return Patch(facecolor=part(name).color, hatch=part(name).hatch, edgecolor=INK, label=label)


class Box(NamedTuple):
    """One tensor of a layer: its name, bytes, the part of memory whose look it has, and what becomes of it."""

    name: str
    bytes: float
    part: str
    said: str


#: What becomes of a tensor.
FROZEN, TRAINED, SAVED, SHORT = "frozen", "trained", "saved", "freed at once"
#: Between two tensors of a row, as a share of the widest row.
_GAP = 0.06


def layer_tensors(inputs: int, outputs: int, tokens: int, codes: int, rank: int = 16) -> dict[str, list[Box]]:
    """The tensors of one linear layer in three ways to train it, as peft and bitsandbytes make them. In bytes.

    Full fine-tuning and LoRA are in bf16, LoRA's adapters in fp32, and QLoRA is under autocast. codes: bytes of the weight in NF4.

    >>> {way: sum(box.bytes for box in boxes if box.said == "saved") for way, boxes in layer_tensors(8, 8, 4, 40, 1).items()}
    {'full fine-tuning': 64, 'LoRA': 144, 'QLoRA': 72}
    """
    weight, entered = 2 * inputs * outputs, 2 * inputs * tokens
    small = rank * (inputs + outputs)
    trained = [
        Box("A and B", 4 * small, "parameters", TRAINED), Box("gradients", 4 * small, "gradients", TRAINED),
        Box("states", 8 * small, "optimizer", TRAINED),
    ]  # fmt: skip
    return {
        "full fine-tuning": [
            Box("W", weight, "parameters", TRAINED), Box("gradient", weight, "gradients", TRAINED),
            Box("states", 2 * weight, "optimizer", TRAINED), Box("x", entered, "activations", SAVED),
        ],
        "LoRA": [
            Box("W", weight, "parameters", FROZEN), *trained,
            Box("x in fp32", 2 * entered, "activations", SAVED), Box("A x", 4 * rank * tokens, "activations", SAVED),
        ],
        "QLoRA": [
            Box("W in NF4", codes, "parameters", FROZEN), Box("W in bf16", weight, "casts", SHORT), *trained,
            Box("x", entered, "activations", SAVED), Box("A x", 2 * rank * tokens, "activations", SAVED),
        ],
    }  # fmt: skip


def layer(ways: dict[str, Sequence[Box]], title: str = "") -> Figure:
    """A row for each way to train one linear layer: its tensors as squares, each with an area as its bytes.

    Solid edges stay for the whole step; dashed ones are there for one product. For example `layer(layer_tensors(2048, 8192, 2048, 8 << 20))`.

    Args:
        ways: {label: its tensors, from `layer_tensors`}.

    Raises:
        ValueError: without a way, or for a tensor of no bytes.
    """
    if not ways:
        raise ValueError("layer.ways: {} has no way to train; allowed: {label: tensors}")
    for boxes in ways.values():
        for box in boxes:
            if not box.bytes > 0:
                raise ValueError(f"layer.ways[{box.name!r}]: {box.bytes!r} bytes; allowed: more than 0")
    fig, ax = canvas(title, height=0.9 + 1.95 * len(ways))
    side = sqrt(max(box.bytes for boxes in ways.values() for box in boxes))
    least = 0.84 * side  # of a column, so that its words have room
    widest = max(sum(max(sqrt(b.bytes), least) for b in boxes) + _GAP * side * len(boxes) for boxes in ways.values())
    floor = 0.0
    for label, boxes in ways.items():
        tallest, x = sqrt(max(box.bytes for box in boxes)), 0.0
        floor -= tallest + 0.2 * side
        words(ax, 0, floor + tallest + 0.1 * side, label, 11, ha="left", fontweight="bold")
        for box in boxes:
            edge, room = sqrt(box.bytes), max(sqrt(box.bytes), least)
            look = part(box.part)
            line = "--" if box.said == SHORT else "-"
            _box(ax, x, floor, edge, edge, facecolor=look.color, hatch=look.hatch, linewidth=1.2, linestyle=line)
            said = f"{box.name}\n{units.text(box.bytes)}\n{box.said}"
            words(ax, x, floor - 0.04 * side, said, 8.5, ha="left", va="top")
            x += room + _GAP * side
        floor -= 0.42 * side
    shown = {box.part for boxes in ways.values() for box in boxes}
    keys = [_key(name, PARTS[name].label) for name in PARTS if name in shown]
    fig.legend(handles=keys, loc="outside lower left", ncols=len(keys), frameon=False, fontsize=9)
    ax.set(xlim=(-0.02 * side, widest), ylim=(floor, 0), aspect="equal", anchor="W")
    ax.axis("off")
    told = "; ".join(
        f"{label}: " + ", ".join(f"{b.name} {units.text(b.bytes)}, {b.said}" for b in boxes)
        for label, boxes in ways.items()
    )
    fig.alt = f"Squares with areas to scale, {title}: {told}."
    return fig


def paths(ways: dict[str, tuple[str, str, str]], title: str = "What goes through the layer, and what stays") -> Figure:
    """The data flow of y = W x + B A x, a panel for each way: x goes through a frozen W above, and through A and B below.

    Boxes are not to scale; their bytes are `layer`'s. For example
    `paths({"LoRA": ("W, bf16", "x in fp32: 16 MiB", "no copy")})`.

    Args:
        ways: {label: (what W is, what the way below saves of x, what of W lives for one product)}.
    """
    fig, axes = canvases(title, 0.5 + 2.15 * len(ways), len(ways))
    for ax, (label, (weight, kept, short)) in zip(axes, ways.items(), strict=True):

        def put(x, y, wide, said, look=None, line="-", ax=ax):
            color = part(look).color if look else CARD
            _box(ax, x, y - 0.36, wide, 0.72, facecolor=color, linestyle=line)
            words(ax, x + wide / 2, y, said, 9.5, color=ink_on(color))

        put(0, 0.5, 0.9, "x")
        put(2.0, 1, 2.6, f"{weight}\nfrozen", "parameters")
        put(5.1, 1, 2.9, short, "casts" if "bf16" in short else None, "--")
        put(2.0, 0, 2.6, kept, "activations")
        put(5.1, 0, 0.9, "A\ntrained", "parameters")
        put(6.4, 0, 1.0, "A x\nsaved", "activations")
        put(7.8, 0, 0.9, "B\ntrained", "parameters")
        put(9.6, 0.5, 0.9, "y")
        for a, b in (
            ((0.9, 0.6), (2.0, 1)), ((0.9, 0.4), (2.0, 0)), ((4.6, 1), (5.1, 1)), ((8.0, 1), (9.6, 0.6)),
            ((4.6, 0), (5.1, 0)), ((6.0, 0), (6.4, 0)), ((7.4, 0), (7.8, 0)), ((8.7, 0), (9.6, 0.4)),
        ):  # fmt: skip
            _arrow(ax, a, b, 12, shrinkA=1, shrinkB=1)
        words(ax, 0, 1.62, label, 11, ha="left", fontweight="bold")
        ax.set(xlim=(-0.1, 10.6), ylim=(-0.5, 1.8))
        ax.axis("off")
    told = "; ".join(f"{label}: {' / '.join(said)}".replace("\n", ", ") for label, said in ways.items())
    fig.alt = (
        f"Data flow in {len(ways)} panels, {title}. Above, x goes through the frozen weight; below, through A and B, which are "
        f"trained, by way of what is saved for backward; both sums are y. {told}."
    )
    return fig


class Turn(NamedTuple):
    """One task of an offloaded step: its stream, what it is, its block, and when it begins and ends, in seconds."""

    stream: str
    kind: str
    block: int
    start: float
    end: float


#: The streams, from the top down, and each task's part of memory, for its look.
STREAMS = ("copies up", "compute", "copies down", "the host's CPU")
TASKS = {
    "weights": ("parameters", "weights come up"),
    "forward": ("activations", "forward"),
    "backward": ("transient", "backward"),
    "gradients": ("gradients", "gradients go down"),
    "update": ("optimizer", "the optimizer's step"),
}


def offloaded(
    blocks: int, up: float, forward: float, down: float, update: float, backward: float | None = None
) -> list[Turn]:
    """The tasks of one step whose weights, gradients and states live on the host, as FSDP orders them.

    The GPU holds two blocks at a time: a block's weights come while the one before it works. Every block is freed after its forward, and
    backward, by default twice forward's time, fetches all of them again. The last block's come as backward begins: no block works beside
    them. A block's gradients go down after its backward. The host updates all weights after the last gradient has arrived. All times are
    of one block, in seconds, but `update`, which is of all.

    >>> offloaded(2, 1.0, 1.0, 1.0, 3.0)[-1].end
    12.0
    """
    checks.whole("offloaded", "blocks", blocks, 2, 256)
    order = [("forward", i) for i in range(blocks)] + [("backward", i) for i in reversed(range(blocks))]
    turns, copied, sent, worked = [], 0.0, 0.0, [0.0, 0.0]  # when each stream is free; the ends of all work
    for kind, block in order:
        turned = (kind, block) == ("backward", blocks - 1)  # the block's own forward has to free it first
        start = max(copied, worked[-1 if turned else -2])
        copied = start + up
        turns.append(Turn(STREAMS[0], "weights", block, start, copied))
        begin = max(copied, worked[-1])
        worked.append(begin + (forward if kind == "forward" else 2 * forward if backward is None else backward))
        turns.append(Turn(STREAMS[1], kind, block, begin, worked[-1]))
        if kind == "backward":
            start = max(sent, worked[-1])
            sent = start + down
            turns.append(Turn(STREAMS[2], "gradients", block, start, sent))
    return [*turns, Turn(STREAMS[3], "update", 0, sent, sent + update)]


def waits(turns: Sequence[Turn]) -> float:
    """Seconds of a step in which the GPU computes nothing.

    >>> waits(offloaded(2, 1.0, 1.0, 1.0, 3.0))
    6.0
    """
    busy = sum(turn.end - turn.start for turn in turns if turn.stream == STREAMS[1])
    return max(turn.end for turn in turns) - busy


def streams(runs: dict[str, Sequence[Turn]], title: str = "") -> Figure:
    """An offloaded step in time, a panel for each run, all with one scale: what overlaps, and where the GPU waits.

    For example `streams({"1,024 tokens": offloaded(4, 0.01, 0.004, 0.01, 0.1)})`.

    Args:
        runs: {label: its tasks, from `offloaded`}.

    Raises:
        ValueError: where there is none.
    """
    if not runs:
        raise ValueError("streams.runs: {} has no run; allowed: {label: what `offloaded` gives}")
    fig, axes = canvases(title, 0.9 + 1.75 * len(runs), len(runs), sharex=True)
    told = []
    for ax, (label, turns) in zip(axes, runs.items(), strict=True):
        end, idle = max(turn.end for turn in turns), waits(turns)
        for kind, (name, _) in TASKS.items():
            look = part(name)
            shown = {"facecolor": look.color, "hatch": look.hatch, "linewidth": 0.5}
            for turn in (turn for turn in turns if turn.kind == kind):
                at = (turn.start, turn.end - turn.start)
                edge = CARD if at[1] > end / 300 else look.color  # what is thin stays seen
                ax.broken_barh([at], (STREAMS.index(turn.stream) - 0.35, 0.7), edgecolor=edge, **shown)
        named_rows(ax, STREAMS)
        ax.tick_params(axis="y", labelsize=9)
        said = f"{label}: {end:.2f} s; the GPU waits {idle / end:.0%} of it"
        ax.set_title(said, loc="left", fontsize=10.5, color=INK)
        told.append(f"{said}, of which {turns[-1].end - turns[-1].start:.2f} s for the host's update")
    axes[-1].set_xlabel("seconds")
    keys = [_key(name, said) for name, said in TASKS.values()]
    fig.legend(handles=keys, loc="outside lower left", ncols=3, frameon=False, fontsize=9)
    fig.alt = f"Streams in time, {title}: {'; '.join(told)}."
    return fig
