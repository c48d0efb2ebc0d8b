"""The numbers of the interview's cards: how each is said, and how it is computed for a case."""

from collections.abc import Callable
from math import ceil, sqrt
from typing import Any

from ... import units
from ...answers.headroom import ROUNDING, Headroom
from ...answers.plan import work
from ...answers.serving import cache_bytes, weight_bytes
from ...answers.work import matrix_flops
from ...ask.mesh import Mesh
from ...ask.setup import Lora, Setup
from ...catalog import gpu, model
from ...formulas import formula
from ...formulas.formats import BLOCKS, FLOATS
from ...theory.inference import course, letters
from ..asking import Run
from .case import EAGER, FLASH, GPUS, RANK, Case, Derived, fitted

#: Where nothing else is chosen: the step of the late out-of-memory, a dropout.
LATE_STEP, DROPOUT = 5_000, 0.1
#: Tokens of a long sequence.
LONG = 8192
#: GPUs of a layout; those that share a sequence of a million tokens.
CLUSTER, RING = 64, Mesh(context=16)
#: Tokens in a page of a paged cache, as vLLM has it.
PAGE = 16
#: One minus Adam's beta_2, PyTorch's default: the share of a new squared gradient in the average.
NEW = 0.001
SMALL, LARGE, MIXTURE, LATENT, QWEN = map(
    model, ("llama-3-8b", "llama-3.1-70b", "mixtral-8x7b", "deepseek-v3", "qwen2.5-7b")
)
H100 = gpu("h100-80gb")
FP32, MIXED, BF16, MASTER = ({"precision": name} for name in ("fp32", "bf16-mixed", "bf16", "bf16-master"))
ADAM, PLAIN = {"optimizer": "adamw"}, {"loss": "plain"}
LION, MUON, FOREACH = {"optimizer": "lion"}, {"optimizer": "muon"}, {"optimizer_impl": "foreach"}
UNCHECKED, FULL = {"checkpointing": "none"}, {"checkpointing": "full"}


def _float(name, item):
    return formula(f"formats.{item}")(**FLOATS[name])


def _quantized(c, name):
    return formula("formats.blocks.bytes")(parameters=int(c.model.parameters), **BLOCKS[name])


def _adam(c):
    """Bytes of Adam's states in fp32."""
    return c.at("optimizer.states", **ADAM, **FP32)


def _trained(c):
    """What a model takes that trains in 16 bits with fp32 copies, without activations."""
    return c.at("zero.states", **MASTER, **ADAM, sharding="none")


def _prefilled(m):
    """Bytes of activations that one token more adds to the largest moment of a prefill."""
    found = (
        max(course(m, v).at(v).unrolled(), key=lambda turn: sum(turn[1].values()))[1]
        for v in (letters(m, 1, n) for n in (513, 512))
    )
    more, less = found
    return more["activations"] - less["activations"]


def _flops(c, *names, **changes):
    if c.model.experts or c.model.latent_rank:
        raise ValueError(f"operations are not derived for {c.model.name}: it has experts or latent attention")
    return sum(c.at(f"flops.{name}", **changes) for name in names or ("forward", "backward"))


def _backward(c, **attention):
    """Backward's operations over forward's."""
    return _flops(c, "backward", **attention) / _flops(c, "forward", **attention)


def _change(c, **also):
    """How far autocast changes the peak, as a share of that in fp32."""
    return c.peak(**MIXED, **also) / c.peak(**FP32, **also) - 1


def _spared(c, kind, **attention):
    """Bytes that a kind of checkpointing takes off the peak."""
    return c.peak(**UNCHECKED, **attention) - c.peak(checkpointing=kind, **attention)


def _recomputed(c):
    """More operations of full checkpointing, as a share."""
    full, none = (matrix_flops(c.model, c.having(**kind).setup) for kind in (FULL, UNCHECKED))
    return full / none - 1


def _moved(c):
    """Bytes a parameter that the memory moves for each further batch of an accumulation."""
    if c.one.batch < 2 or c.one.accumulation > 1:
        raise ValueError("one batch of several sequences is needed")
    if isinstance(c.model, Derived):
        raise ValueError(c.model.unlike_reference())
    parts = c.having(batch=1, accumulation=c.one.batch).setup
    more = work(c.model, parts).moved - work(c.model, c.one).moved
    return more / (c.one.batch - 1) / c.model.parameters


def _adapters_kept(c):
    """Bytes that one block keeps of forward with adapters in fp32 on every linear layer, over those of full fine-tuning in bf16."""
    kept = (c.of_block(Run.forward, adapters=lora, **BF16, **UNCHECKED, **PLAIN) for lora in (Lora(RANK), None))
    with_them, without = kept
    return with_them / without


def _offloaded(c):
    """Bytes that cross the bus in a step, gradients down and weights up."""
    return c.at("gradients") + c.at("weights")


def _ring():
    """Bytes of attention on each GPU of a ring."""
    setup = Setup(batch=1, sequence=2**20, precision="bf16", gpus=RING.context, mesh=RING)
    return formula("context.kept").at(model("llama-3.1-8b"), setup)


def _experts(c):
    """Bytes of Mixtral's experts on each of the GPUs that divide them, in 16 bits."""
    setup = Setup(precision="bf16", gpus=c.gpus, mesh=Mesh(expert=c.gpus))
    return formula("experts.weights").at(MIXTURE, setup)


def _stage(c):
    """Bytes that one micro-batch leaves on one stage of a pipeline as long as the GPUs are many."""
    return ceil(c.model.layers / c.gpus) * c.of_block(Run.part, "activations")


def _bubble(c, stages=1, divided=0):
    """The time that a pipeline's GPUs wait over the time that they work, with four micro-batches a GPU."""
    pipeline = {"pipeline": c.gpus, "pipeline_stages": stages, "accumulation": 4 * c.gpus, "divided": divided}
    return formula("pipeline.bubble")(**pipeline)


def _boundary(c):
    """Bytes that a stage sends the next of a micro-batch, in 16 bits."""
    tensor = {"batch": c.one.batch, "sequence": c.one.sequence, "width": c.model.width, "weight_bytes": 2}
    return formula("pipeline.boundary")(**tensor)


def _kept(parts, by_tokens=False):
    """Bytes that a GPT's block keeps on each of so many GPUs for each number of the stream, in 16 bits, statistics left out."""
    one = {"batch": 1, "sequence": 1, "width": 1, "ffn_width": 4, "heads": 0, "weight_bytes": 2, "dropout": 1}
    found = formula("tensor.block")(**one, tensor=parts, sequence_parallel=int(by_tokens))
    return found - 24 - 16 / (parts if by_tokens else 1)


def _sends():
    """Bytes that one GPU sends in a step of one long sequence whose matrices are divided."""
    one = {"batch": 1, "sequence": LONG, "weight_bytes": 2, "tensor": GPUS}
    return LARGE.layers * int(formula("tensor.sent")(width=LARGE.width, **one))


def _digits(x, most):
    """`x`, rounded to so many significant digits."""
    return float(f"{x:.{most}g}")


def _three(n, scale):
    """A whole number in the first unit of which there is one, in three significant digits."""
    size, unit = next((pair for pair in scale if abs(n) >= pair[0]), scale[-1])
    return f"{_digits(n / size, 3):,g}{unit}"


_UNITS = [(units.UNITS[unit], f" {unit}") for unit in ("TiB", "GiB", "MiB", "KiB", "B")]
_COUNTS = [(10**9, " billion"), (10**6, " million"), (1, "")]
#: A number as a person says it: three digits, two of a share; what is exact, `Deck.value` has.
SHOWN: dict[str, Callable[[Any], str]] = {
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
NUMBERS: dict[str, tuple[str, Callable[[Case], Any]]] = {}


def _shown(kind, **numbers):
    """Numbers shown alike: each a function of a case, or the same for all."""
    for name, how in numbers.items():
        NUMBERS[name] = kind, how if callable(how) else lambda c, how=how: how


def _asked(kind, ask, *of, **numbers):
    """Numbers shown alike that ask the same of a case: each under its own changes of the setup."""
    _shown(kind, **{name: lambda c, changes=changes: ask(c, *of, **changes) for name, changes in numbers.items()})


def _formulas(kind, changes, **numbers):
    """Numbers shown alike that are formulas under the same changes."""
    _shown(kind, **{name: lambda c, of=of: c.at(of, **changes) for name, of in numbers.items()})


# What a step takes.
_asked("bytes", Case.peak, peak={}, peak_fp32=FP32, peak_mixed=MIXED, eager_peak=EAGER, flash_peak=FLASH)
_asked("bytes", Case.peak, peak_none=UNCHECKED, peak_full=FULL, peak_plain=PLAIN, peak_chunked={"loss": "chunked"})
_asked("bytes", Case.phase, "rest", rest={})
_asked("bytes", Case.phase, "after_forward", after_forward={})
_asked("bytes", Case.phase, "step", step_foreach=FOREACH, step_fused={"optimizer_impl": "fused"})
_asked("bytes", Case.in_step, lion_step=FP32 | LION | {"optimizer_impl": "loop"}, muon_step=FP32 | MUON | FOREACH)
_asked("bytes", Case.part, "activations", activations={}, eager_activations=EAGER, flash_activations=FLASH)
_asked("bytes", Case.part, "casts", casts=MIXED)
_asked("bytes", Case.short, eager_short=EAGER, flash_short=FLASH)
_asked("bytes", Case.states, states={}, states_autocast=MIXED | ADAM, states_master=MASTER | ADAM)
_asked("bytes", Case.states, states_bf16=BF16 | ADAM)
_asked("signed", _change, mixed_change={}, mixed_change_one={"batch": 1} | PLAIN)
_asked("number", _backward, flash_backward=FLASH, eager_backward=EAGER)
_asked("bytes", _spared, "selective", selective_flash=FLASH, selective_eager=EAGER)
_asked("bytes", _spared, "operations", operations_flash=FLASH)
# What a formula says.
_formulas("count", {}, embeddings="parameters.embeddings", bytes_per_parameter="bytes_per_parameter")
_formulas("bytes", {}, gradients="gradients")
_formulas("bytes", FP32, weights_fp32="weights", adafactor_states="states.adafactor", lion_states="states.lion")
_formulas("bytes", FP32, muon_states="states.muon")
_formulas("bytes", FP32 | {"optimizer": "momentum"}, momentum_states="optimizer.states")
_formulas("bytes", FP32 | ADAM, adam_states="optimizer.states")
_formulas("bytes", BF16, weights_bf16="weights")
_formulas("bytes", MASTER, master="optimizer.master")
_formulas("bytes", FLASH, flash_kept="attention.flash")
_formulas("bytes", PLAIN, logits="logits", loss_worst="loss.logits")
# What the case is, and what is the same for all.
_shown(
    "text",
    model=lambda c: c.model.name,
    gpu=lambda c: c.gpu.title,
    precision=lambda c: c.one.precision,
    peak_at=lambda c: c.step().peak_at,
    tensor_gpu=H100.title,
)
_shown("vendor", nvlink=H100.peer_link, network=H100.network, host_link=lambda c: c.gpu.host_link)
_shown("vendor", advertised=lambda c: c.gpu.advertised_gb * units.UNITS["GB"])
_shown("count", late_step=LATE_STEP, rank=RANK, ring=RING.context, cluster=CLUSTER, page_tokens=PAGE)
_shown("count", tensor_gpus=GPUS, tensor_tokens=LONG, llama_vocabulary=SMALL.vocabulary)
_shown("count", mixtral=MIXTURE.parameters, mixtral_active=formula("parameters.active").at(MIXTURE))
_shown(
    "tiny",
    fp16_smallest=_float("fp16", "smallest"),
    bf16_largest=_float("bf16", "largest"),
    bf16_spacing=_float("bf16", "epsilon"),
    bf16_lost=_float("bf16", "epsilon") / 2,
    fp32_lost=_float("fp32", "epsilon") / 2,
    fp16_vanishing=sqrt(_float("fp16", "smallest") / 2 / NEW),
)
_shown(
    "count",
    fp16_largest=int(_float("fp16", "largest")),
    batch=lambda c: c.one.batch,
    sequence=lambda c: c.one.sequence,
    tokens=lambda c: c.tokens,
    layers=lambda c: c.model.layers,
    positions=lambda c: c.model.positions,
    parameters=lambda c: int(c.model.parameters),
    head_again=lambda c: c.model.vocabulary * c.model.width,
    gpus=lambda c: c.gpus,
    micro_batches=lambda c: 4 * c.gpus,
    adapters=lambda c: c.adapters(),
    best_every=lambda c: min(range(1, c.model.layers + 1), key=c.segment),
    root_segment=lambda c: round(sqrt(c.model.layers)),
    largest_batch=lambda c: fitted(c, "batch", c.setup.replace(loss="plain", loss_chunks=8)),
    longest=lambda c: fitted(c, "sequence", c.setup),
    fewest=lambda c: fitted(c, "gpus", c.having(sharding="zero3").setup),
    sent_ddp=lambda c: c.shared("zero.sent.numbers", "none"),
    sent_zero3=lambda c: c.shared("zero.sent.numbers", "zero3"),
)
_shown(
    "number",
    bytes_per_number=lambda c: c.of_block(Run.part, "activations") / (c.tokens * c.model.width),
    root=lambda c: sqrt(c.model.layers),
    moved=_moved,
    sent_ratio=lambda c: c.shared("zero.sent.numbers", "zero3") / c.shared("zero.sent.numbers", "none"),
    training_times=lambda c: c.peak() / c.inference(),
    kept_whole=_kept(1),
    kept_tensor=_kept(GPUS),
    kept_sequence=_kept(GPUS, by_tokens=True),
    kept_megatron=_kept(1) / GPUS,
)
_shown(
    "share",
    embeddings_share=lambda c: c.at("parameters.embeddings") / c.model.parameters,
    muon_saved=lambda c: 1 - c.at("states.muon", **FP32) / _adam(c),
    adam_share=lambda c: _adam(c) / c.states(**ADAM, **FP32),
    full_flops=_recomputed,
    adapters_kept=_adapters_kept,
    adapters_share=lambda c: c.adapters() / c.model.parameters,
    bubble=_bubble,
    bubble_interleaved=lambda c: _bubble(c, stages=2),
    bubble_zero=lambda c: _bubble(c, divided=1),
    six_share=lambda c: 6 * c.model.parameters * c.tokens / _flops(c),
)
_shown("teraflop", flops=_flops)
_shown(
    "milliseconds",
    bus=lambda c: _offloaded(c) / c.gpu.host_link,
    read_in_place=lambda c: _offloaded(c) / c.gpu.bandwidth,
    tensor_near=_sends() / H100.peer_link,
    tensor_far=_sends() / H100.network,
    tensor_products=6 * LARGE.parameters * LONG / GPUS / H100.bf16_flops,
    seconds=lambda c: _flops(c) / c.gpu.flops(c.one.dtypes.compute),
)
_shown(
    "bytes",
    # What fills the GPU.
    half_of_adam=lambda c: _adam(c) // 2,
    block_activations=lambda c: c.of_block(Run.part, "activations"),
    activations_twice=lambda c: c.part("activations", batch=2 * c.one.batch),
    scores_block=lambda c: c.scores(),
    scores=lambda c: c.model.layers * c.scores(),
    dropout_cost=lambda c: c.part("activations", dropout=DROPOUT) - c.part("activations", dropout=0.0),
    loss_llama=lambda c: c.at("loss.logits", {"vocabulary": SMALL.vocabulary}, **PLAIN),
    # Saving it on one GPU.
    best_bytes=lambda c: min(map(c.segment, range(1, c.model.layers + 1))),
    root_bytes=lambda c: c.segment(round(sqrt(c.model.layers))),
    peak_accumulated=lambda c: c.peak(batch=1, accumulation=c.one.batch * c.one.accumulation, **PLAIN),
    slope=lambda c: c.peak(batch=2 * c.one.batch) // c.one.batch - c.peak() // c.one.batch,
    adam_8bit=lambda c: 2 * _quantized(c, "8-bit optimizer state"),
    adapters_states=lambda c: c.adapters() * c.at("bytes_per_parameter", **FP32, **ADAM),
    nf4=lambda c: _quantized(c, "NF4, double quantization"),
    # Many GPUs.
    ddp_states=lambda c: c.shared("zero.states", "none"),
    zero1_states=lambda c: c.shared("zero.states", "zero1"),
    zero2_states=lambda c: c.shared("zero.states", "zero2"),
    zero3_states=lambda c: c.shared("zero.states", "zero3"),
    buckets=lambda c: c.part("communication", "rest", gpus=c.gpus),
    ddp_peak=lambda c: c.peak(gpus=c.gpus),
    zero3_peak=lambda c: c.peak(gpus=c.gpus, sharding="zero3"),
    block_flat=lambda c: c.flat(),
    model_flat=lambda c: c.flat(whole=True),
    ring_kept=_ring(),
    experts_each=_experts,
    experts_rest=lambda c: weight_bytes(MIXTURE) - c.gpus * _experts(c),
    cluster_states=16 * LARGE.parameters // CLUSTER,
    stage=_stage,
    first_stage=lambda c: c.gpus * _stage(c),
    boundary=_boundary,
    received=lambda c: 2 * 4 * c.gpus * _boundary(c),
    mixtral_weights=lambda c: formula("weights").at(MIXTURE, c.having(**BF16).setup),
    # Practice.
    rounded_peak=lambda c: c.peak(rounding=ROUNDING),
    rounding=lambda c: c.peak(rounding=ROUNDING) - c.peak(),
    context=lambda c: next(term.bytes for term in Headroom().terms(c.gpu) if term.name == "context"),
    gpu_memory=lambda c: c.gpu.memory,
    advertised_gib=lambda c: c.gpu.advertised_gb * units.UNITS["GB"],
    usable=lambda c: Headroom().usable(c.gpu),
    free=lambda c: c.free(),
    leak=lambda c: c.free() // LATE_STEP,
    forward_kept=lambda c: c.forward(),
    cache_token=lambda c: c.cache(),
    cache_all=lambda c: c.tokens * c.cache(),
    cache_llama=lambda c: c.cache(SMALL),
    cache_llama_heads=lambda c: c.cache(SMALL, SMALL.heads),
    latent_token=cache_bytes(LATENT, 1),
    latent_heads=LATENT.layers * LATENT.heads * (LATENT.head_width + LATENT.value_width) * 2,
    page=lambda c: cache_bytes(c.model, PAGE),
    page_waste=lambda c: cache_bytes(c.model, PAGE - 1),
    cache_longest=lambda c: cache_bytes(c.model, c.model.positions),
    prefill_token=lambda c: _prefilled(QWEN),
    prefill_cache=cache_bytes(QWEN, 1),
    large_weights=weight_bytes(LARGE),
    large_fp32=2 * weight_bytes(LARGE),
    large_loading=3 * weight_bytes(LARGE),
    large_copies=lambda c: c.gpus * weight_bytes(LARGE),
    large_share=lambda c: weight_bytes(LARGE) // c.gpus,
    states_trained=_trained,
    ppo_models=lambda c: 2 * _trained(c) + 2 * weight_bytes(c.model),
    grpo_models=lambda c: _trained(c) + weight_bytes(c.model),
    inference=lambda c: c.inference(),
    tensor_sent=_sends(),
)
