"""The numbers of the interview's cards: how each is said, and how it is computed for a case."""

from collections.abc import Callable
from math import sqrt
from typing import Any

from ... import units
from ...answers.headroom import ROUNDING, Headroom, find_gpu
from ...answers.serving import cache_bytes, weight_bytes
from ...answers.work import matrix_flops
from ...ask.mesh import Mesh
from ...ask.setup import Setup
from ...catalog import Gpu, model
from ...formulas import formula
from ...formulas.formats import BLOCKS, FLOATS
from ...theory.inference import course, letters
from .case import EAGER, FLASH, GPUS, RANK

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
_SMALL, _LARGE, _MIXTURE = "llama-3-8b", "llama-3.1-70b", "mixtral-8x7b"
_FP32 = {"precision": "fp32"}
_MIXED = {"precision": "bf16-mixed"}


def _h100() -> Gpu:
    return find_gpu("h100-80gb")


def _float(name, item):
    return formula(f"formats.{item}")(**FLOATS[name])


def _quantized(c, name):
    return formula("formats.blocks.bytes")(parameters=int(c.model.parameters), **BLOCKS[name])


def _adam(c):
    """Bytes of Adam's states in fp32."""
    return c.at("optimizer.states", optimizer="adamw", **_FP32)


def _heads(m):
    """Bytes that a token's keys and values of every head would take."""
    return m.layers * m.heads * (m.head_width + m.value_width) * 2


def _trained(c):
    """What a model takes that trains in 16 bits with fp32 copies, without activations."""
    return formula("zero.states").at(c.model, c.having(precision="bf16-master", optimizer="adamw", sharding="none"))


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
    return sum(c.at(f"flops.{name}", **changes) for name in names)


def _step_flops(c):
    return _flops(c, "forward", "backward")


def _backward(c, attention):
    """Backward's operations over forward's."""
    return _flops(c, "backward", **attention) / _flops(c, "forward", **attention)


def _change(c, **also):
    """How far autocast changes the peak, as a share of that in fp32."""
    return c.peak(**_MIXED, **also) / c.peak(**_FP32, **also) - 1


def _spared(c, kind, attention):
    """Bytes that a kind of checkpointing takes off the peak."""
    return c.peak(checkpointing="none", **attention) - c.peak(checkpointing=kind, **attention)


def _recomputed(c):
    """More operations of full checkpointing, as a share."""
    full, none = (matrix_flops(c.model, c.having(checkpointing=kind)) for kind in ("full", "none"))
    return full / none - 1


def _offloaded(c):
    """Bytes that cross the bus in a step, gradients down and weights up."""
    return c.at("gradients") + c.at("weights")


def _ring(c):
    """Bytes of attention on each GPU of a ring."""
    setup = Setup(batch=1, sequence=2**20, precision="bf16", gpus=RING.context, mesh=RING)
    return formula("context.kept").at(model("llama-3.1-8b"), setup)


def _experts(c):
    """Bytes of Mixtral's experts on each of the GPUs that divide them, in 16 bits."""
    setup = Setup(precision="bf16", gpus=c.gpus, mesh=Mesh(expert=c.gpus))
    return formula("experts.weights").at(model(_MIXTURE), setup)


def _kept(parts, by_tokens=False):
    """Bytes that a GPT's block keeps on each of so many GPUs for each number of the stream, in 16 bits, statistics left out."""
    one = {"batch": 1, "sequence": 1, "width": 1, "ffn_width": 4, "heads": 0, "weight_bytes": 2, "dropout": 1}
    found = formula("tensor.block")(**one, tensor=parts, sequence_parallel=int(by_tokens))
    return found - 24 - 16 / (parts if by_tokens else 1)


def _sends():
    """Bytes that one GPU sends in a step of one long sequence whose matrices are divided."""
    m = model(_LARGE)
    one = {"batch": 1, "sequence": LONG, "weight_bytes": 2, "tensor": GPUS}
    return m.layers * int(formula("tensor.sent")(width=m.width, **one))


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
NUMBERS = {
    "model": ("text", lambda c: c.model.name),
    "gpu": ("text", lambda c: c.gpu.title),
    "precision": ("text", lambda c: c.one.precision),
    "batch": ("count", lambda c: c.one.batch),
    "sequence": ("count", lambda c: c.one.sequence),
    "tokens": ("count", lambda c: c.tokens),
    "layers": ("count", lambda c: c.model.layers),
    # What fills the GPU.
    "parameters": ("count", lambda c: int(c.model.parameters)),
    "embeddings": ("count", lambda c: c.at("parameters.embeddings")),
    "embeddings_share": ("share", lambda c: c.at("parameters.embeddings") / c.model.parameters),
    "head_again": ("count", lambda c: c.model.vocabulary * c.model.width),
    "bytes_per_parameter": ("count", lambda c: c.at("bytes_per_parameter")),
    "states": ("bytes", lambda c: c.states()),
    "weights_fp32": ("bytes", lambda c: c.at("weights", **_FP32)),
    "weights_bf16": ("bytes", lambda c: c.at("weights", precision="bf16")),
    "adam_states": ("bytes", _adam),
    "adafactor_states": ("bytes", lambda c: c.at("states.adafactor", **_FP32)),
    "lion_states": ("bytes", lambda c: c.at("states.lion", **_FP32)),
    "lion_step": ("bytes", lambda c: c.in_step(optimizer="lion", optimizer_impl="loop", **_FP32)),
    "muon_states": ("bytes", lambda c: c.at("states.muon", **_FP32)),
    "muon_saved": ("share", lambda c: 1 - c.at("states.muon", **_FP32) / _adam(c)),
    "muon_step": ("bytes", lambda c: c.in_step(optimizer="muon", optimizer_impl="foreach", **_FP32)),
    "momentum_states": ("bytes", lambda c: c.at("optimizer.states", optimizer="momentum", **_FP32)),
    "adam_share": ("share", lambda c: _adam(c) / c.states(optimizer="adamw", **_FP32)),
    "fp16_smallest": ("tiny", lambda c: _float("fp16", "smallest")),
    "fp16_largest": ("count", lambda c: int(_float("fp16", "largest"))),
    "bf16_largest": ("tiny", lambda c: _float("bf16", "largest")),
    "bf16_spacing": ("tiny", lambda c: _float("bf16", "epsilon")),
    "bf16_lost": ("tiny", lambda c: _float("bf16", "epsilon") / 2),
    "fp32_lost": ("tiny", lambda c: _float("fp32", "epsilon") / 2),
    "fp16_vanishing": ("tiny", lambda c: sqrt(_float("fp16", "smallest") / 2 / NEW)),
    "half_of_adam": ("bytes", lambda c: _adam(c) // 2),
    "states_autocast": ("bytes", lambda c: c.states(**_MIXED, optimizer="adamw")),
    "states_master": ("bytes", lambda c: c.states(precision="bf16-master", optimizer="adamw")),
    "states_bf16": ("bytes", lambda c: c.states(precision="bf16", optimizer="adamw")),
    "master": ("bytes", lambda c: c.at("optimizer.master", precision="bf16-master")),
    "gradients": ("bytes", lambda c: c.at("gradients")),
    "block_activations": ("bytes", lambda c: c.block()),
    "bytes_per_number": ("number", lambda c: c.block() / (c.tokens * c.model.width)),
    "activations": ("bytes", lambda c: c.saved()),
    "activations_twice": ("bytes", lambda c: c.saved(batch=2 * c.one.batch)),
    "eager_activations": ("bytes", lambda c: c.saved(**EAGER)),
    "eager_short": ("bytes", lambda c: c.saved(**EAGER, **c.half_sequence())),
    "flash_activations": ("bytes", lambda c: c.saved(**FLASH)),
    "flash_short": ("bytes", lambda c: c.saved(**FLASH, **c.half_sequence())),
    "scores_block": ("bytes", lambda c: c.scores()),
    "scores": ("bytes", lambda c: c.model.layers * c.scores()),
    "flash_kept": ("bytes", lambda c: c.at("attention.flash", **FLASH)),
    "eager_peak": ("bytes", lambda c: c.peak(**EAGER)),
    "flash_peak": ("bytes", lambda c: c.peak(**FLASH)),
    "flash_backward": ("number", lambda c: _backward(c, FLASH)),
    "eager_backward": ("number", lambda c: _backward(c, EAGER)),
    "dropout_cost": ("bytes", lambda c: c.saved(dropout=DROPOUT) - c.saved(dropout=0.0)),
    "logits": ("bytes", lambda c: c.at("logits", loss="plain")),
    "loss_worst": ("bytes", lambda c: c.at("loss.logits", loss="plain")),
    "llama_vocabulary": ("count", lambda c: model(_SMALL).vocabulary),
    "loss_llama": ("bytes", lambda c: c.at("loss.logits", {"vocabulary": model(_SMALL).vocabulary}, loss="plain")),
    "peak": ("bytes", lambda c: c.peak()),
    "peak_at": ("text", lambda c: c.budget().peak_at),
    "rest": ("bytes", lambda c: c.budget().phases["rest"]),
    "after_forward": ("bytes", lambda c: c.budget().phases["after_forward"]),
    "step_foreach": ("bytes", lambda c: c.budget(optimizer_impl="foreach").phases["step"]),
    "step_fused": ("bytes", lambda c: c.budget(optimizer_impl="fused").phases["step"]),
    # Saving it on one GPU.
    "peak_fp32": ("bytes", lambda c: c.peak(**_FP32)),
    "peak_mixed": ("bytes", lambda c: c.peak(**_MIXED)),
    "mixed_change": ("signed", _change),
    "mixed_change_one": ("signed", lambda c: _change(c, batch=1, loss="plain")),
    "casts": ("bytes", lambda c: c.saved("casts", **_MIXED)),
    "peak_none": ("bytes", lambda c: c.peak(checkpointing="none")),
    "peak_full": ("bytes", lambda c: c.peak(checkpointing="full")),
    "full_flops": ("share", _recomputed),
    "best_every": ("count", lambda c: min(c.segments, key=c.kept)),
    "best_bytes": ("bytes", lambda c: min(map(c.kept, c.segments))),
    "root_segment": ("count", lambda c: c.root),
    "root_bytes": ("bytes", lambda c: c.kept(c.root)),
    "root": ("number", lambda c: sqrt(c.model.layers)),
    "selective_flash": ("bytes", lambda c: _spared(c, "selective", FLASH)),
    "operations_flash": ("bytes", lambda c: _spared(c, "operations", FLASH)),
    "selective_eager": ("bytes", lambda c: _spared(c, "selective", EAGER)),
    "peak_accumulated": (
        "bytes",
        lambda c: c.peak(batch=1, accumulation=c.one.batch * c.one.accumulation, loss="plain"),
    ),
    "moved": ("number", lambda c: c.moved_for_one_more()),
    "largest_batch": ("count", lambda c: c.fit("batch", c.setup.replace(loss="plain", loss_chunks=8))),
    "longest": ("count", lambda c: c.fit("sequence")),
    "slope": ("bytes", lambda c: c.peak(batch=2 * c.one.batch) // c.one.batch - c.peak() // c.one.batch),
    "adam_8bit": ("bytes", lambda c: 2 * _quantized(c, "8-bit optimizer state")),
    "rank": ("count", lambda c: RANK),
    "adapters": ("count", lambda c: c.adapters()),
    "adapters_kept": ("share", lambda c: c.adapters_kept()),
    "adapters_share": ("share", lambda c: c.adapters() / c.model.parameters),
    "adapters_states": (
        "bytes",
        lambda c: c.adapters() * c.at("bytes_per_parameter", **_FP32, optimizer="adamw"),
    ),
    "nf4": ("bytes", lambda c: _quantized(c, "NF4, double quantization")),
    "host_link": ("vendor", lambda c: c.gpu.host_link),
    "bus": ("milliseconds", lambda c: _offloaded(c) / c.gpu.host_link),
    "read_in_place": ("milliseconds", lambda c: _offloaded(c) / c.gpu.bandwidth),
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
    "sent_ratio": ("number", lambda c: c.shared("zero.sent.numbers", "zero3") / c.shared("zero.sent.numbers", "none")),
    "block_flat": ("bytes", lambda c: c.flat()),
    "model_flat": ("bytes", lambda c: c.flat(whole=True)),
    "fewest": ("count", lambda c: c.fit("gpus", c.having(sharding="zero3"))),
    "ring": ("count", lambda c: RING.context),
    "ring_kept": ("bytes", _ring),
    "experts_each": ("bytes", _experts),
    "experts_rest": ("bytes", lambda c: weight_bytes(model(_MIXTURE)) - c.gpus * _experts(c)),
    "cluster": ("count", lambda c: CLUSTER),
    "cluster_states": ("bytes", lambda c: 16 * int(model(_LARGE).parameters) // CLUSTER),
    "stage": ("bytes", lambda c: c.stage()),
    "first_stage": ("bytes", lambda c: c.gpus * c.stage()),
    "micro_batches": ("count", lambda c: 4 * c.gpus),
    "bubble": ("share", lambda c: c.bubble()),
    "bubble_interleaved": ("share", lambda c: c.bubble(stages=2)),
    "bubble_zero": ("share", lambda c: c.bubble(divided=1)),
    "boundary": ("bytes", lambda c: c.boundary()),
    "received": ("bytes", lambda c: 2 * 4 * c.gpus * c.boundary()),
    "mixtral": ("count", lambda c: int(model(_MIXTURE).parameters)),
    "mixtral_active": ("count", lambda c: formula("parameters.active").at(model(_MIXTURE))),
    "mixtral_weights": ("bytes", lambda c: formula("weights").at(model(_MIXTURE), c.having(precision="bf16"))),
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
    "cache_all": ("bytes", lambda c: c.tokens * c.cache()),
    "cache_llama": ("bytes", lambda c: c.cache(model(_SMALL))),
    "cache_llama_heads": ("bytes", lambda c: c.cache(model(_SMALL), model(_SMALL).heads)),
    "latent_token": ("bytes", lambda c: cache_bytes(model("deepseek-v3"), 1)),
    "latent_heads": ("bytes", lambda c: _heads(model("deepseek-v3"))),
    "page_tokens": ("count", lambda c: PAGE),
    "page": ("bytes", lambda c: cache_bytes(c.model, PAGE)),
    "page_waste": ("bytes", lambda c: cache_bytes(c.model, PAGE - 1)),
    "positions": ("count", lambda c: c.model.positions),
    "cache_longest": ("bytes", lambda c: cache_bytes(c.model, c.model.positions)),
    "prefill_token": ("bytes", lambda c: _prefilled(model("qwen2.5-7b"))),
    "prefill_cache": ("bytes", lambda c: cache_bytes(model("qwen2.5-7b"), 1)),
    "large_weights": ("bytes", lambda c: weight_bytes(model(_LARGE))),
    "large_fp32": ("bytes", lambda c: 2 * weight_bytes(model(_LARGE))),
    "large_loading": ("bytes", lambda c: 3 * weight_bytes(model(_LARGE))),
    "large_copies": ("bytes", lambda c: c.gpus * weight_bytes(model(_LARGE))),
    "large_share": ("bytes", lambda c: weight_bytes(model(_LARGE)) // c.gpus),
    "states_trained": ("bytes", _trained),
    "ppo_models": ("bytes", lambda c: 2 * _trained(c) + 2 * weight_bytes(c.model)),
    "grpo_models": ("bytes", lambda c: _trained(c) + weight_bytes(c.model)),
    "inference": ("bytes", lambda c: c.inference()),
    "training_times": ("number", lambda c: c.peak() / c.inference()),
    "tensor_gpus": ("count", lambda c: GPUS),
    "tensor_gpu": ("text", lambda c: _h100().title),
    "tensor_tokens": ("count", lambda c: LONG),
    "kept_whole": ("number", lambda c: _kept(1)),
    "kept_tensor": ("number", lambda c: _kept(GPUS)),
    "kept_sequence": ("number", lambda c: _kept(GPUS, True)),
    "kept_megatron": ("number", lambda c: _kept(1) / GPUS),
    "tensor_sent": ("bytes", lambda c: _sends()),
    "nvlink": ("vendor", lambda c: _h100().peer_link),
    "network": ("vendor", lambda c: _h100().network),
    "tensor_near": ("milliseconds", lambda c: _sends() / _h100().peer_link),
    "tensor_far": ("milliseconds", lambda c: _sends() / _h100().network),
    "tensor_products": ("milliseconds", lambda c: 6 * model(_LARGE).parameters * LONG / GPUS / _h100().bf16_flops),
    "flops": ("teraflop", _step_flops),
    "six_share": ("share", lambda c: 6 * c.model.parameters * c.tokens / _step_flops(c)),
    "seconds": ("milliseconds", lambda c: _step_flops(c) / c.gpu.flops(c.one.dtypes.compute)),
}
