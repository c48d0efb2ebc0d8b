"""Chapter 32's explorer: the peak of one training step under FSDP, by part, for every number of GPUs side by side."""

from dataclasses import dataclass
from functools import cache

from sympy import Min

from .. import checks, draw
from ..catalog import Gpu, Model
from ..formulas import Formula, bindings, formula
from ..formulas.ledger import exact
from ..formulas.sharding import Kind, UnitLedger
from ..formulas.symbols import G, L, adam, foreach, loop
from ..formulas.walking import Shape, walk
from ..setup import PRECISIONS, Setup
from .controls import Choice, of_the_step, shared
from .explorer import Explorer
from .precision import Peak

#: The operations at which a step of the catalog's GPTs can peak, within what the explorer's controls reach.
TOPS = (
    ("loss backward", "log-softmax backward"),
    ("loss backward", "head input gradient"),
    ("backward", "down bias gradient"),
    ("backward", "down input gradient"),
    ("backward", "up bias gradient"),
    ("backward", "weights gradient"),
    ("backward", "softmax backward"),
    ("backward", "qkv bias gradient"),
    ("backward", "token gradients added"),
    ("optimizer step", "fp32 gradients"),
    ("optimizer step", "root of the variance"),
    ("optimizer step", "root of one tensor's variance"),
)
PARTS = ("parameters", "buffers", "unsharded", "communication", "gradients", "optimizer", "activations", "loss")
#: The explorer's numbers of GPUs.
MOST = 4096


class _Gathering(UnitLedger):
    """A unit's ledger for any number of GPUs: one alone has nobody to gather from, so its flat buffers are empty."""

    regathers = True

    def _gathered(self, unit, moment):
        before = len(self._lines)
        super()._gathered(unit, moment)
        for line in self._lines[before:]:
            line.taken = {name: (part, Min(G - 1, 1) * size) for name, (part, size) in line.taken.items()}


@dataclass(frozen=True)
class _Units(Shape):
    """A step whose number of blocks is a letter: at least three."""

    def _blocks_forward(self, whole):
        yield from self._each("first_unit", "block_forward", "unit_let_go")
        yield from self._each("next_unit", "block_forward", "unit_let_go", times=L - 2)
        yield from self._each("next_unit", "block_forward", "unit_let_go")

    def _blocks_backward(self, whole):
        inner = "unit_again", "unit_prefetched", "block_backward", "block_ends", "block_reduced"
        yield from self._each("unit_again", "unit_prefetched", "block_backward", "block_reduced")
        yield from self._each(*inner)
        yield from self._each(*inner, times=L - 3)
        yield from self._each("unit_again", "block_backward", "block_ends", "block_reduced")

    def _each(self, *sections, times=1):
        for section in sections:
            yield section, times == 1, times


def _seen():
    """Every instant of a step under `zero3` that is worth seeing: (moment, operation, part -> expression)."""
    found = []

    def see(moment, name, live):
        if name is not None:
            found.append((moment, name, dict(live)))

    rest = Kind("zero3", "block").rest(exact) | {"buffers": formula("buffers").expr}
    walk(_Gathering(exact).amounts(), _Units(3), rest, see)
    return found


@cache
def _instants():
    """`TOPS`, each part's bytes as one formula, equal ones shared."""
    formulas = {}

    def amount(expr):
        return formulas.setdefault(expr, Formula(f"amount {len(formulas)}", "", expr, "B", "the ledger", ""))

    tops = [(moment, parts) for moment, name, parts in _seen() if (moment, name) in TOPS]
    return [(moment, {p: amount(x) for p, x in parts.items() if x != 0}) for moment, parts in tops]


def gpus_label(count: int) -> str:
    """The option for so many GPUs."""
    return f"{count:,} GPU{'s' * (count > 1)}"


def sharding(model: Model | None = None, setup: Setup | None = None, gpu: Gpu | None = None) -> Explorer:
    """The peak of a GPT's step under FSDP (`zero3`, by blocks), on one GPU, in exact tensor bytes: a bar for every number of GPUs.

    Args:
        model, setup, gpu: what it opens with; by default GPT-2 XL under mixed precision on 8 GPUs.

    Raises:
        ValueError: a model that is not one of the catalog's of GPT-2's architecture; a batch, a sequence or a number of
            GPUs that is no power of two, or too large; a precision that FSDP does not take; a GPU that is not in the catalog.
    """
    from ..catalog import models

    known = {name: m for name, m in models().items() if not m.unlike_gpt()}
    start, chosen = model or known["gpt2-xl"], setup or Setup(gpus=8, sharding="zero3", precision="bf16-mixed")
    checks.one_of("sharding", "model", start.name, known)
    precisions = {
        p: bindings(None, Setup(precision=p, sharding="zero3")) for p in PRECISIONS if not PRECISIONS[p].loss_scaling
    }
    shortest = min(m.positions for m in known.values())
    controls = [
        Choice("precision", "precision", precisions, chosen.precision),
        Choice("model", "model", {name: bindings(m, None) for name, m in known.items()}, start.name),
        Choice("gpus", "number of GPUs", {gpus_label(2**i): {"shards": 2**i} for i in range(MOST.bit_length())},
               gpus_label(chosen.gpus), kind="slider"),
        *of_the_step(setup, chosen, shortest),
        shared("gpu", gpu and gpu.name),
    ]  # fmt: skip
    large = {"model": "gpt2-xl", "precision": "bf16-mixed", "attention": "flash", "dropout": "(no dropout)",
             "optimizer": "adamw", "optimizer_impl": "foreach", "batch": "8", "sequence": "1,024", "gpus": gpus_label(8)}  # fmt: skip
    presets = {
        "XL, one sequence on 1,024": large | {"batch": "1", "gpus": gpus_label(1024)},
        "GPT-2 on 4,096": large | {"model": "gpt2", "gpus": gpus_label(MOST), "batch": "1"},
        "XL, one short sequence": large | {"batch": "1", "sequence": "128", "gpus": gpus_label(64)},
        "XL, fp32, eager": large | {"precision": "fp32", "attention": "eager"},
    }
    parts = [(part, draw.part(part).label, part) for part in PARTS]
    return Explorer(
        "The peak of one training step on one GPU, by the number of GPUs", controls,
        Peak(parts, bars="gpus", instants=_instants()), presets,
        derived=[("fused_adam", adam * (1 - foreach - loop))],
        subject=("model", "precision", "gpus", "attention", "dropout", "optimizer", "optimizer_impl"), also=("batch", "sequence"),
    )  # fmt: skip
