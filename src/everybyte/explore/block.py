"""Chapter 14's explorer: a block, operation by operation, and what each keeps for backward."""

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Add

from .. import draw, units
from ..ask.setup import Setup
from ..catalog import Model
from ..draw.palette import CARD, INK
from ..formulas.readings import both, expression, merged, more, reading
from ..formulas.symbols import L
from ..step.course import flat, standing
from .beside import said
from .controls import OF_THE_STEP, a_gpt, asked, opens
from .explorer import Explorer, told
from .pictures import Kind, quantity, shared_out

#: (operation, {what it keeps: [(operation that makes it, which of its tensors; -1 for all)]}, what is said where it keeps nothing).
OPERATIONS = [
    (o["name"], {tensor: [tuple(made) for made in makers] for tensor, makers in o.get("keeps", {}).items()}, o.get("note", ""))
    for o in said("block")["operations"]
]  # fmt: skip


def kept(tensors):
    """Bytes of some tensors that a block's forward leaves standing, as an expression."""

    def read(**on):
        found = reading(**on)
        return found.bytes(p for name, i, p in _standing(found) if (name, i) in tensors or (name, -1) in tensors)

    return expression(merged(read, _MATTERS) + more(read, "dropped", both("eager")))


#: The switches that matter to what a block keeps, beside precision and dropout.
_MATTERS = ("eager", both("narrow"), both("several", "heads"))


def _standing(found):
    """(operation, which of its tensors, piece) of the second block's activations that are there after forward."""
    forward = [o for o in flat(found.course.items) if o.phase == "forward"]
    makers = [o for o in forward if dict(o.place).get("block") == 1]
    return [left for left in standing(makers, forward) if left[2].part == "activations"]


def _sizes(values):
    return f"batch {values['batch']:,}, sequence {values['sequence']:,}"


@dataclass(frozen=True)
class Block(Kind):
    """A column of operations, each with the tensors that it keeps, as wide as they are large.

    Attributes:
        rows: [(operation, [(tensor, quantity)], what is said where it keeps nothing)]. whole: the quantity of all blocks.
    """

    rows: Sequence[tuple]
    whole: object

    kind = "block"

    def quantities(self):
        return [q for _, tensors, _ in self.rows for _, q in tensors] + [self.whole]

    def spec(self):
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
        rows = self.compute(values)
        inside = ", ".join(f"{name} {units.text(x)}" for name, _, x in rows if x)
        total, every = sum(x for *_, x in rows), quantity(self.whole)(**values)
        return (
            f"{subject}, {_sizes(values)}: one block keeps {units.text(total)} for backward: {inside}. "
            f"{values['layers']} blocks keep {units.text(every)}."
        )

    def figure(self, title, subject, values, variants):
        rows = self.compute(values)
        longest = max(x for *_, x in rows)
        whole = units.text(sum(x for *_, x in rows))
        fig, ax = draw.canvas(f"{title}: {whole} ({subject}, {_sizes(values)})", height=4.6)
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
        rows = [(name, t, x) for name, there, _ in self.compute(values) for t, x in there]
        return shared_out(rows, subject, ("operation", "keeps"), ("block", "all"))


@opens(*OF_THE_STEP, "loss", "accumulation")
def block(model: Model | None = None, setup: Setup | None = None) -> Explorer:
    """Chapter 14: the block of a GPT, and the tensors that each of its operations keeps for backward.

    A tensor that two operations keep is drawn at the first. Weights, and autocast's copies of them, are not drawn. The model is of
    GPT-2's architecture, one of your own too; by default it is GPT-2.
    """
    start, choice = a_gpt(model)
    controls = [choice, *asked(setup, "precision", "attention", "dropout", "batch", "sequence")]
    rows = [(name, [(t, kept(made)) for t, made in tensors.items()], note) for name, tensors, note in OPERATIONS]
    whole = L * Add(*(q for _, tensors, _ in rows for _, q in tensors))
    return told("block", controls, Block(rows, whole), usual={"model": start.name})
