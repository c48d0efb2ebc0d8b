"""Interview questions, answered in thirty seconds with numbers for the model, GPU and setup that the reader chooses.

The text stands in `cards.toml`; a number stands there as its name in braces, and is computed here when it is asked for.
"""

import csv
import io
import os
import re
import tomllib
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import cache, cached_property
from html import escape
from importlib import resources
from math import ceil, sqrt
from pathlib import Path
from typing import Any

from .. import checks, files, units
from ..budget import budget
from ..catalog import Gpu, Model, model
from ..catalog.weights import layers, weights
from ..fit import fit
from ..formulas import formula
from ..formulas.formats import BLOCKS, FLOATS
from ..headroom import ROUNDING, Headroom, find_gpu
from ..mesh import Mesh
from ..plan import matrix_flops, work
from ..serving import cache_bytes, weight_bytes
from ..setup import DTYPE_BYTES, Lora, Setup
from ..tables import Table
from ..theory.inference import course, letters

PARTS = {1: "What fills the GPU", 2: "Saving it on one GPU", 3: "Many GPUs", 4: "Practice"}
#: Where nothing else is chosen: the GPUs of part 3, adapters' rank, the step of the late out-of-memory, a dropout.
GPUS, RANK, LATE_STEP, DROPOUT = 8, 16, 5_000, 0.1
#: Tokens of a long sequence.
LONG = 8192
#: GPUs of a layout; those that share a sequence of a million tokens.
CLUSTER, RING = 64, Mesh(context=16)
#: Tokens in a page of a paged cache, as vLLM has it.
PAGE = 16
#: One minus Adam's beta_2, PyTorch's default: the share of a new squared gradient in the average.
NEW = 0.001
_NAME = re.compile(r"\{(\w+)\}")
_BACK = 3  # cards that come before one that was missed comes back


class _Derived:
    """A derivation in a model's place: its peaks and its parameters are known, its dimensions are not."""

    def __init__(self, derivation):
        self.derivation, self.name, self.parameters = derivation, derivation.name, derivation.parameters

    def __getattr__(self, field):
        raise ValueError(f"a derivation of {self.name} does not say its {field.replace('_', ' ')}")

    def unlike_reference(self, *_):
        return f"a derivation of {self.name} knows whole steps, and not what each operation saves"

    def at(self, setup, rounding):
        """The bytes of a step; ValueError where it was derived under another setup."""
        asked, made = setup.as_dict(), self.derivation.setup.as_dict()
        for field in asked.keys() - {"batch", "sequence"}:
            if asked[field] != made[field]:
                raise ValueError(
                    f"{self.name} was derived with {field.replace('_', ' ')} {made[field]}, not {asked[field]}"
                )
        return self.derivation.at(setup.batch, setup.sequence, rounding)


@cache
def _budget(model, setup, rounding=1):
    return model.at(setup, rounding) if isinstance(model, _Derived) else budget(model, setup, rounding)


@cache
def _fit(model, setup, gpu, vary):
    _budget(model, setup)
    found = fit(model.derivation if isinstance(model, _Derived) else model, setup, gpu, vary)
    value = found.value
    if isinstance(model, _Derived) and found.fits and found.next is None:
        raise ValueError(found.limit["bound"])
    if value is None:
        raise ValueError(f"no {vary} fits {gpu.name}")
    return value


#: A field that is changed -> what of it must go back to the default.
_WITH: dict[str, dict[str, object]] = {
    "checkpointing": {"checkpoint_every": 2},
    "loss": {"loss_chunks": 8},
    "precision": {"master_gradients": "bf16"},
    "sharding": {"sharding_units": "block", "replicas": 1, "buckets": "copies"},
}
_ONE = {"gpus": 1, "sharding": "none"} | _WITH["sharding"]


@dataclass(frozen=True)
class Case:
    """What the numbers are for. Questions about one GPU take the setup on one GPU; those about many, its GPUs, or 8."""

    model: Model
    gpu: Gpu
    setup: Setup

    @property
    def one(self) -> Setup:
        """The setup on one GPU."""
        return self.setup.replace(**_ONE)

    @property
    def gpus(self) -> int:
        """GPUs, of questions about many."""
        return self.setup.gpus if self.setup.gpus > 1 else GPUS

    def having(self, **changes) -> Setup:
        """The setup on one GPU with some fields changed."""
        usual = {}
        for field in changes:
            usual |= _WITH.get(field, {})
        return self.one.replace(**{**usual, **changes})

    def budget(self, rounding=1, **changes):
        """The budget of that; ValueError where the whole step is not derived for the model."""
        return _budget(self.model, self.having(**changes), rounding)

    def peak(self, **changes) -> int:
        """The peak of that, in bytes."""
        return self.budget(**changes).peak

    def in_step(self, **changes) -> int:
        """What the optimizer's step takes at its worst moment above what stands after it, in bytes."""
        phases = self.budget(**changes).phases
        return phases["step"] - phases["after_step"]

    def at(self, name, symbols=None, **changes):
        """A registered formula's value; `symbols` replace some."""
        return formula(name).at(self.model, self.having(**changes), **(symbols or {}))

    def saved(self, part="activations", layers=None, **changes) -> int:
        """Bytes of a part after forward, of the model or of so many of its blocks."""
        model = self.model
        if layers is not None:
            if isinstance(model, _Derived):
                raise ValueError(f"a derivation of {model.name} knows whole steps, and not what each block saves")
            model = model.replace(layers=layers)
        return _budget(model, self.having(**changes), 1).parts_at("after_forward")[part]

    def block(self, part="activations", **changes) -> int:
        """Bytes that each further block adds to it."""
        return self.saved(part, 3, **changes) - self.saved(part, 2, **changes)

    def scores(self) -> int:
        """Bytes that eager attention saves of a block's squares: what it saves more than flash, which saves numbers of its own."""
        return self.block(**_EAGER) - self.block(**_FLASH) + self.at("attention.flash", **_FLASH)

    def flat(self, whole: bool = False) -> int:
        """Bytes of the flat buffer that FSDP gathers for a block, or for the whole model, in the data type of matrix products."""
        times = layers(self.model)
        numbers = 0
        for w in filter(lambda w: w.count, weights(self.model)):
            number = w.count * (times[w.group] if whole else times[w.group] > 1)
            numbers += int(number) * -(-w.shape[0] // self.gpus) * (w.numbers // w.shape[0])
        return numbers * self.gpus * DTYPE_BYTES[self.setup.dtypes.compute]

    def states(self, **changes) -> int:
        """Bytes of weights, gradients and all that the optimizer keeps."""
        return sum(self.at(name, **changes) for name in ("weights", "gradients", "optimizer"))

    def shared(self, name, sharding, **symbols):
        """A formula's value where the GPUs of the case divide so."""
        return self.at(name, symbols, sharding=sharding, gpus=self.gpus)

    def kept(self, segment: int) -> int:
        """Bytes of checkpointed inputs, and of one recomputed segment of so many blocks."""
        kept = self.block(checkpointing="full")
        return (ceil(self.model.layers / segment) - 1) * kept + segment * (self.block() + self.block("casts"))

    @property
    def segments(self) -> range:
        """How many blocks a checkpointed segment can have."""
        return range(1, self.model.layers + 1)

    @property
    def root(self) -> int:
        """The square root of the layers, rounded."""
        return round(sqrt(self.model.layers))

    def half_sequence(self) -> dict:
        """As many tokens in sequences half as long."""
        if self.one.sequence % 2:
            raise ValueError("the sequence is odd")
        return {"batch": 2 * self.one.batch, "sequence": self.one.sequence // 2}

    def moved_for_one_more(self) -> float:
        """Bytes a parameter that the memory moves for each further batch of an accumulation."""
        if self.one.batch < 2 or self.one.accumulation > 1:
            raise ValueError("one batch of several sequences is needed")
        parts = self.having(batch=1, accumulation=self.one.batch)
        more = work(self.model, parts).moved - work(self.model, self.one).moved
        return more / (self.one.batch - 1) / self.model.parameters

    def adapters(self) -> int:
        """Parameters of adapters on query, key, value and output."""
        m = self.model
        inner, keys = m.heads * m.head_width, m.kv_heads * m.head_width
        return m.layers * RANK * 2 * (m.width + inner + m.width + keys)

    def adapters_kept(self) -> float:
        """Bytes that one block keeps of forward with adapters in fp32 on every linear layer, over those of full fine-tuning in bf16."""
        usual = {"precision": "bf16", "checkpointing": "none", "loss": "plain"}
        kept = {}
        for lora in (None, Lora(RANK)):
            setup = self.having(**usual, adapters=lora)
            phases = [_budget(self.model.replace(layers=n), setup, 1).phases for n in (3, 2)]
            three, two = (p["after_forward"] - p["rest"] for p in phases)
            kept[lora] = three - two
        return kept[Lora(RANK)] / kept[None]

    def cache(self, heads=None) -> int:
        """Bytes that keys and values of one token take, in 16 bits."""
        m = self.model
        if m.latent_rank:
            raise ValueError("latent attention caches something else")
        return 2 * m.layers * (heads or m.kv_heads) * m.head_width * 2

    def free(self) -> int:
        """Bytes between the peak and what is usable."""
        free = Headroom().usable(self.gpu) - _budget(self.model, self.setup, ROUNDING).peak
        if free < 0:
            raise ValueError(f"the step does not fit {self.gpu.name}")
        return free

    def margin(self, name) -> int:
        """Bytes of the headroom's term of that name."""
        return next(t.bytes for t in Headroom().terms(self.gpu) if t.name == name)

    def experts(self) -> int:
        """Bytes of Mixtral's experts on each of the GPUs that divide them, in 16 bits."""
        setup = Setup(precision="bf16", gpus=self.gpus, mesh=Mesh(expert=self.gpus))
        return formula("experts.weights").at(model("mixtral-8x7b"), setup)

    def stage(self) -> int:
        """Bytes that one micro-batch leaves on one stage of a pipeline as long as the GPUs are many."""
        return ceil(self.model.layers / self.gpus) * self.block()

    def bubble(self, stages=1, divided=0) -> float:
        """The time that a pipeline's GPUs wait over the time that they work, with four micro-batches a GPU."""
        return formula("pipeline.bubble")(
            pipeline=self.gpus, pipeline_stages=stages, accumulation=4 * self.gpus, divided=divided
        )

    def boundary(self) -> int:
        """Bytes that a stage sends the next of a micro-batch, in 16 bits."""
        return formula("pipeline.boundary")(
            batch=self.one.batch, sequence=self.one.sequence, width=self.model.width, weight_bytes=2
        )


def _float(name, item, **symbols):
    return formula(f"formats.{item}")(**{**FLOATS[name], **symbols})


def _quantized(case, name):
    return formula("formats.blocks.bytes")(parameters=int(case.model.parameters), **BLOCKS[name])


def _heads(m):
    """Bytes that a token's keys and values of every head would take."""
    return m.layers * m.heads * (m.head_width + m.value_width) * 2


def _trained(case):
    """What a model takes that trains in 16 bits with fp32 copies, without activations."""
    return formula("zero.states").at(
        case.model, case.having(precision="bf16-master", optimizer="adamw", sharding="none")
    )


def _prefilled(m):
    """Bytes of activations that one token more adds to the largest moment of a prefill."""
    found = (
        max(course(m, v).at(v).unrolled(), key=lambda turn: sum(turn[1].values()))[1]
        for v in (letters(m, 1, n) for n in (513, 512))
    )
    more, less = found
    return more["activations"] - less["activations"]


def _flops(case, *names, **changes):
    if case.model.experts or case.model.latent_rank:
        raise ValueError(f"operations are not derived for {case.model.name}: it has experts or latent attention")
    return sum(case.at(f"flops.{name}", **changes) for name in names)


def _kept(parts, by_tokens):
    """Bytes that a GPT's block keeps on each of so many GPUs for each number of the stream, in 16 bits, statistics left out."""
    one = {"batch": 1, "sequence": 1, "width": 1, "ffn_width": 4, "heads": 0, "weight_bytes": 2, "dropout": 1}
    found = formula("tensor.block")(**one, tensor=parts, sequence_parallel=int(by_tokens))
    return found - 24 - 16 / (parts if by_tokens else 1)


def _sends(parts=GPUS):
    """Bytes that one GPU sends in a step of one long sequence whose matrices are divided."""
    m = model("llama-3.1-70b")
    one = {"batch": 1, "sequence": LONG, "weight_bytes": 2, "tensor": parts}
    return m.layers * int(formula("tensor.sent")(width=m.width, **one))


def _digits(x, most):
    """`x`, rounded to so many significant digits."""
    return float(f"{x:.{most}g}")


def _three(n, scale):
    """A whole number in the first unit of which there is one, in three significant digits."""
    size, unit = next((pair for pair in scale if abs(n) >= pair[0]), scale[-1])
    return f"{_digits(n / size, 3):,g}{unit}"


_EAGER, _FLASH = {"attention": "eager"}, {"attention": "flash"}
_UNITS = [(units.UNITS[unit], f" {unit}") for unit in ("TiB", "GiB", "MiB", "KiB", "B")]
_COUNTS = [(10**9, " billion"), (10**6, " million"), (1, "")]
#: A number as a person says it: three digits, two of a share; what is exact, `Deck.value` has.
_SHOWN: dict[str, Callable[[Any], str]] = {
    "text": str,
    "bytes": lambda n: _three(n, _UNITS),
    "vendor": lambda n: units.text(n, decimal=True, digits=0),
    "count": lambda n: f"{n:,}" if n < 100_000 else _three(n, _COUNTS),
    "share": lambda x: f"{_digits(100 * x, 2):,g}%",
    "signed": lambda x: f"{_digits(100 * x, 2):+,g}%",
    "number": lambda x: f"{_digits(x, 3):g}",
    "tiny": lambda x: f"{_digits(float(x), 2):g}",
    "teraflop": lambda n: f"{_digits(n / 1e12, 3):,g} TFLOP",
    "milliseconds": lambda s: f"{_digits(1e3 * s, 3):,g} ms",
}
#: Name -> how it is shown, and how it is computed for a `Case`.
NUMBERS = {
    "model": ("text", lambda c: c.model.name),
    "gpu": ("text", lambda c: c.gpu.title),
    "precision": ("text", lambda c: c.one.precision),
    "batch": ("count", lambda c: c.one.batch),
    "sequence": ("count", lambda c: c.one.sequence),
    "tokens": ("count", lambda c: c.one.batch * c.one.sequence),
    "layers": ("count", lambda c: c.model.layers),
    # What fills the GPU.
    "parameters": ("count", lambda c: int(c.model.parameters)),
    "embeddings": ("count", lambda c: c.at("parameters.embeddings")),
    "embeddings_share": ("share", lambda c: c.at("parameters.embeddings") / c.model.parameters),
    "head_again": ("count", lambda c: c.model.vocabulary * c.model.width),
    "bytes_per_parameter": ("count", lambda c: c.at("bytes_per_parameter")),
    "states": ("bytes", lambda c: c.states()),
    "weights_fp32": ("bytes", lambda c: c.at("weights", precision="fp32")),
    "weights_bf16": ("bytes", lambda c: c.at("weights", precision="bf16")),
    "adam_states": ("bytes", lambda c: c.at("optimizer.states", optimizer="adamw", precision="fp32")),
    "adafactor_states": ("bytes", lambda c: c.at("states.adafactor", precision="fp32")),
    "lion_states": ("bytes", lambda c: c.at("states.lion", precision="fp32")),
    "lion_step": ("bytes", lambda c: c.in_step(optimizer="lion", optimizer_impl="loop", precision="fp32")),
    "muon_states": ("bytes", lambda c: c.at("states.muon", precision="fp32")),
    "muon_saved": (
        "share",
        lambda c: 1
        - c.at("states.muon", precision="fp32") / c.at("optimizer.states", optimizer="adamw", precision="fp32"),
    ),
    "muon_step": ("bytes", lambda c: c.in_step(optimizer="muon", optimizer_impl="foreach", precision="fp32")),
    "momentum_states": ("bytes", lambda c: c.at("optimizer.states", optimizer="momentum", precision="fp32")),
    "adam_share": (
        "share",
        lambda c: c.at("optimizer.states", optimizer="adamw", precision="fp32")
        / c.states(optimizer="adamw", precision="fp32"),
    ),
    "fp16_smallest": ("tiny", lambda c: _float("fp16", "smallest")),
    "fp16_largest": ("count", lambda c: int(_float("fp16", "largest"))),
    "bf16_largest": ("tiny", lambda c: _float("bf16", "largest")),
    "bf16_spacing": ("tiny", lambda c: _float("bf16", "epsilon")),
    "bf16_lost": ("tiny", lambda c: _float("bf16", "epsilon") / 2),
    "fp32_lost": ("tiny", lambda c: _float("fp32", "epsilon") / 2),
    "fp16_vanishing": ("tiny", lambda c: sqrt(_float("fp16", "smallest") / 2 / NEW)),
    "half_of_adam": ("bytes", lambda c: c.at("optimizer.states", optimizer="adamw", precision="fp32") // 2),
    "states_autocast": ("bytes", lambda c: c.states(precision="bf16-mixed", optimizer="adamw")),
    "states_master": ("bytes", lambda c: c.states(precision="bf16-master", optimizer="adamw")),
    "states_bf16": ("bytes", lambda c: c.states(precision="bf16", optimizer="adamw")),
    "master": ("bytes", lambda c: c.at("optimizer.master", precision="bf16-master")),
    "gradients": ("bytes", lambda c: c.at("gradients")),
    "block_activations": ("bytes", lambda c: c.block()),
    "bytes_per_number": (
        "number",
        lambda c: c.block() / (c.one.batch * c.one.sequence * c.model.width),
    ),
    "activations": ("bytes", lambda c: c.saved()),
    "activations_twice": ("bytes", lambda c: c.saved(batch=2 * c.one.batch)),
    "eager_activations": ("bytes", lambda c: c.saved(**_EAGER)),
    "eager_short": ("bytes", lambda c: c.saved(**_EAGER, **c.half_sequence())),
    "flash_activations": ("bytes", lambda c: c.saved(**_FLASH)),
    "flash_short": ("bytes", lambda c: c.saved(**_FLASH, **c.half_sequence())),
    "scores_block": ("bytes", lambda c: c.scores()),
    "scores": ("bytes", lambda c: c.model.layers * c.scores()),
    "flash_kept": ("bytes", lambda c: c.at("attention.flash", **_FLASH)),
    "eager_peak": ("bytes", lambda c: c.peak(**_EAGER)),
    "flash_peak": ("bytes", lambda c: c.peak(**_FLASH)),
    "flash_backward": ("number", lambda c: _flops(c, "backward", **_FLASH) / _flops(c, "forward", **_FLASH)),
    "eager_backward": ("number", lambda c: _flops(c, "backward", **_EAGER) / _flops(c, "forward", **_EAGER)),
    "dropout_cost": (
        "bytes",
        lambda c: c.saved(dropout=DROPOUT) - c.saved(dropout=0.0),
    ),
    "logits": ("bytes", lambda c: c.at("logits", loss="plain")),
    "loss_worst": ("bytes", lambda c: c.at("loss.logits", loss="plain")),
    "llama_vocabulary": ("count", lambda c: model("llama-3-8b").vocabulary),
    "loss_llama": (
        "bytes",
        lambda c: c.at("loss.logits", {"vocabulary": model("llama-3-8b").vocabulary}, loss="plain"),
    ),
    "peak": ("bytes", lambda c: c.peak()),
    "peak_at": ("text", lambda c: c.budget().peak_at),
    "rest": ("bytes", lambda c: c.budget().phases["rest"]),
    "after_forward": ("bytes", lambda c: c.budget().phases["after_forward"]),
    "step_foreach": ("bytes", lambda c: c.budget(optimizer_impl="foreach").phases["step"]),
    "step_fused": ("bytes", lambda c: c.budget(optimizer_impl="fused").phases["step"]),
    # Saving it on one GPU.
    "peak_fp32": ("bytes", lambda c: c.peak(precision="fp32")),
    "peak_mixed": ("bytes", lambda c: c.peak(precision="bf16-mixed")),
    "mixed_change": ("signed", lambda c: c.peak(precision="bf16-mixed") / c.peak(precision="fp32") - 1),
    "mixed_change_one": (
        "signed",
        lambda c: c.peak(precision="bf16-mixed", batch=1, loss="plain") / c.peak(precision="fp32", batch=1, loss="plain")
        - 1,
    ),
    "casts": ("bytes", lambda c: c.saved("casts", precision="bf16-mixed")),
    "peak_none": ("bytes", lambda c: c.peak(checkpointing="none")),
    "peak_full": ("bytes", lambda c: c.peak(checkpointing="full")),
    "full_flops": (
        "share",
        lambda c: matrix_flops(c.model, c.having(checkpointing="full")) / matrix_flops(c.model, c.having(checkpointing="none")) - 1,
    ),
    "best_every": ("count", lambda c: min(c.segments, key=c.kept)),
    "best_bytes": ("bytes", lambda c: min(map(c.kept, c.segments))),
    "root_segment": ("count", lambda c: c.root),
    "root_bytes": ("bytes", lambda c: c.kept(c.root)),
    "root": ("number", lambda c: sqrt(c.model.layers)),
    "selective_flash": (
        "bytes",
        lambda c: c.peak(checkpointing="none", **_FLASH) - c.peak(checkpointing="selective", **_FLASH),
    ),
    "operations_flash": (
        "bytes",
        lambda c: c.peak(checkpointing="none", **_FLASH) - c.peak(checkpointing="operations", **_FLASH),
    ),
    "selective_eager": (
        "bytes",
        lambda c: c.peak(checkpointing="none", **_EAGER) - c.peak(checkpointing="selective", **_EAGER),
    ),
    "peak_accumulated": ("bytes", lambda c: c.peak(batch=1, accumulation=c.one.batch * c.one.accumulation, loss="plain")),
    "moved": ("number", lambda c: c.moved_for_one_more()),
    "largest_batch": ("count", lambda c: _fit(c.model, c.setup.replace(loss="plain", loss_chunks=8), c.gpu, "batch")),
    "longest": ("count", lambda c: _fit(c.model, c.setup, c.gpu, "sequence")),
    "slope": ("bytes", lambda c: c.peak(batch=2 * c.one.batch) // c.one.batch - c.peak() // c.one.batch),
    "adam_8bit": ("bytes", lambda c: 2 * _quantized(c, "8-bit optimizer state")),
    "rank": ("count", lambda c: RANK),
    "adapters": ("count", lambda c: c.adapters()),
    "adapters_kept": ("share", lambda c: c.adapters_kept()),
    "adapters_share": ("share", lambda c: c.adapters() / c.model.parameters),
    "adapters_states": ("bytes", lambda c: c.adapters() * c.at("bytes_per_parameter", precision="fp32", optimizer="adamw")),
    "nf4": ("bytes", lambda c: _quantized(c, "NF4, double quantization")),
    "host_link": ("vendor", lambda c: c.gpu.host_link),
    "bus": ("milliseconds", lambda c: (c.at("gradients") + c.at("weights")) / c.gpu.host_link),
    "read_in_place": ("milliseconds", lambda c: (c.at("gradients") + c.at("weights")) / c.gpu.bandwidth),
    "peak_chunked": ("bytes", lambda c: c.peak(loss="chunked")),
    "peak_plain": ("bytes", lambda c: c.peak(loss="plain")),
    # Many GPUs.
    "gpus": ("count", lambda c: c.gpus),
    "ddp_states": ("bytes", lambda c: c.shared("zero.states", "none")),
    "zero1_states": ("bytes", lambda c: c.shared("zero.states", "zero1")),
    "zero2_states": ("bytes", lambda c: c.shared("zero.states", "zero2")),
    "zero3_states": ("bytes", lambda c: c.shared("zero.states", "zero3")),
    "buckets": ("bytes", lambda c: c.budget(gpus=c.gpus).moments["rest"]["communication"]),
    "ddp_peak": ("bytes", lambda c: c.peak(gpus=c.gpus)),
    "zero3_peak": ("bytes", lambda c: c.peak(gpus=c.gpus, sharding="zero3")),
    "sent_ddp": ("count", lambda c: c.shared("zero.sent.numbers", "none")),
    "sent_zero3": ("count", lambda c: c.shared("zero.sent.numbers", "zero3")),
    "sent_ratio": (
        "number",
        lambda c: c.shared("zero.sent.numbers", "zero3") / c.shared("zero.sent.numbers", "none"),
    ),
    "block_flat": ("bytes", lambda c: c.flat()),
    "model_flat": (
        "bytes",
        lambda c: c.flat(whole=True),
    ),
    "fewest": ("count", lambda c: _fit(c.model, c.having(sharding="zero3"), c.gpu, "gpus")),
    "ring": ("count", lambda c: RING.context),
    "ring_kept": (
        "bytes",
        lambda c: formula("context.kept").at(
            model("llama-3.1-8b"), Setup(batch=1, sequence=2**20, precision="bf16", gpus=RING.context, mesh=RING)
        ),
    ),
    "experts_each": ("bytes", lambda c: c.experts()),
    "experts_rest": ("bytes", lambda c: weight_bytes(model("mixtral-8x7b")) - c.gpus * c.experts()),
    "cluster": ("count", lambda c: CLUSTER),
    "cluster_states": ("bytes", lambda c: 16 * int(model("llama-3.1-70b").parameters) // CLUSTER),
    "stage": ("bytes", lambda c: c.stage()),
    "first_stage": ("bytes", lambda c: c.gpus * c.stage()),
    "micro_batches": ("count", lambda c: 4 * c.gpus),
    "bubble": ("share", lambda c: c.bubble()),
    "bubble_interleaved": ("share", lambda c: c.bubble(stages=2)),
    "bubble_zero": ("share", lambda c: c.bubble(divided=1)),
    "boundary": ("bytes", lambda c: c.boundary()),
    "received": ("bytes", lambda c: 2 * 4 * c.gpus * c.boundary()),
    "mixtral": ("count", lambda c: int(model("mixtral-8x7b").parameters)),
    "mixtral_active": ("count", lambda c: formula("parameters.active").at(model("mixtral-8x7b"))),
    "mixtral_weights": ("bytes", lambda c: formula("weights").at(model("mixtral-8x7b"), c.having(precision="bf16"))),
    # Practice.
    "rounded_peak": ("bytes", lambda c: c.budget(ROUNDING).peak),
    "rounding": ("bytes", lambda c: c.budget(ROUNDING).peak - c.peak()),
    "context": ("bytes", lambda c: c.margin("context")),
    "gpu_memory": ("bytes", lambda c: c.gpu.memory),
    "advertised": ("vendor", lambda c: c.gpu.advertised_gb * units.UNITS["GB"]),
    "advertised_gib": ("bytes", lambda c: c.gpu.advertised_gb * units.UNITS["GB"]),
    "usable": ("bytes", lambda c: Headroom().usable(c.gpu)),
    "free": ("bytes", lambda c: c.free()),
    "late_step": ("count", lambda c: LATE_STEP),
    "leak": ("bytes", lambda c: c.free() // LATE_STEP),
    "forward_kept": ("bytes", lambda c: c.budget().phases["after_forward"] - c.budget().phases["rest"]),
    "cache_token": ("bytes", lambda c: c.cache()),
    "cache_all": ("bytes", lambda c: c.one.batch * c.one.sequence * c.cache()),
    "cache_llama": ("bytes", lambda c: Case(model("llama-3-8b"), c.gpu, c.setup).cache()),
    "cache_llama_heads": (
        "bytes",
        lambda c: Case(model("llama-3-8b"), c.gpu, c.setup).cache(model("llama-3-8b").heads),
    ),
    "latent_token": ("bytes", lambda c: cache_bytes(model("deepseek-v3"), 1)),
    "latent_heads": ("bytes", lambda c: _heads(model("deepseek-v3"))),
    "page_tokens": ("count", lambda c: PAGE),
    "page": ("bytes", lambda c: cache_bytes(c.model, PAGE)),
    "page_waste": ("bytes", lambda c: cache_bytes(c.model, PAGE - 1)),
    "positions": ("count", lambda c: c.model.positions),
    "cache_longest": ("bytes", lambda c: cache_bytes(c.model, c.model.positions)),
    "prefill_token": ("bytes", lambda c: _prefilled(model("qwen2.5-7b"))),
    "prefill_cache": ("bytes", lambda c: cache_bytes(model("qwen2.5-7b"), 1)),
    "large_weights": ("bytes", lambda c: weight_bytes(model("llama-3.1-70b"))),
    "large_fp32": ("bytes", lambda c: 2 * weight_bytes(model("llama-3.1-70b"))),
    "large_loading": ("bytes", lambda c: 3 * weight_bytes(model("llama-3.1-70b"))),
    "large_copies": ("bytes", lambda c: c.gpus * weight_bytes(model("llama-3.1-70b"))),
    "large_share": ("bytes", lambda c: weight_bytes(model("llama-3.1-70b")) // c.gpus),
    "states_trained": ("bytes", lambda c: _trained(c)),
    "ppo_models": ("bytes", lambda c: 2 * _trained(c) + 2 * weight_bytes(c.model)),
    "grpo_models": ("bytes", lambda c: _trained(c) + weight_bytes(c.model)),
    "inference": ("bytes", lambda c: c.at("weights", precision="bf16") + c.one.batch * c.one.sequence * c.cache()),
    "training_times": (
        "number",
        lambda c: c.peak() / (c.at("weights", precision="bf16") + c.one.batch * c.one.sequence * c.cache()),
    ),
    "tensor_gpus": ("count", lambda c: GPUS),
    "tensor_gpu": ("text", lambda c: find_gpu("h100-80gb").title),
    "tensor_tokens": ("count", lambda c: LONG),
    "kept_whole": ("number", lambda c: _kept(1, False)),
    "kept_tensor": ("number", lambda c: _kept(GPUS, False)),
    "kept_sequence": ("number", lambda c: _kept(GPUS, True)),
    "kept_megatron": ("number", lambda c: _kept(1, False) / GPUS),
    "tensor_sent": ("bytes", lambda c: _sends()),
    "nvlink": ("vendor", lambda c: find_gpu("h100-80gb").peer_link),
    "network": ("vendor", lambda c: find_gpu("h100-80gb").network),
    "tensor_near": ("milliseconds", lambda c: _sends() / find_gpu("h100-80gb").peer_link),
    "tensor_far": ("milliseconds", lambda c: _sends() / find_gpu("h100-80gb").network),
    "tensor_products": (
        "milliseconds",
        lambda c: 6 * model("llama-3.1-70b").parameters * LONG / GPUS / find_gpu("h100-80gb").bf16_flops,
    ),
    "flops": ("teraflop", lambda c: _flops(c, "forward", "backward")),
    "six_share": (
        "share",
        lambda c: 6 * c.model.parameters * c.one.batch * c.one.sequence / _flops(c, "forward", "backward"),
    ),
    "seconds": ("milliseconds", lambda c: _flops(c, "forward", "backward") / c.gpu.flops(c.one.dtypes.compute)),
}  # fmt: skip


@dataclass(frozen=True)
class Card:
    """One question as it is asked.

    Attributes:
        id, part, topic: where it belongs. question: as it is asked. answer: thirty seconds' worth, numbers as names in braces.
        chapter: slug of the one whose derivation it rests on. follow_up: what is asked next. wrong: the usual wrong answer,
        and why it is wrong; they may have numbers too.

    Raises:
        ValueError: naming the card, the field, the value and what is allowed.
    """

    id: str
    part: int
    topic: str
    question: str
    answer: str
    chapter: str
    follow_up: str
    wrong: str
    why: str

    def __post_init__(self):
        owner = f"Card {self.id}"
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "part" and not (isinstance(value, str) and value.strip()):
                raise ValueError(f"{owner}.{field.name}: {value!r} is no text")
        checks.one_of("Card", "id", self.id, [self.id] if re.fullmatch(r"[a-z0-9-]+", self.id) else ["a-z, 0-9 and -"])
        checks.whole(owner, "part", self.part, min(PARTS), max(PARTS))
        for field in ("question", "answer", "follow_up", "wrong", "why"):
            for name in _NAME.findall(getattr(self, field)):
                checks.one_of(owner, field, name, NUMBERS)

    @property
    def names(self) -> list[str]:
        """The numbers that its texts ask for, once each."""
        texts = (self.question, self.answer, self.follow_up, self.wrong, self.why)
        return list(dict.fromkeys(name for text in texts for name in _NAME.findall(text)))


@cache
def cards() -> dict[str, Card]:
    """Every card by id, in the book's order.

    Raises:
        ValueError: where an entry of `cards.toml` lacks a field, has one too many, or says what is not allowed.
    """
    text = resources.files(__package__).joinpath("cards.toml").read_text(encoding="utf-8")
    return read_cards(tomllib.loads(text))


def read_cards(entries: dict) -> dict[str, Card]:
    """Cards from tables by id, checked."""
    found, known = {}, {field.name for field in fields(Card)} - {"id"}
    for id, entry in entries.items():
        if missing := sorted(known - entry.keys()):
            raise ValueError(f"Card {id}.{missing[0]}: missing")
        for field in entry:
            checks.one_of(f"Card {id}", "field", field, known)
        found[id] = Card(id, **entry)
    return found


@dataclass(frozen=True)
class Answered:
    """A card with its numbers put in. `missing`: a number's name -> why there is none for this choice."""

    card: Card
    question: str
    answer: str
    follow_up: str
    wrong: str
    why: str
    missing: dict

    @property
    def chapter(self) -> str:
        """The notebook of the derivation, beside this one."""
        return f"{self.card.chapter}.ipynb"

    def __repr__(self):
        return f"{self.question}\n\n{self.text()}"

    def text(self) -> str:
        """What is under the question."""
        return (
            f"{self.answer}\n\nRests on: {self.card.chapter}\nFollow-up: {self.follow_up}\n"
            f"The usual wrong answer: {self.wrong}\nWhy it is wrong: {self.why}"
            + "".join(f"\n{x}" for x in self.apology)
        )

    @property
    def apology(self) -> list[str]:
        """Why some numbers are not there."""
        return [f"No number here: {why}." for why in dict.fromkeys(self.missing.values())]

    def _repr_html_(self):
        return f"<h4>{escape(self.question)}</h4>{self.back()}"

    def back(self) -> str:
        """What is under the question, as HTML; every text is escaped."""
        link = f'<a href="{escape(self.chapter)}">{escape(self.card.chapter)}</a>'
        return (
            f"<p>{escape(self.answer)}</p><p><b>Rests on</b> {link}. <b>Follow-up:</b> {escape(self.follow_up)}</p>"
            f"<p><b>The usual wrong answer:</b> {escape(self.wrong)} <b>Why it is wrong:</b> {escape(self.why)}</p>"
            + "".join(f"<p>{escape(line)}</p>" for line in self.apology)
        )

    def markdown(self) -> str:
        """The same as Markdown; every text is escaped."""
        return (
            f"### {_plain(self.question)}\n\n{_plain(self.answer)}\n\n"
            f"- **Rests on:** [{self.card.chapter}]({self.chapter})\n- **Follow-up:** {_plain(self.follow_up)}\n"
            f"- **The usual wrong answer:** {_plain(self.wrong)} **Why it is wrong:** {_plain(self.why)}\n"
            + "".join(f"- {_plain(line)}\n" for line in self.apology)
        )


def _plain(text):
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", escape(text, quote=False))


@dataclass(frozen=True)
class Deck:
    """Cards for one choice of model, GPU and setup."""

    case: Case
    cards: tuple[Card, ...]

    def __len__(self):
        return len(self.cards)

    @cached_property
    def _values(self):
        return {}

    def value(self, name: str) -> tuple[object, str]:
        """A number and "", or None and why there is none for this choice.

        Raises:
            ValueError: where there is no number of that name.
        """
        checks.one_of("Deck", "number", name, NUMBERS)
        if name not in self._values:
            try:
                self._values[name] = NUMBERS[name][1](self.case), ""
            except ValueError as error:
                self._values[name] = None, str(error)
        return self._values[name]

    def shown(self, name: str) -> str:
        """A number as the answers show it, rounded as it is said."""
        value, why = self.value(name)
        return "(no number here)" if why else _SHOWN[NUMBERS[name][0]](value)

    def card(self, id: str) -> Answered:
        """The card of that id, its numbers put in.

        Raises:
            ValueError: where the deck has none; the message names near matches.
        """
        known = {card.id: card for card in self.cards}
        checks.one_of("Deck", "id", id, known)
        card = known[id]
        texts = {
            field: _NAME.sub(lambda match: self.shown(match[1]), getattr(card, field))
            for field in ("question", "answer", "follow_up", "wrong", "why")
        }
        missing = {name: why for name in card.names if (why := self.value(name)[1])}
        return Answered(card, **texts, missing=missing)

    def about(self, topic: str | None = None, part: int | None = None) -> "Deck":
        """The cards of a topic, or of a part.

        Raises:
            ValueError: where there are none.
        """
        if topic is not None:
            checks.one_of("Deck", "topic", topic, dict.fromkeys(card.topic for card in self.cards))
        if part is not None:
            checks.whole("Deck", "part", part, min(PARTS), max(PARTS))
        wanted = (c for c in self.cards if topic in (None, c.topic) and part in (None, c.part))
        return Deck(self.case, tuple(wanted))

    def table(self, answers: bool = False) -> Table:
        """Every question: id, topic, the chapter that it rests on; or its answer, to be read where nothing folds."""
        if answers:
            return Table(("card", "question", "answer"), [(a.card.id, a.question, a.answer) for a in self._all()])
        rows = [(a.card.id, a.card.topic, a.question, a.card.chapter) for a in self._all()]
        return Table(("card", "topic", "question", "rests on"), rows)

    def browse(self) -> "Folded":
        """Every question, its answer folded under it."""
        return Folded(tuple(self._all()))

    def drill(self, ids: Iterable[str] | None = None) -> "Drill":
        """Question, your answer, then the card's; what was missed comes back. `ids`: in which order; by default the deck's."""
        order = [card.id for card in self.cards] if ids is None else list(ids)
        for id in order:
            checks.one_of("drill", "ids", id, [card.id for card in self.cards])
        if not order or len(set(order)) < len(order):
            raise ValueError(f"drill.ids: {order!r} is empty or names a card twice")
        return Drill(self, order)

    def page(self, part: int) -> str:
        """One part's cards as a page of Markdown, to be printed.

        Raises:
            ValueError: where there is no such part, or the deck has no card of it.
        """
        found = self.about(part=part)
        if not len(found):
            raise ValueError(f"Deck.part: {part} has no card here; allowed: {sorted({c.part for c in self.cards})}")
        case = self.case
        chosen = f"{case.model.name}, {case.gpu.title}, {case.setup.batch} × {case.setup.sequence:,} tokens, {case.setup.precision}"
        return "\n".join(
            [f"# Interview, part {part}: {PARTS[part]}\n\n{_plain(chosen)}\n", *(a.markdown() for a in found._all())]
        )

    def save_page(self, part: int, path: str | Path) -> Path:
        """That page in a file."""
        return _write(path, self.page(part).encode())

    def save_csv(self, path: str | Path) -> Path:
        """All cards as CSV: one row a card, under a row of names."""
        text = io.StringIO(newline="")
        rows = csv.writer(text)
        rows.writerow(("id", "part", "topic", "question", "answer", "chapter", "follow_up", "wrong", "why"))
        for a in self._all():
            c = a.card
            rows.writerow((c.id, c.part, c.topic, a.question, a.answer, c.chapter, a.follow_up, a.wrong, a.why))
        return _write(path, text.getvalue().encode())

    def save_anki(self, path: str | Path) -> Path:
        """All cards as an Anki package. A card keeps its identity, so that importing again replaces its numbers.

        Raises:
            ImportError: where genanki is not installed: `pip install "everybyte[cards]"`.
            ValueError: where the name does not end with `.apkg`.
        """
        path = Path(path)
        if path.suffix != ".apkg":
            raise ValueError(f"save_anki.path: {path.name!r} does not end with '.apkg'")
        try:
            import genanki
        except ImportError as error:
            raise ImportError('Anki packages need genanki: pip install "everybyte[cards]"') from error

        face = {"name": "Card", "qfmt": "{{Question}}", "afmt": "{{FrontSide}}<hr id=answer>{{Answer}}"}
        kind = genanki.Model(
            _number_of("model"), "Every Byte", fields=[{"name": "Question"}, {"name": "Answer"}], templates=[face]
        )
        deck = genanki.Deck(_number_of("deck"), "Every Byte: interview")
        for a in self._all():
            back = re.sub(r"<a [^>]*>|</a>", "", a.back())  # the notebooks are not beside Anki
            tags = [f"part-{a.card.part}", a.card.topic.replace(" ", "-")]
            guid = genanki.guid_for("everybyte", a.card.id)
            deck.add_note(genanki.Note(kind, [escape(a.question), back], guid=guid, tags=tags))
        beside = path.with_name(path.name + ".part")
        try:
            genanki.Package(deck).write_to_file(str(beside), timestamp=0.0)
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)
        return path

    def _all(self):
        return [self.card(card.id) for card in self.cards]


def _number_of(name):
    """Anki tells decks and kinds of notes apart by a number of 31 bits."""
    return zlib.crc32(f"everybyte.interview.{name}".encode()) & 0x7FFFFFFF


def _write(path, data):
    with files.whole(path) as file:
        file.write(data)
    return Path(path)


@dataclass(frozen=True)
class Folded:
    """Cards to leaf through: in a notebook each answer is folded under its question."""

    cards: tuple[Answered, ...]

    def __repr__(self):
        return "\n\n".join(map(repr, self.cards))

    def _repr_html_(self):
        return "".join(
            f"<details><summary><b>{escape(a.question)}</b></summary>{a.back()}</details>" for a in self.cards
        )


class Drill:
    """One question after another: `answer(...)` reveals the card, `knew()` or `missed()` goes on.

    What was missed comes back after three others, or at the end. Nothing is random. `asked`: ids in the order of asking.
    """

    def __init__(self, deck, order):
        self.deck, self._queue, self.asked, self.misses = deck, list(order), [], {}
        self._said = None
        self._ask()

    @property
    def card(self) -> Answered | None:
        """The card in hand; None at the end."""
        return self.deck.card(self._queue[0]) if self._queue else None

    @property
    def left(self) -> int:
        """Cards still to come, the one in hand included."""
        return len(self._queue)

    def answer(self, text: str) -> "Drill":
        """Your answer, in a sentence; then the card's is shown beside it.

        Raises:
            ValueError: where there is no text (it is `...` until you write one), or no question is left.
        """
        self._must()
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"drill.answer: {text!r} is no text; say a sentence first, then look")
        self._said = text
        return self

    def knew(self) -> "Drill":
        """You had it: it is done."""
        self._must(revealed=True)
        self._queue.pop(0)
        return self._ask()

    def missed(self) -> "Drill":
        """You had it not: it comes back."""
        self._must(revealed=True)
        id = self._queue.pop(0)
        self.misses[id] = self.misses.get(id, 0) + 1
        self._queue.insert(min(_BACK, len(self._queue)), id)
        return self._ask()

    def score(self) -> Table:
        """The cards that were asked, and how often each was missed."""
        rows = [(id, self.misses.get(id, 0)) for id in dict.fromkeys(self.asked)]
        return Table(("card", "missed"), rows)

    def _ask(self):
        self._said = None
        self.asked += self._queue[:1]
        return self

    def _must(self, revealed=False):
        if not self._queue:
            raise ValueError("drill: no question is left; start another with deck.drill()")
        if revealed and self._said is None:
            raise ValueError("drill: answer first, drill.answer('...'), then say whether you knew it")

    def __repr__(self):
        if not self._queue:
            return f"Done: {len(set(self.asked))} cards, {sum(self.misses.values())} missed on the way."
        head = f"[{self.left} left] {self.card.question}"
        if self._said is None:
            return f"{head}\nYour answer first: drill.answer('...')"
        return (
            f"{head}\nYou said: {self._said}\n\n{self.card.text()}\n\nDid you have it? drill.knew() or drill.missed()"
        )

    def _repr_html_(self):
        if not self._queue:
            return f"<p>{escape(repr(self))}</p>"
        head = f"<p>{self.left} left</p><h4>{escape(self.card.question)}</h4>"
        if self._said is None:
            return head + "<p>Your answer first: <code>drill.answer('...')</code></p>"
        said = f"<p><b>You said:</b> {escape(self._said)}</p>{self.card.back()}"
        return f"{head}{said}<p>Did you have it? <code>drill.knew()</code> or <code>drill.missed()</code></p>"


def interview(of="llama-3.1-8b", gpu: Gpu | str = "h100-80gb", setup: Setup | None = None) -> Deck:
    """The deck for a model, a GPU and a setup; by default Llama 3.1 8B, bf16, ZeRO-3 on 8 GPUs with two sequences of 4,096 tokens each.

    Args:
        of: a `Model`, or its name in the catalog; or a derivation of any other, which knows its peaks under its own setup, and
            not what a model's dimensions say. gpu: of the catalog, by name too.
        setup: of a derivation by default its own; of that, other batches and sequences.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """
    if hasattr(of, "cases"):
        setup = setup or of.setup
        if not isinstance(setup, Setup):
            raise ValueError(f"interview.setup: {setup!r} is no Setup")
        derived: Any = _Derived(of)
        return Deck(Case(derived, find_gpu(gpu), setup), tuple(cards().values()))
    if not isinstance(of, Model):
        if not isinstance(of, str):
            raise ValueError(
                f"interview.of: a {type(of).__name__} is no model; allowed: a Model, a name of the catalog, or what eb.derive returns"
            )
        of = model(of)
    setup = setup or Setup(
        batch=2, sequence=min(4096, of.positions or 4096), precision="bf16-mixed", gpus=GPUS, sharding="zero3"
    )
    if not isinstance(setup, Setup):
        raise ValueError(f"interview.setup: {setup!r} is no Setup")
    setup.check_model(of)
    return Deck(Case(of, find_gpu(gpu), setup), tuple(cards().values()))
