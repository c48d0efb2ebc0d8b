"""The explorers of a step's peak: a bar for each precision, number of GPUs, cut of the batch, set of switches or way to fine-tune."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from sympy import Min, ceiling

from .. import draw
from ..ask.choices import COMMON_OPTIMIZERS, PRECISIONS, Checkpointing
from ..ask.setup import Lora, Setup
from ..catalog import Gpu, Model, gpus, models
from ..common import checks
from ..formulas import bindings
from ..formulas.symbols import B, G, autocast, n_a, w
from .beside import said
from .controls import (
    OF_THE_STEP,
    Choice,
    asked,
    counted,
    gpts,
    gpus_label,
    listed,
    of_the_step,
    opens,
    powers,
    precision_label,
    shared,
    steps,
    usable,
)  # fmt: skip
from .courses import AXES, BY, CHUNKS, LONE, UPDATE_BY, Courses, Steps, cases, kinds, numbers_of, only
from .explorer import Explorer, told
from .pictures import Stack


@dataclass(frozen=True)
class Peak(Stack):
    """A bar for each option: the amounts at the operation of its step at which they are the most in all.

    Attributes:
        parts: [(part of the palette, label, the part)]. courses: the steps that the values choose from.
    """

    courses: Steps | None = None

    kind = "peak"

    @property
    def names(self):
        """The names of values that choose a course."""
        return self.courses.names

    def quantities(self):
        return self.courses.sizes

    def spec(self):
        parts = [{"part": part, "label": label, "formula": name} for part, label, name in self.parts]
        return self.shape() | {"parts": parts, "courses": self.courses.spec()}

    def highest(self, values):
        """(where, {part: amount}) of the operation with the most bytes, the first of equal ones."""
        return self.courses.peak(values)

    def compute(self, values):
        """[(part, label, amount)] at the symbols' values."""
        amounts = self.highest(values)[1]
        return [(part, label, amounts.get(name, 0)) for part, label, name in self.parts]

    def describe(self, subject, values):
        return f"{super().describe(subject, values)} The peak is in {self.highest(values)[0]}."


def labelled(parts: Sequence[str]) -> list[tuple[str, str, str]]:
    """Parts of the palette, with their labels, as `Peak` takes them."""
    return [(part, draw.part(part).label, part) for part in parts]


def peaks(name: str, bars: str, courses: Steps) -> Peak:
    """The picture of an explorer whose parts stand in explorers.toml."""
    return Peak(labelled(said(name)["parts"]), bars=bars, courses=courses)


@opens(*OF_THE_STEP)
def precision(model: Model | None = None, setup: Setup | None = None, gpu: Gpu | None = None) -> Explorer:
    """Chapter 21: the peak of a GPT's training step with the plain loss, in exact tensor bytes, a bar for every precision.

    The model is one of the catalog's of GPT-2's architecture, by default GPT-2.
    """
    known = gpts()
    options, deepest = kinds(known)
    start, chosen = model or known["gpt2"], setup or Setup()
    checks.one_of("precision", "model", start.name, known)
    controls = [
        Choice("model", "model", options, start.name),
        *asked(setup, "precision"),
        *of_the_step(setup, chosen, min(m.positions for m in known.values())),
        shared("gpu", gpu and gpu.name),
    ]
    courses = Courses("precision", *cases(deepest, *BY), *cases(deepest, *UPDATE_BY))
    return told("precision", controls, peaks("precision", "precision", courses), derived=[LONE])


#: The explorer's largest number of GPUs.
MOST = 4096


def _divided(fields):
    """Whether FSDP takes a precision: no loss scaling, no buffer of gradients."""
    return not PRECISIONS[fields["precision"]].loss_scaling and fields.get("master_gradients", "bf16") == "bf16"


_FORMS = only("form", *(i for i, fields in enumerate(AXES["form"]) if _divided(fields)))
_UPDATED = only("precision_no", *(i for i, fields in enumerate(AXES["precision_no"]) if _divided(fields)))
#: Whether several GPUs share the model.
_SEVERAL = ("several", Min(G - 1, 1))


def _precisions(others, **also):
    """{precision that FSDP takes: its symbols' values, but for those that other controls give}."""
    setups = [Setup(**fields, **also) for fields in _UPDATED.values()]
    values = {setup.precision: bindings(None, setup) | numbers_of(setup) for setup in setups}
    others = {"optimizer_no", "impl_no", "shards", "batch", "sequence", *others}
    return {name: {n: v for n, v in found.items() if n not in others} for name, found in values.items()}


@opens(*OF_THE_STEP, "gpus", "sharding")
def sharding(model: Model | None = None, setup: Setup | None = None, gpu: Gpu | None = None) -> Explorer:
    """Chapter 32: the peak of a GPT's step under FSDP (`zero3`, by blocks), on one GPU, in exact tensor bytes, a bar for every number
    of GPUs.

    The model is one of the catalog's of GPT-2's architecture; by default GPT-2 XL under mixed precision on 8 GPUs.
    """
    known = gpts()
    options, deepest = kinds(known)
    start, chosen = model or known["gpt2-xl"], setup or Setup(gpus=8, sharding="zero3", precision="bf16-mixed")
    checks.one_of("sharding", "model", start.name, known)
    checks.one_of("sharding", "setup.sharding", chosen.sharding, ("zero3",))
    controls = [
        Choice("precision", "precision", _precisions(("eager", "dropout"), sharding="zero3"), chosen.precision),
        Choice("model", "model", options, start.name),
        steps("gpus", "number of GPUs", powers(0, MOST.bit_length() - 1), chosen.gpus, "shards", gpus_label),
        *of_the_step(setup, chosen, min(m.positions for m in known.values())),
        shared("gpu", gpu and gpu.name),
    ]
    several = {0: {"sharding": "zero3"}, 1: {"sharding": "zero3", "gpus": 2}}
    batches = cases(deepest, *BY, form=_FORMS, several=several)
    updates = cases(deepest, *UPDATE_BY, precision_no=_UPDATED, several=several)
    courses = Courses("sharding", *batches, *updates)
    return told("sharding", controls, peaks("sharding", "gpus", courses), derived=[LONE, _SEVERAL])


#: A step whose sequences are cut into batches: how many there are, with how many sequences, and whether there are several.
CUT = [("accumulation", Min(n_a, B)), ("batch", ceiling(B / n_a)), ("accumulated", Min(n_a - 1, 1)), LONE]
_ADAMW = only("optimizer_no", COMMON_OPTIMIZERS.index("adamw"))


@opens("batch", "accumulation", "sequence", "precision", "master_gradients", "attention", "loss", "optimizer_impl")
def batches(model: Model | None = None, setup: Setup | None = None, gpu: Gpu | None = None) -> Explorer:
    """Chapter 23: the peak of one step of a GPT in exact tensor bytes, a bar for each number of micro-batches that its sequences are
    cut into.

    The model is one of GPT-2's four sizes, by default GPT-2 XL in fp32; `batch` times `accumulation` are the sequences of the whole
    step. AdamW, foreach or fused; the loss plain or in 8 chunks; no dropout, no checkpointing.
    """
    known = {
        name: m for name, m in gpts().items() if m.qkv_bias and m.ffn_width == 4 * m.width and name.startswith("gpt2")
    }
    options, deepest = kinds(known)
    start, chosen = model or known["gpt2-xl"], setup or Setup(precision="fp32")
    checks.one_of("batches", "model", start.name, known)
    checks.one_of("batches", "setup.loss", chosen.loss, ("plain", "chunked"))
    losses = {
        "plain loss": {"chunked": 0, "loss_chunks": 1},
        f"loss in {CHUNKS} chunks": {"chunked": 1, "loss_chunks": CHUNKS},
    }
    fused = {"foreach": {"impl_no": 0}, "fused": {"impl_no": 2}}
    controls = [
        Choice("model", "model", options, start.name),
        shared("precision", precision_label(chosen)),
        *asked(chosen, "attention"),
        Choice("loss", "loss", losses, list(losses)[chosen.loss == "chunked"]),
        Choice("step", "optimizer's step", fused, chosen.optimizer_impl),
        steps("whole", "in a step", powers(0, 8), chosen.batch * chosen.accumulation, "batch", counted("sequence")),
        steps("sequence", "sequence (tokens)", powers(7, 10), chosen.sequence),
        steps("cut", "cut into", powers(0, 6), chosen.accumulation, "accumulation", counted("micro-batch", "es")),
        shared("gpu", gpu and gpu.name),
    ]
    every = cases(deepest, "form", "eager", "lone", "accumulated", "chunked")
    courses = Courses("batches", *every, *cases(deepest, *UPDATE_BY, optimizer_no=_ADAMW))
    return told("batches", controls, peaks("batches", "cut", courses), derived=CUT)


#: The bars of `planning`: sets of switches, the symbols' values that each has beside the chosen ones.
SWITCHES = said("planning")["switches"]
#: What it opens with: the run that chapter 45 plans.
OPENS = Setup(gpus=8, sharding="zero3", precision="bf16-mixed", batch=2, sequence=8192)
#: FSDP gathers casts, so no product of several GPUs needs one of its own.
_FSDP = [_SEVERAL, ("weight_bytes", w - 2 * autocast * _SEVERAL[1])]


@opens("batch", "sequence", "precision", "gpus", "sharding")
def planning(model: Model | None = None, setup: Setup | None = None, gpu: Gpu | None = None) -> Explorer:
    """Chapter 45: the peak of a Llama's step on one GPU, or on each of several under FSDP, in exact tensor bytes, a bar for each set of
    switches, against what a GPU has usable.

    By default Llama-3.1-8B on 8 H100s, two sequences of 8,192 tokens on each. AdamW, flash attention, the plain loss; several GPUs
    share the model by `zero3`.
    """
    known = {name: models()[name] for name in said("planning")["models"]}
    options, deepest = kinds(known)
    start, chosen = model or known["llama-3.1-8b"], setup or OPENS
    card = gpu.name if gpu else "h100-80gb"
    checks.one_of("planning", "model", start.name, known)
    checks.one_of("planning", "gpu", card, gpus())
    checks.one_of("planning", "setup.sharding", chosen.sharding, ("zero3",) if chosen.gpus > 1 else ("none",))
    plain = said("planning")["asked"]
    controls = [
        Choice("model", "model", options, start.name),
        Choice("gpu", "GPU", usable(gpus()), card),
        steps("gpus", "number of GPUs", powers(0, 10), chosen.gpus, "shards", gpus_label),
        Choice("precision", "precision", _precisions(plain), chosen.precision),
        steps("batch", "batch of each (sequences)", powers(0, 8), chosen.batch),
        steps("sequence", "sequence (tokens)", powers(7, 17), chosen.sequence),
        Choice("switches", "switches", {label: plain | more for label, more in SWITCHES.items()}, "as chosen"),
    ]
    several = {0: {}, 1: {"sharding": "zero3", "gpus": 2}}
    every = cases(deepest, "form", "lone", "segmented", "accumulated", "chunked", form=_FORMS, several=several)
    updates = cases(deepest, *UPDATE_BY, precision_no=_UPDATED, optimizer_no=_ADAMW, several=several)
    courses = Courses("planning", *every, *updates)
    return told("planning", controls, peaks("planning", "switches", courses), derived=[*CUT, *_FSDP])


MODELS: list[str] = said("adapters")["models"]
#: Way to fine-tune -> fields of the setup; of the adapters, without which it is full fine-tuning.
WAYS: dict[str, dict] = said("adapters")["ways"]
TARGETS: dict[str, tuple[str, ...] | str] = {
    "q and v": ("q", "v"), "attention": ("q", "k", "v", "out"), "all linear layers": "all-linear",
}  # fmt: skip
#: What `lora_dropout` is; any above 0 costs the same.
DROPOUTS = {"no dropout": 0.0, "adapters' dropout 0.05": 0.05}
AGAIN: dict[str, Checkpointing] = {"(nothing recomputed)": "none", "full checkpointing": "full"}
#: Ranks offered; and what a course's sizes read of a setup.
RANKS = powers(1, 8)
_READ = ("weight_bytes", "stored_weight_bytes", "adapter_bytes", "compute_bytes", "state_bytes", "reduced_bytes")


def setup_of(
    way: str,
    targets: str = "all linear layers",
    again: Checkpointing = "none",
    rank: int = 16,
    dropout: float = 0.0,
    **more,
) -> Setup:
    """The setup of one of `WAYS`, with AdamW in one kernel."""
    fields, lora = WAYS[way]["setup"], WAYS[way].get("lora")
    beside = None if lora is None else Lora(rank, TARGETS[targets], dropout=dropout, **lora)
    return Setup(**fields, adapters=beside, checkpointing=again, optimizer_impl="fused", **more)


@opens("batch", "sequence")
def adapters(model: Model | None = None, setup: Setup | None = None, gpu: Gpu | None = None) -> Explorer:
    """Chapter 25: the peak of one fine-tuning step in exact tensor bytes, a bar for each way to train, against a GPU's memory.

    By default Llama 3.1 8B in QLoRA, one sequence of 2,048 tokens, on an RTX 4090.
    """
    start, chosen = model or models()["llama-3.1-8b"], setup or Setup(batch=1, sequence=2048)
    checks.one_of("adapters", "model", start.name, MODELS)
    options, deepest = kinds({name: models()[name] for name in MODELS})
    ways = {way: bindings(None, setup_of(way)) for way in WAYS}
    controls = [
        Choice("model", "model", options, start.name),
        Choice(
            "way",
            "way to train",
            {way: {"way": i} | {n: ways[way][n] for n in _READ} for i, way in enumerate(ways)},
            "QLoRA",
        ),
        listed("targets", "targets", TARGETS, "all linear layers"),
        listed("dropout", "dropout", DROPOUTS, symbol="dropped"),
        steps("rank", "rank", RANKS, 16, "adapter_rank", "rank {}".format),
        listed("again", "checkpointing", AGAIN, "full checkpointing"),
        *asked(chosen, "batch", "sequence"),
        shared("gpu", gpu.name if gpu else "rtx-4090"),
    ]
    by = "kind", "way", "targets", "dropped", "again"
    found = {}
    for row in product(*map(enumerate, (deepest, WAYS, TARGETS, DROPOUTS.values(), AGAIN.values()))):
        numbers, (deep, way, targets, dropout, again) = zip(*row, strict=True)
        found[numbers] = deep, setup_of(way, targets, again, dropout=dropout, batch=2, sequence=2)
    updates = {numbers[:3]: case for numbers, case in found.items() if not any(numbers[3:])}
    courses = Courses("adapters", by, found, by[:3], updates)
    return told("adapters", controls, peaks("adapters", "way", courses))
