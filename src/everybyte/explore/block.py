"""Chapter 14's explorer: a block, operation by operation, and what each keeps for backward."""

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Add

from .. import draw, units
from ..catalog import Model
from ..draw.palette import CARD, INK
from ..formulas import bindings
from ..formulas.readings import both, expression, merged, more, reading
from ..formulas.symbols import L
from ..rules.formulas import GPT, refused
from ..setup import Setup
from ..tables import Table
from ..theory.course import standing
from ..theory.schedule import flat
from .controls import OF_THE_STEP, Choice, check_setup, gpts, opens, precision_label, shared
from .explorer import Explorer
from .pictures import quantity

#: (operation, {what it keeps: [(operation that makes it, which of the tensors that it makes; None for all)]}, what is said where
#: it keeps nothing of its own). A tensor that two operations keep stands at the first. The block's output is the next one's
#: input and as large: it stands for the input.
OPERATIONS = (
    ("norm 1", {"its input": [("residual 2", 0)], "statistics": [("norm 1", 1), ("norm 1", 2)]}, ""),
    ("qkv", {"its input": [("norm 1", 0), ("qkv input cast", None)]}, ""),
    (
        "attention",
        {
            "query, key, value": [(f"{x}{made}", None) for made in (" copied", " padded") for x in "qkv"]
            + [("qkv", None)],
            "its output": [("flash attention", 0)],
            "log-sum-exp": [("flash attention", i) for i in (1, 2, 3)],
            "softmax": [("softmax", None)],
            "after dropout": [("weights dropout", 0)],
            "16-bit copy": [("weights cast", None)],
            "dropout mask": [("weights dropout", 1)],
            "causal mask": [("causal mask", None)],
        },
        "",
    ),
    ("out", {"its input": [("heads merged", None), ("heads", None)]}, "its input is attention's output, counted there"),
    ("dropout", {"mask": [("out dropout", 1)]}, "no dropout, no mask"),
    ("+", {}, "an addition needs nothing"),
    ("norm 2", {"its input": [("residual 1", 0)], "statistics": [("norm 2", 1), ("norm 2", 2)]}, ""),
    ("up", {"its input": [("norm 2", 0), ("up input cast", None)]}, ""),
    ("gelu", {"its input": [("up", None)]}, ""),
    ("down", {"its input": [("gelu", None)]}, ""),
    ("dropout", {"mask": [("down dropout", 1)]}, "no dropout, no mask"),
    ("+", {}, "an addition needs nothing"),
)


def kept(tensors):
    """Bytes of some tensors that a block's forward leaves standing, as an expression."""

    def read(**on):
        found = reading(**on)
        return found.bytes(p for name, i, p in _standing(found) if (name, i) in tensors or (name, None) in tensors)

    return expression(merged(read, _MATTERS) + more(read, "dropped", both("eager")))


#: The switches that matter to what a block keeps, beside precision and dropout.
_MATTERS = ("eager", both("narrow"), both("several", "heads"))


def _standing(found):
    """(operation, which of its tensors, piece) of the second block's activations that are there after forward."""
    forward = [o for o in flat(found.course.items) if o.phase == "forward"]
    makers = [o for o in forward if dict(o.place).get("block") == 1]
    return [left for left in standing(makers, forward) if left[2].part == "activations"]


@dataclass(frozen=True)
class Block:
    """A column of operations, each with the tensors that it keeps, as wide as they are large.

    Attributes:
        rows: [(operation, [(tensor, quantity)], what is said where it keeps nothing)]. whole: the quantity of all blocks.
    """

    rows: Sequence[tuple]
    whole: object

    kind = "block"

    def quantities(self):
        """Every quantity that it evaluates."""
        return [q for _, tensors, _ in self.rows for _, q in tensors] + [self.whole]

    def spec(self):
        """What the picture needs to know."""
        rows = [
            {"label": name, "tensors": [{"label": t, "formula": quantity(q).name} for t, q in tensors], "note": note}
            for name, tensors, note in self.rows
        ]
        return {"rows": rows, "whole": quantity(self.whole).name}

    def compute(self, values):
        """[(operation, [(tensor, bytes), ...] of what is there, bytes)] at the symbols' values."""
        rows = []
        for name, tensors, _ in self.rows:
            there = [(t, x) for t, q in tensors if (x := quantity(q)(**values))]
            rows.append((name, there, sum(x for _, x in there)))
        return rows

    def describe(self, subject, values):
        """The sentence for a state, as picture.js says it."""
        rows = self.compute(values)
        said = ", ".join(f"{name} {units.text(x)}" for name, _, x in rows if x)
        total, every = sum(x for *_, x in rows), quantity(self.whole)(**values)
        return (
            f"{subject}, batch {values['batch']:,}, sequence {values['sequence']:,}: one block keeps {units.text(total)} "
            f"for backward: {said}. {values['layers']} blocks keep {units.text(every)}."
        )

    def figure(self, title, subject, values, variants):
        """matplotlib's figure of the same state."""
        rows = self.compute(values)
        longest = max(x for *_, x in rows)
        where = f"batch {values['batch']:,}, sequence {values['sequence']:,}"
        fig, ax = draw.canvas(f"{title}: {units.text(sum(x for *_, x in rows))} ({subject}, {where})", height=4.6)
        look = draw.part("activations")
        for i, (_, there, x) in enumerate(rows):
            at, inside = 0, []
            for tensor, size in there:
                ax.barh(i, size, 0.74, left=at, facecolor=look.color, edgecolor=CARD, linewidth=1)
                if size > longest * len(tensor) / 60:
                    ax.text(at + size / 2, i, tensor, ha="center", va="center", fontsize=9, color=INK)
                    inside.append(tensor)
                at += size
            beside = ", ".join(tensor for tensor, _ in there if tensor not in inside)
            words = units.text(x) + (f" (with {beside})" if inside and beside else f" ({beside})" if beside else "")
            ax.text(at + longest / 100, i, words if x else self.rows[i][2], va="center", fontsize=9, color=INK)
        ax.set_yticks(range(len(rows)), [name for name, *_ in rows])
        ax.set(ylim=(len(rows) - 0.4, -0.6), xlim=(0, longest * 1.75), xticks=[])
        ax.grid(False)
        ax.spines["bottom"].set_visible(False)
        fig.alt = f"{title}, a bar for each operation. {self.describe(subject, values)}"
        return fig

    def table(self, subject, values):
        """A `Table` of the state: every tensor that is kept, by operation."""
        rows = self.compute(values)
        total = sum(x for *_, x in rows)
        body = [(name, t, x, units.text(x), f"{x / total:.1%}") for name, there, _ in rows for t, x in there]
        body.append(("block", "all", total, units.text(total), "100.0%"))
        return Table(("operation", "keeps", "bytes", "that is", "share"), body, subject)


@opens
def block(model: Model | None = None, setup: Setup | None = None) -> Explorer:
    """The block of a GPT, and the tensors that each of its operations keeps for backward.

    A tensor that two operations keep is drawn at the first. Weights, and autocast's copies of them, are not drawn.

    Args:
        model, setup: what it opens with, a model of your own too; by default GPT-2, and what the other explorers show.

    Raises:
        ValueError: a model that is not of GPT-2's architecture.
    """
    known = gpts()
    start = model or known["gpt2"]
    if unlike := refused(GPT, start):
        raise ValueError(unlike)
    known = (
        {**{n: m for n, m in known.items() if n != start.name}, start.name: start}
        if known.get(start.name) != start
        else known
    )
    check_setup("block", setup, *OF_THE_STEP, "loss", "accumulation")
    controls = [
        Choice("model", "model", {name: bindings(m, None) for name, m in known.items()}, start.name),
        shared("precision", setup and precision_label(setup)),
        Choice("attention", "attention", {"flash": {"eager": 0}, "eager": {"eager": 1}}, setup and setup.attention),
        Choice("dropout", "dropout", {"no dropout": {"dropout": 0}, "dropout": {"dropout": 1}},
               "dropout" if setup and setup.dropout else "no dropout"),
        shared("batch", setup and f"{setup.batch:,}"),
        shared("sequence", setup and f"{setup.sequence:,}"),
    ]  # fmt: skip
    rows = [(name, [(t, kept(made)) for t, made in tensors.items()], note) for name, tensors, note in OPERATIONS]
    whole = L * Add(*(q for _, tensors, _ in rows for _, q in tensors))
    plain = {"model": start.name, "attention": "flash", "dropout": "no dropout"}
    presets = {
        "fp32": {**plain, "precision": "fp32"},
        "autocast": {**plain, "precision": "bf16-mixed"},
        "all in bf16": {**plain, "precision": "bf16"},
        "the famous 34 + 5": {"model": start.name, "precision": "bf16", "attention": "eager", "dropout": "dropout"},
    }
    subject = ("model", "precision", "attention", "dropout")
    return Explorer("What one block keeps for backward", controls, Block(rows, whole), presets, subject=subject)
