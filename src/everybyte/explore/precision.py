"""Chapter 21's explorer: the peak of one training step, by part, in every precision side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from .. import checks, draw
from ..catalog import Gpu, Model
from ..formulas import Formula, bindings
from ..formulas.symbols import adam, foreach, loop
from ..setup import Setup
from .controls import Choice, of_the_step, precision_label, shared
from .explorer import Explorer
from .pictures import Stack, quantity

#: The operations at which a step of the catalog's GPTs can peak, within what the explorer's controls reach.
TOPS = (
    ("loss backward", "negative log-likelihood backward"),
    ("loss backward", "log-softmax backward"),
    ("loss backward", "head input gradient"),
    ("loss backward", "head weight gradient cast"),
    ("backward", "down bias gradient"),
    ("backward", "token gradient"),
    ("backward", "token gradients added"),
    ("optimizer step", "fp32 gradients"),
    ("optimizer step", "root of the variance"),
    ("optimizer step", "root of one tensor's variance"),
)
PARTS = ("parameters", "casts", "buffers", "gradients", "optimizer", "activations", "loss")


@dataclass(frozen=True)
class Peak(Stack):
    """A bar for each option: the amounts at the one of several instants at which they are the most in all.

    Attributes:
        parts: [(part of the palette, label, the part)]. instants: [(where, {part: quantity})].
    """

    instants: Sequence[tuple[str, Mapping[str, object]]] = ()

    kind = "peak"

    def quantities(self):
        """Every quantity that it evaluates."""
        return list(dict.fromkeys(q for _, amounts in self.instants for q in amounts.values()))

    def spec(self):
        """What the picture needs to know."""
        parts = [{"part": part, "label": label, "formula": name} for part, label, name in self.parts]
        instants = [[where, {p: quantity(q).name for p, q in amounts.items()}] for where, amounts in self.instants]
        return {"parts": parts, "instants": instants, "unit": self.unit, "bars": self.bars, "shares": self.shares}

    def highest(self, values):
        """(where, {part: amount}) of the instant with the most, the first of equal ones."""
        found = [(where, {p: quantity(q)(**values) for p, q in amounts.items()}) for where, amounts in self.instants]
        return max(found, key=lambda instant: sum(instant[1].values()))

    def compute(self, values):
        """[(part, label, amount)] at the symbols' values."""
        amounts = self.highest(values)[1]
        return [(part, label, amounts.get(name, 0)) for part, label, name in self.parts]

    def describe(self, subject, values):
        """The sentence for a state, as picture.js says it."""
        return f"{super().describe(subject, values)} The peak is in {self.highest(values)[0]}."


@cache
def _instants():
    """`TOPS`, each part's bytes as one formula, equal ones shared."""
    from ..formulas.step import instants

    formulas = {}

    def amount(expr):
        return formulas.setdefault(expr, Formula(f"amount {len(formulas)}", "", expr, "B", "the ledger", ""))

    tops = [i for i in instants() if (i.moment, i.name) in TOPS]  # of the blocks, the first and the last
    return [(i.moment, {p: amount(x) for p, x in i.parts.items() if x != 0}) for i in tops]


def precision(model: Model | None = None, setup: Setup | None = None, gpu: Gpu | None = None) -> Explorer:
    """The peak of a GPT's training step with the plain loss, in exact tensor bytes: a bar for every precision.

    Args:
        model, setup, gpu: what it opens with; by default GPT-2, and what the other explorers show.

    Raises:
        ValueError: a model that is not one of the catalog's of GPT-2's architecture; a batch or a sequence that is no
            power of two; a GPU that is not in the catalog.
    """
    from ..catalog import models

    known = {name: m for name, m in models().items() if not m.unlike_gpt()}
    start, chosen = model or known["gpt2"], setup or Setup()
    checks.one_of("precision", "model", start.name, known)
    shortest = min(m.positions for m in known.values())
    controls = [
        Choice("model", "model", {name: bindings(m, None) for name, m in known.items()}, start.name),
        shared("precision", setup and precision_label(setup)),
        *of_the_step(setup, chosen, shortest),
        shared("gpu", gpu and gpu.name),
    ]  # fmt: skip
    large = {"model": "gpt2-xl", "attention": "flash", "dropout": "(no dropout)", "optimizer": "adamw",
             "optimizer_impl": "foreach", "batch": "8", "sequence": "1,024", "precision": "bf16-mixed"}  # fmt: skip
    presets = {
        "XL, autocast, flash": large,
        "XL, autocast, eager": large | {"attention": "eager"},
        "eager with dropout": large | {"attention": "eager", "dropout": "dropout"},
        "XL, one short sequence": large | {"batch": "1", "sequence": "128"},
    }
    parts = [(part, draw.part(part).label, part) for part in PARTS]
    return Explorer(
        "The peak of one training step, by precision", controls, Peak(parts, bars="precision", instants=_instants()), presets,
        derived=[("fused_adam", adam * (1 - foreach - loop))],
        subject=("model", "precision", "attention", "dropout", "optimizer", "optimizer_impl"), also=("batch", "sequence"),
    )  # fmt: skip
