"""`make figures`: draws the pictures of the README and the book into figures/, each from the numbers of the code as it is.

Each PNG carries its alternative text as its description, which a test compares with what the code says today.
"""

import argparse
import os
from pathlib import Path

from matplotlib.figure import Figure

import everybyte as eb
from everybyte import draw, explore, units
from everybyte.ask.choices import MASTER_GRADIENTS
from everybyte.draw.palette import CARD, INK, MUTED

FOLDER = Path(__file__).resolve().parents[1] / "figures"
GPT2 = eb.model("gpt2")


def step():
    """The README's picture: one training step of GPT-2, operation by operation."""
    trace = eb.dry_run(GPT2, eb.Setup(batch=8, sequence=1024, precision="bf16-mixed"))
    return draw.timeline(trace, "One training step of GPT-2 124M: batch 8, sequence 1024, bf16 autocast, AdamW")


def states():
    """What every parameter costs, for each precision and each place of the gradients, in bytes."""
    rows = {}
    for precision in ("fp32", "bf16-mixed", "bf16-master", "bf16"):
        for kept in MASTER_GRADIENTS if precision == "bf16-master" else ("bf16",):
            setup = eb.Setup(precision=precision, master_gradients=kept)
            label = precision if kept == "bf16" else f"{precision}, {kept} gradients"
            names = {
                "parameters": "weights",
                "gradients": "gradients",
                "master": "optimizer.master",
                "optimizer": "optimizer.states",
            }
            rows[label] = {part: eb.formula(name).at(GPT2, setup) for part, name in names.items()}
    return draw.stacked(rows, title="GPT-2 124M with AdamW after backward, before any activation", unit="GiB")


def cover():
    """The README's cover: the step's timeline, one block of it taken apart, and the two counts, equal to the byte."""
    setup = eb.Setup(batch=8, sequence=1024, precision="bf16-mixed")
    trace, budget = eb.dry_run(GPT2, setup), eb.budget(GPT2, setup)
    if trace.peak != budget.peak:
        raise ValueError(f"cover: predicted {budget.peak:,} B, counted {trace.peak:,} B; allowed: the same")
    fig = Figure(figsize=(12, 6.3), facecolor=CARD)
    _cover_words(fig, trace.peak)
    _cover_course(fig.add_axes((0.02, 0.085, 0.96, 0.60)), trace)
    block = explore.block(GPT2, setup)
    rows = [(name, x) for name, _, x in block.kind.compute(block.values()) if x]
    _cover_block(fig.add_axes((0.71, 0.405, 0.27, 0.355)), rows)
    fig.alt = (
        f"Every Byte: one training step of GPT-2 124M, batch 8, sequence 1,024, bf16 autocast, AdamW. Live bytes climb block by "
        f"block through forward, each block keeping {units.text(sum(x for _, x in rows))}, and fall through backward; between "
        f"the two stands a spike, the loss, and with it the peak: {trace.peak:,} bytes, {units.text(trace.peak)}, predicted by "
        f"formula and counted by PyTorch to the same byte."
    )
    return fig


def _cover_words(fig, peak):
    fig.text(0.02, 0.945, "Every Byte", fontsize=46, fontweight="bold", color=INK, va="top")
    question = "Where does the memory of a GPU go\nwhile it trains a transformer?"
    fig.text(0.02, 0.81, question, fontsize=17, color=INK, va="top", linespacing=1.35)
    for y, (words, size) in zip((0.94, 0.845), (("predicted", 15), ("counted", 15)), strict=True):
        fig.text(0.545, y, words, fontsize=size, color=MUTED, va="top", ha="right")
        fig.text(0.555, y + 0.012, f"{peak:,} bytes", fontsize=24, fontweight="bold", color=INK, va="top")
    fig.text(0.885, 0.94, "by formula", fontsize=15, color=MUTED, va="top")
    fig.text(0.885, 0.845, "by PyTorch", fontsize=15, color=MUTED, va="top")


def _cover_course(ax, trace):
    steps, lines = range(len(trace.live)), trace.timeline()
    floor = [0] * len(trace.live)
    for name, line in lines.items():
        if any(line):
            roof = [a + b for a, b in zip(floor, line, strict=True)]
            look = draw.part(name)
            ax.fill_between(
                steps, floor, roof, step="post", facecolor=look.color, hatch=look.hatch, edgecolor=CARD, linewidth=0.2
            )
            floor = roof
    ax.set_axis_off()
    ax.set(xlim=(0, len(steps) - 1), ylim=(0, trace.peak * 1.02))
    marks = [0, trace.marks["after_forward"], trace.marks["after_backward"], len(steps) - 1]
    for words, a, b in zip(("forward", "backward", "optimizer step"), marks, marks[1:], strict=False):
        arrow = {"arrowstyle": "<->", "color": MUTED}
        ax.annotate("", (a, -0.03), (b, -0.03), xycoords=("data", "axes fraction"), arrowprops=arrow)
        middle, place = ((a + b) / 2, "center") if words != "optimizer step" else (b, "right")
        ax.text(middle, -0.1, words, transform=ax.get_xaxis_transform(), ha=place, va="center", fontsize=15, color=INK)
    top = trace.peak_operation
    ax.annotate(f"the peak: {units.text(trace.peak)}\nin the loss, as its backward begins", (top, trace.peak), (-14, -4), textcoords="offset points",
                va="top", ha="right", fontsize=15, fontweight="bold", color=INK)  # fmt: skip
    half = marks[1] // 2
    for name, at in (
        ("activations", int(marks[1] * 0.72)),
        ("optimizer", half),
        ("parameters", half),
        ("gradients", int(marks[2] * 0.93)),
    ):
        under = sum(lines[n][at] for n in list(lines)[: list(lines).index(name)])
        look = draw.part(name)
        ax.text(at, under + lines[name][at] / 2, look.label, ha="center", va="center", fontsize=15, color=draw.ink_on(look.color),
                bbox={"facecolor": look.color, "edgecolor": "none", "boxstyle": "round,pad=0.12"} if look.hatch else None)  # fmt: skip


def _cover_block(ax, rows):
    look = draw.part("activations")
    ax.barh(range(len(rows)), [x for _, x in rows], 0.72, facecolor=look.color)
    longest = max(x for _, x in rows)
    for i, (name, x) in enumerate(rows):
        ax.text(-longest * 0.03, i, name, ha="right", va="center", fontsize=13, color=INK)
        ax.text(x + longest * 0.03, i, units.text(x), va="center", fontsize=12, color=INK)
    ax.set(xlim=(0, longest * 1.45), ylim=(len(rows) - 0.3, -1.5))
    said = f"what one block keeps: {units.text(sum(x for _, x in rows))}"
    ax.text(-longest * 0.4, -1.1, said, fontsize=14, fontweight="bold", color=INK)
    ax.set_axis_off()


FIGURES = {"cover": cover, "step": step, "states": states}


def main():
    """Draw all figures, or those named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(FIGURES)}; by default all")
    names = parser.parse_args().names or list(FIGURES)
    if unknown := set(names) - set(FIGURES):
        parser.error(f"names: {', '.join(sorted(unknown))} is unknown; allowed: {', '.join(FIGURES)}")
    FOLDER.mkdir(exist_ok=True)
    for name in names:
        fig = FIGURES[name]()
        beside = FOLDER / f".{name}.png"
        beside.write_bytes(draw.png(fig, description=draw.checked_alt(fig.alt)))
        os.replace(beside, FOLDER / f"{name}.png")
        print(f"figures/{name}.png: {fig.alt}")


if __name__ == "__main__":
    main()
