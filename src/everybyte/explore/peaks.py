"""Explorers of a peak, with a bar for each number of GPUs, set of switches, way to train or to serve."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from sympy import Min, ceiling

from ..answers.headroom import ROUNDING, Headroom
from ..answers.serving import MOST as UNLIMITED
from ..answers.serving import cache_bytes, largest, weight_bytes
from ..ask.choices import COMMON_OPTIMIZERS, PRECISIONS, Checkpointing
from ..ask.setup import Lora, Setup
from ..catalog import Gpu, Model, models
from ..common import checks
from ..common.tables import Table
from ..formulas import bindings
from ..formulas.symbols import B, G, autocast, n_a, w
from ..theory import inference
from ..theory.letters import factor, text
from .beside import said, table
from .controls import (
    OF_THE_STEP,
    Choice,
    Slider,
    asked,
    cards,
    counted,
    gpts,
    listed,
    looked_up,
    of_catalog,
    one_step,
    opens,
    powers,
    shared,
    steps,
    usable_of_each,
)  # fmt: skip
from .courses import (
    AXES,
    BY,
    LONE,
    UPDATE_BY,
    Courses,
    Printer,
    Size,
    Steps,
    cases,
    kinds,
    numbers_of,
    only,
)  # fmt: skip
from .explorer import Explorer, told
from .pictures import Stack, labelled, may_run_out

#: The file of what PyTorch's allocator needs beside live bytes, beside this one; `tools/explorers.py` writes it: explorer -> bar -> the
#: percent of one GPU, and of several where there are, the most of the steps that were simulated. And how many those are, each.
PIECES, SIMULATED = "pieces.json", 12


def margin(name: str, symbols: Sequence[str], labels: Mapping[int, str]) -> list[tuple]:
    """Derived values: the percent of live bytes that PyTorch's allocator may need beside them, and how many steps were simulated.

    Args:
        name: of the explorer. symbols: what chooses a bar, and where each has one for several GPUs too, `several`. labels: value of
            the first -> the bar's label.
    """
    rows = table(PIECES)[name]
    found = {value: rows[label] if len(symbols) > 1 else rows[label][0] for value, label in labels.items()}
    return [
        ("margin", looked_up("percent kept in pieces", symbols, found)),
        ("simulated", Size("steps", str(SIMULATED), {})),
    ]


@dataclass(frozen=True)
class Peak(Stack):
    """A bar for each option: the amounts by part at the peak of its step.

    Attributes:
        parts: [(part of the palette, label, the part)]. courses: the steps that the values choose from.
    """

    courses: Steps | None = None

    kind = "peak"

    def quantities(self):
        return self.courses.sizes

    def highest(self, values):
        """(where, {part: amount}) at the peak: the first operation with the most bytes."""
        return self.courses.peak(values)

    def compute(self, values):
        """[(part, label, amount)] at the symbols' values."""
        amounts = self.highest(values)[1]
        return [(part, label, amounts.get(name, 0)) for part, label, name in self.parts]

    def describe(self, subject, values):
        return f"{super().describe(subject, values)} The peak is in {self.highest(values)[0]}."

    def figure(self, title, subject, values, variants):
        def said(row):
            return " (may run out)" * may_run_out(row, sum(x for *_, x in self.compute(row)))

        return super().figure(title, subject, values, {label + said(row): row for label, row in variants.items()})


def peaks(name: str, bars: str, courses: Steps, kind: type[Peak] = Peak, **more) -> Peak:
    """The picture of an explorer whose parts stand in explorers.toml."""
    parts = [(part, label, part) for part, label in labelled(said(name)["parts"])]
    return kind(parts, bars=bars, courses=courses, **more)


#: The explorer's largest number of GPUs.
MOST = 4096


def _divided(fields):
    """Whether FSDP supports a precision: without loss scaling and without a buffer of gradients."""
    return not PRECISIONS[fields["precision"]].loss_scaling and fields.get("master_gradients", "bf16") == "bf16"


_FORMS = only("form", *(i for i, fields in enumerate(AXES["form"]) if _divided(fields)))
_UPDATED = only("precision_no", *(i for i, fields in enumerate(AXES["precision_no"]) if _divided(fields)))
#: The bars of `sharding` that have a margin of their own.
SHARING = ("1 GPU", "several GPUs")
#: Whether several GPUs share the model.
_SEVERAL = ("several", Min(G - 1, 1))


def _precisions(others, **also):
    """{precision that FSDP supports: its symbols' values}, without those that other controls give (`others`)."""
    setups = [Setup(**fields, **also) for fields in _UPDATED.values()]
    values = {setup.precision: bindings(None, setup) | numbers_of(setup) for setup in setups}
    others = {"optimizer_no", "impl_no", "shards", "batch", "sequence", *others}
    return {name: {n: v for n, v in found.items() if n not in others} for name, found in values.items()}


#: `sharding` of GPTs, as its stored margins name it.
OF_GPTS = "sharding of GPTs"


@opens(*OF_THE_STEP, "gpus", "sharding")
def sharding(model: Model | None = None, setup: Setup | None = None, gpu: Gpu | None = None) -> Explorer:
    """Chapter 32: the peak of a step under FSDP (`zero3`, by blocks) on one GPU, a bar for every number of GPUs.

    The model is a Llama or a GPT of the catalog, in the book's code, beside others of its kind. The default is Llama 3.1 8B under mixed
    precision on 8 GPUs, one sequence of 4,096 tokens on each.
    """
    start, counts = model or models("reference")["llama-3.1-8b"], powers(0, MOST.bit_length() - 1)
    words, usual = said("sharding"), Setup(gpus=8, sharding="zero3", precision="bf16-mixed")
    of_gpts, llamas = start.family == "gpt", {name: models("reference")[name] for name in words["models"]}
    of_catalog("sharding", start, gpts() | llamas)
    known, dropouts, named = (gpts(), (0, 1), OF_GPTS) if of_gpts else (llamas, (0,), "sharding")
    options, deepest = kinds(known)
    chosen = setup or (usual if of_gpts else usual.replace(batch=1, sequence=4096))
    checks.one_of("sharding", "setup.sharding", chosen.sharding, ("zero3",))
    controls = [
        Choice("precision", "precision", _precisions(("eager", "dropout"), sharding="zero3"), chosen.precision),
        Choice("model", "model", options, start.name),
        steps("gpus", "number of GPUs", counts, chosen.gpus, "shards", counted("GPU")),
        *one_step(setup if of_gpts else chosen, chosen, min(m.positions for m in known.values()), dropouts),
        shared("gpu", gpu and gpu.name),
    ]
    several: dict[int, dict] = {0: {"sharding": "zero3"}, 1: {"sharding": "zero3", "gpus": 2}}
    masks = {i: AXES["dropout"][i] for i in dropouts}
    batches = cases(deepest, *BY, form=_FORMS, several=several, dropout=masks)
    updates = cases(deepest, *UPDATE_BY, precision_no=_UPDATED, several=several)
    courses = Courses(named, *batches, *updates)
    derived = [LONE, _SEVERAL, usable_of_each(counts), *margin(named, ("several",), dict(enumerate(SHARING)))]
    presets = {label: words["usual"] | changes for label, changes in words["gpts"].items()}
    more = {"presets": presets} if of_gpts else {}
    return told("sharding", controls, peaks("sharding", "gpus", courses), derived=derived, **more)


#: Derived values of a step cut into micro-batches: their number, the sequences of each, whether there are several.
CUT = [("accumulation", Min(n_a, B)), ("batch", ceiling(B / n_a)), ("accumulated", Min(n_a - 1, 1)), LONE]
_ADAMW = only("optimizer_no", COMMON_OPTIMIZERS.index("adamw"))


def _usable(cards: Mapping[str, Gpu]) -> dict[str, dict]:
    """The options of a choice of GPU: {name: its usable memory and its label}."""
    return {name: {"capacity": Headroom().usable(g), "capacity_label": f"{name}, usable"} for name, g in cards.items()}


#: The bars of `planning`: label of a set of switches -> symbols' values beside those of the controls.
SWITCHES = said("planning")["switches"]
#: The setup that `planning` opens with, which chapter 45 plans.
OPENS = Setup(gpus=8, sharding="zero3", precision="bf16-mixed", batch=2, sequence=8192)
#: FSDP gathers weights in the cast type, so autocast copies no weight on several GPUs.
_FSDP = [_SEVERAL, ("weight_bytes", w - 2 * autocast * _SEVERAL[1])]


@opens("batch", "sequence", "precision", "gpus", "sharding")
def planning(model: Model | None = None, setup: Setup | None = None, gpu: Gpu | None = None) -> Explorer:
    """Chapter 45: the peak of a Llama's step, a bar for each set of switches, against a GPU's usable memory.

    The default is Llama-3.1-8B on 8 H100s with two sequences of 8,192 tokens each. AdamW, flash attention, the plain loss; several
    GPUs divide the model by `zero3`.
    """
    known = {name: models("reference")[name] for name in said("planning")["models"]}
    options, deepest = kinds(known)
    start, chosen = model or known["llama-3.1-8b"], setup or OPENS
    card = gpu.name if gpu else "h100-80gb"
    of_catalog("planning", start, known)
    checks.one_of("planning", "gpu", card, cards())
    checks.one_of("planning", "setup.sharding", chosen.sharding, ("zero3",) if chosen.gpus > 1 else ("none",))
    plain, counts = said("planning")["asked"], powers(0, 10)
    switches = {label: plain | more | {"switch_no": i} for i, (label, more) in enumerate(SWITCHES.items())}
    offered = {name: {"card_no": i, "capacity_label": f"{name}, usable"} for i, name in enumerate(cards())}
    controls = [
        Choice("model", "model", options, start.name),
        Choice("gpu", "GPU", offered, card),
        steps("gpus", "number of GPUs", counts, chosen.gpus, "shards", counted("GPU")),
        Choice("precision", "precision", _precisions(plain), chosen.precision),
        steps("batch", "batch of each (sequences)", powers(0, 8), chosen.batch),
        steps("sequence", "sequence (tokens)", powers(7, 17), chosen.sequence),
        Choice("switches", "switches", switches, "as chosen"),
    ]
    several: dict[int, dict] = {0: {}, 1: {"sharding": "zero3", "gpus": 2}}
    every = cases(deepest, "form", "lone", "segmented", "accumulated", "chunked", form=_FORMS, several=several)
    updates = cases(deepest, *UPDATE_BY, precision_no=_UPDATED, optimizer_no=_ADAMW, several=several)
    courses = Courses("planning", *every, *updates)
    needs = margin("planning", ("switch_no", "several"), dict(enumerate(SWITCHES)))
    derived = [*CUT, *_FSDP, usable_of_each(counts), *needs]
    return told("planning", controls, peaks("planning", "switches", courses), derived=derived)


MODELS: list[str] = said("adapters")["models"]
#: Way to fine-tune -> its fields of the setup, and of the adapters (`lora`), which full fine-tuning has not.
WAYS: dict[str, dict] = said("adapters")["ways"]
TARGETS: dict[str, tuple[str, ...] | str] = {
    "q and v": ("q", "v"), "attention": ("q", "k", "v", "out"), "all linear layers": "all-linear",
}  # fmt: skip
#: Label -> `lora_dropout`; any value above 0 takes the same memory.
DROPOUTS = {"no dropout": 0.0, "adapters' dropout 0.05": 0.05}
AGAIN: dict[str, Checkpointing] = {"(nothing recomputed)": "none", "full checkpointing": "full"}
#: The ranks that are offered; the symbols of a setup that a course's sizes use.
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
    """The setup of one of `WAYS`, with fused AdamW."""
    fields, lora = WAYS[way]["setup"], WAYS[way].get("lora")
    beside = None if lora is None else Lora(rank, TARGETS[targets], dropout=dropout, **lora)
    return Setup(**fields, adapters=beside, checkpointing=again, optimizer_impl="fused", **more)


@opens("batch", "sequence")
def adapters(model: Model | None = None, setup: Setup | None = None, gpu: Gpu | None = None) -> Explorer:
    """Chapter 25: the peak of one fine-tuning step, a bar for each way to train, against a GPU's memory.

    The default is Llama 3.1 8B with QLoRA, one sequence of 2,048 tokens, on an RTX 4090.
    """
    start, chosen = model or models("reference")["llama-3.1-8b"], setup or Setup(batch=1, sequence=2048)
    known = {name: models("reference")[name] for name in MODELS}
    of_catalog("adapters", start, known)
    options, deepest = kinds(known)
    values = [bindings(None, setup_of(way)) for way in WAYS]
    ways = {way: {"way": i} | {name: values[i][name] for name in _READ} for i, way in enumerate(WAYS)}
    controls = [
        Choice("model", "model", options, start.name),
        Choice("way", "way to train", ways, "QLoRA"),
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
    needs = margin("adapters", ("way",), dict(enumerate(WAYS)))
    return told("adapters", controls, peaks("adapters", "way", courses), derived=needs)


# -- what fits where a model generates

CONTEXTS = powers(9, 17)
#: Tokens in a page.
PAGE = 16
#: Moment, a bar -> (data types of weights and paged cache, or None; the part whose look its curve has, or "").
MOMENTS: dict[str, tuple[Any, str]] = {
    label: (moment.get("types"), moment.get("look", "")) for label, moment in said("serving")["moments"].items()
}
_PASSES = ("prefill", "decode step")
#: A condition among the factors of a count.
_FLAG = re.compile(r"\bTrue\b")


class _Passes(Printer):
    """Puts each model's prefill, decode step and paged cache into tables, with tensors rounded up as by the allocator."""

    def __init__(self, models):
        super().__init__()
        for kind, model in enumerate(models):
            for i in range(len(_PASSES)):
                values = inference.letters(model, 2, 1 if i else 64, 64 if i else 0)
                course = inference.course(model, values)
                self.batches[f"{kind},{i}"] = self.step(course.rest, course.items)
            for i, (types, _) in enumerate(MOMENTS.values()):
                if types:
                    self.batches[f"{kind},{i}"] = self._pages(*types)
        self.updates[""] = self.put("steps", ((), ()))

    def amount(self, piece):
        """A piece's bytes as a text in letters, rounded up."""
        times = _FLAG.sub("1", text(piece.count))
        count = "" if times == "1" else f"*({times})"
        return f"{ROUNDING}*up(({factor(piece.numbers)})*{factor(piece.width)},{ROUNDING}){count}"

    def named(self, o):
        return o.name, f"{o.phase}, at {o.name!r}", o.owner

    def _pages(self, weights, cache):
        """A step whose one operation takes the weights and the pages of the cache."""
        sizes = {"parameters": f"Q_{weights}", "cache": f"B*up(C,{PAGE})*{PAGE}*k_{cache}"}
        pieces = tuple((part, self.put("sizes", size)) for part, size in sizes.items())
        body = self.put("bodies", ((self.put("operations", ("pages", "", "", pieces, ())),), (0, None), (0, None)))
        return self.put("steps", ((), (body,)))


def _values(model):
    found = inference.letters(model, 1, 1)
    for letter in ("B", "S", "T", "T_0"):
        del found[letter]
    for types in (types for types, _ in MOMENTS.values() if types):
        found[f"Q_{types[0]}"] = weight_bytes(model, types[0])
        found[f"k_{types[1]}"] = cache_bytes(model, 1, types[1])
    return found


@dataclass(frozen=True)
class Fitting(Peak):
    """A bar for each moment against a GPU's memory; below it curves of the most sequences that fit, over the context.

    Attributes:
        ways: moment -> the values that choose it. contexts: where the curves are evaluated. curves: (part of the palette,
            moment). unlimited: the most sequences that are searched.
    """

    ways: Mapping[str, Mapping] = field(default_factory=dict)
    contexts: Sequence[int] = ()
    curves: Sequence[tuple] = ()
    unlimited: int = UNLIMITED

    kind = "fitting"

    def most(self, values: Mapping, way: str, context: int | None = None) -> int:
        """The most sequences of `context` tokens whose moment fits; 0 where one does not fit."""
        values = {**values, **self.ways[way], "context": values["context"] if context is None else context}

        def size(number):
            return sum(self.highest({**values, **passed(values, number)})[1].values())

        return largest(size, values["capacity"]) if size(1) <= values["capacity"] else 0

    def describe(self, subject, values):
        where = self.highest(values)[0]
        bars = Stack.describe(self, subject, values) + (f" The largest moment is in {where}." if where else "")
        rows = ", ".join(f"{way} {self.most(values, way):,}" for way in self.ways)
        return f"{bars} Sequences of {values['context']:,} tokens that fit at most: {rows}."

    def figure(self, title, subject, values, variants):
        """matplotlib's figure of the bars, with the most that fit beside each name; `table` has the curves."""
        named = dict(zip(variants, self.ways, strict=True))
        rows = {f"{label}: at most {self.most(values, named[label]):,}": row for label, row in variants.items()}
        return super().figure(title, subject, values, rows)

    def table(self, subject, values):
        rows = [(way, *(f"{self.most(values, way, context):,}" for context in self.contexts[::2])) for way in self.ways]
        return Table(("at most", *(f"{context:,} tokens" for context in self.contexts[::2])), rows, subject)


def passed(values: Mapping, number: int) -> dict:
    """The letters of a moment with `number` sequences: their new tokens, their older ones, and all."""
    decode, context = values["decode"], values["context"]
    return {
        "B": number, "C": context, "S": 1 if decode else context - 1, "T": context - 1 + decode, "T_0": (context - 1) * decode,
    }  # fmt: skip


@opens()
def serving(model: Model | None = None, gpu: Gpu | None = None, concurrency: int = 33) -> Explorer:
    """Chapter 44: the memory of sequences that a model generates, and the most that fit, with a growing or a paged cache.

    The bytes are `eb.serve`'s, for the longest prompt: all tokens of the context but the last. The model, by default Llama 3.1 8B on
    an 80 GB H100, has no window, and at least as many positions as the longest context.

    Args:
        concurrency: sequences at once.
    """
    start, card = model or models("reference")["llama-3.1-8b"], gpu.name if gpu else "h100-80gb"
    inference.check(start)
    if start.window:
        raise ValueError(f"serving.model.window: {start.window:,} of {start.name}; allowed: 0, or ask eb.serve")
    if start.positions and start.positions < CONTEXTS[-1]:
        raise ValueError(
            f"serving.model.positions: {start.positions:,} of {start.name}; allowed: {CONTEXTS[-1]:,} or more, or ask eb.serve"
        )
    able = {name: g for name, g in cards().items() if g.bf16}  # in which weights and cache are
    checks.one_of("serving", "gpu", card, able)
    known = {name: models("reference")[name] for name in said("serving")["models"]} | {start.name: start}
    options = {name: _values(m) | {"kind": kind} for kind, (name, m) in enumerate(known.items())}
    ways = {label: {"moment": i, "decode": int(i == 1)} for i, label in enumerate(MOMENTS)}
    controls = [
        Choice("model", "model", options, start.name),
        Choice("gpu", "GPU", _usable(able), card),
        steps("tokens", "context (tokens)", CONTEXTS, 8192, "context"),
        Slider("concurrency", "sequences at once", 1, 512, concurrency),
        Choice("way", "moment", ways, "prefill"),
    ]
    derived = [(name, Size(words, source, {})) for words, (name, source) in said("serving")["values"].items()]
    courses = Steps(("kind", "moment"), (), _Passes(list(known.values())).tables(), {})
    curves = [(part, label) for label, (_, part) in MOMENTS.items() if part]
    picture = peaks("serving", "way", courses, Fitting, ways=ways, contexts=CONTEXTS, curves=curves)
    return told("serving", controls, picture, derived=derived)
