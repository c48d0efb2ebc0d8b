"""The numbers of the interview's cards: how each is computed for a case, and how it is shown."""

from collections.abc import Callable
from dataclasses import replace
from math import ceil, sqrt
from operator import attrgetter
from typing import Any

from ... import units
from ...answers.engines import SAMPLED, Engine, served
from ...answers.headroom import ROUNDING, Headroom
from ...answers.plan import work
from ...answers.serving import cache_bytes, weight_bytes
from ...answers.work import matrix_flops
from ...ask.mesh import Mesh
from ...ask.setup import Lora
from ...catalog import gpu, model
from ...formulas import formula
from ...formulas.formats import BLOCKS, FLOATS
from ...theory.inference import course, letters
from ..asking import Run, run
from ..bank import c51, c52, c53
from .case import EAGER, FLASH, GPUS, RANK, Case, Derived, fitted, reserved

#: The step of the late out-of-memory error; the dropout of the card on it.
LATE_STEP, DROPOUT = 5_000, 0.1
#: Tokens of a long sequence.
LONG = 8192
#: GPUs of a cluster's layout; GPUs that share a sequence of a million tokens.
CLUSTER, RING = 64, Mesh(context=16)
#: Tokens in a page of a paged cache, as in vLLM; what vLLM decides for Llama 3.1 8B on an H100.
PAGE = 16
SERVED = served(model("llama-3.1-8b"), gpu("h100-80gb"), LONG, Engine())
#: One minus Adam's beta_2, PyTorch's default: the share of a new squared gradient in the average.
NEW = 0.001
GPT, SMALL, LARGE, MIXTURE, LATENT, QWEN = map(
    model, ("gpt2", "llama-3-8b", "llama-3.1-70b", "mixtral-8x7b", "deepseek-v3", "qwen2.5-7b")
)
H100 = gpu("h100-80gb")
WEIGHTS = weight_bytes(LARGE)
FP32, MIXED, BF16, MASTER = ({"precision": name} for name in ("fp32", "bf16-mixed", "bf16", "bf16-master"))
ADAM, PLAIN = {"optimizer": "adamw"}, {"loss": "plain"}
LION, MUON, FOREACH = {"optimizer": "lion"}, {"optimizer": "muon"}, {"optimizer_impl": "foreach"}
NONE, ZERO1, ZERO2, ZERO3 = ({"sharding": name} for name in ("none", "zero1", "zero2", "zero3"))
UNCHECKED, FULL = {"checkpointing": "none"}, {"checkpointing": "full"}


def _float(name, item):
    return formula(f"formats.{item}")(**FLOATS[name])


SMALLEST = _float("fp16", "smallest")
#: Bytes that one GPU sends in a step of one long sequence, with divided matrices.
SENT = LARGE.layers * int(
    formula("tensor.sent")(batch=1, sequence=LONG, width=LARGE.width, weight_bytes=2, tensor=GPUS)
)
#: A layer of Qwen3-Next over 4,096 tokens.
STATE = {
    "state_key_heads": 16, "state_heads": 32, "state_rows": 128, "state_columns": 128, "chunk": 64, "compute_bytes": 2, "batch": 1,
    "sequence": 4096,
}  # fmt: skip
#: A long sequence of a 70B model; DeepSeek-V3, its experts on 64 GPUs; the longest request to Llama 3.1.
STRETCHED = run("llama-3.1-70b", batch=1, sequence=2**15, precision="bf16", checkpointing="full")
DIVIDED = Mesh(expert=64)
SPARSE = run("deepseek-v3", batch=1, sequence=4096, precision="bf16", gpus=DIVIDED.expert, mesh=DIVIDED)
CONTEXT = 2**17
REQUEST = cache_bytes(SMALL, CONTEXT)
#: A sequence of a million tokens on a ring.
_RUN = run("llama-3.1-8b", batch=1, sequence=2**20, precision="bf16", gpus=RING.context, mesh=RING)


def _quantized(c, name):
    return formula("formats.blocks.bytes")(parameters=int(c.model.parameters), **BLOCKS[name])


def _adam(c):
    """Bytes of Adam's states in fp32."""
    return c.at("optimizer.states", **ADAM, **FP32)


def _trained(c):
    """Bytes of a model that trains in 16 bits with fp32 copies, without activations."""
    return c.at("zero.states", **MASTER, **ADAM, sharding="none")


def _prefilled(c):
    """Bytes of activations that one more token adds to the peak of a prefill of Qwen2.5-7B."""
    moments = (
        max(course(QWEN, v).at(v).unrolled(), key=lambda turn: sum(turn[1].values()))[1]
        for v in (letters(QWEN, 1, tokens) for tokens in (513, 512))
    )
    more, less = (moment["activations"] for moment in moments)
    return more - less


def _flops(c, *names, **changes):
    if c.model.experts or c.model.latent_rank:
        raise ValueError(f"operations are not derived for {c.model.name}: it has experts or latent attention")
    counted = sum(c.at(f"flops.{name}", **changes) for name in names or ("forward", "backward"))
    return counted - (not names) * c.at("flops.masked", **changes, **UNCHECKED)


def _more(c, kind, usual):
    """Further operations of a step with one change, as a share of those with another."""
    some, others = (matrix_flops(c.model, c.having(**changes).setup) for changes in (kind, usual))
    return some / others - 1


def _change(c, **also):
    """Autocast's change of the peak, as a share of the peak in fp32."""
    return c.peak(**MIXED, **also) / c.peak(**FP32, **also) - 1


def _dropped(c):
    """What dropout adds to the activations of GPT-2 for the case's tokens."""
    small = replace(c, model=GPT.replace(positions=max(GPT.positions, c.one.sequence)))
    return small.part("activations", dropout=DROPOUT) - small.part("activations", dropout=0.0)


def _spared(c, kind, **attention):
    """Bytes by which a kind of checkpointing lowers the peak."""
    return c.peak(**UNCHECKED, **attention) - c.peak(checkpointing=kind, **attention)


def _logits(c, times=1):
    """Bytes of the tensors of logits that live together in the plain loss, with a vocabulary some times as large."""
    entries = times * c.model.vocabulary
    if c.model.code == "transformers":  # in fp32 always: logits, their log-softmax, its gradient (chapter 14)
        return 12 * c.tokens * entries
    return c.at("loss.logits", {"vocabulary": entries}, **PLAIN)


def _moved(c):
    """Bytes per parameter that memory moves for each further batch of an accumulation."""
    if c.one.batch < 2 or c.one.accumulation > 1:
        raise ValueError("one batch of several sequences is needed")
    if isinstance(c.model, Derived):
        raise ValueError(c.model.unlike_reference())
    parts = c.having(batch=1, accumulation=c.one.batch).setup
    more = work(c.model, parts).moved - work(c.model, c.one).moved
    return more / (c.one.batch - 1) / c.model.parameters


def _adapters_kept(c):
    """The ratio of a block's saved bytes with fp32 adapters on every linear layer to those of full fine-tuning, in bf16."""
    kept = [c.of_block(Run.forward, adapters=lora, **BF16, **UNCHECKED, **PLAIN) for lora in (Lora(RANK), None)]
    return kept[0] / kept[1]


def _offloaded(c):
    """Bytes that cross the bus in a step, gradients down and weights up."""
    return c.at("gradients") + c.at("weights")


def _experts(c, what="weights"):
    """A formula of Mixtral's experts on each of the GPUs that divide them, in 16 bits."""
    return run("mixtral-8x7b", precision="bf16", gpus=c.gpus, mesh=Mesh(expert=c.gpus)).at(f"experts.{what}")


def _block(c):
    return c.of_block(Run.part, "activations")


def _stage(c):
    """Bytes that one micro-batch leaves on one stage of a pipeline with a stage on each GPU."""
    return ceil(c.model.layers / c.gpus) * _block(c)


def _bubble(c, pipeline_stages=1, divided=0):
    """The ratio of the time that a pipeline's GPUs wait to the time that they work, with four micro-batches per GPU."""
    pipeline = {"pipeline": c.gpus, "pipeline_stages": pipeline_stages, "accumulation": 4 * c.gpus}
    return formula("pipeline.bubble")(**pipeline, divided=divided)


def _advertised(c):
    return c.gpu.advertised_gb * units.UNITS["GB"]


def _boundary(c):
    """Bytes of a micro-batch that a stage sends to the next, in 16 bits."""
    tensor = {"batch": c.one.batch, "sequence": c.one.sequence, "width": c.model.width, "weight_bytes": 2}
    return formula("pipeline.boundary")(**tensor)


def _kept(parts, by_tokens=False):
    """Bytes that a GPT's block saves on each GPU for each number of the residual stream, in 16 bits, without statistics."""
    one = {"batch": 1, "sequence": 1, "width": 1, "ffn_width": 4, "heads": 0, "weight_bytes": 2, "dropout": 1}
    found = formula("tensor.block")(**one, tensor=parts, sequence_parallel=int(by_tokens))
    return found - 24 - 16 / (parts if by_tokens else 1)


def _digits(x, most):
    """`x` rounded to at most `most` significant digits."""
    return float(f"{x:.{most}g}")


def _three(n, scale):
    """A whole number in the largest unit that it reaches, in three significant digits."""
    size, unit = next((pair for pair in scale if abs(n) >= pair[0]), scale[-1])
    return f"{_digits(n / size, 3):,g}{unit}"


_UNITS = [(units.UNITS[unit], f" {unit}") for unit in ("TiB", "GiB", "MiB", "KiB", "B")]
_COUNTS = [(10**9, " billion"), (10**6, " million"), (1, "")]
#: Kind -> a number as a person says it: three digits, or two of a share. `Deck.value` has the exact number.
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
#: Name -> (kind, function of a `Case`).
NUMBERS: dict[str, tuple[str, Callable[[Case], Any]]] = {}


def _shown(kind, **numbers):
    """Add numbers of one kind: each a function of a case, a path to its field, or a constant."""
    for name, how in numbers.items():
        how = attrgetter(how) if isinstance(how, str) else how
        NUMBERS[name] = kind, how if callable(how) else lambda c, how=how: how


def _asked(kind, ask, *of, **numbers):
    """Add numbers of one kind, from one function of a case with different changes of the setup."""
    _shown(kind, **{name: lambda c, changes=changes: ask(c, *of, **changes) for name, changes in numbers.items()})


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
_asked("bytes", Case.shared, "zero.states", ddp_states=NONE, zero1_states=ZERO1, zero2_states=ZERO2, zero3_states=ZERO3)
_asked("count", Case.shared, "zero.sent.numbers", sent_ddp=NONE, sent_zero3=ZERO3)
_asked("signed", _change, mixed_change={}, mixed_change_one={"batch": 1} | PLAIN)
_asked("bytes", _spared, "selective", selective_flash=FLASH, selective_eager=EAGER)
_asked("bytes", _spared, "operations", operations_flash=FLASH)
_asked("share", _bubble, bubble={}, bubble_interleaved={"pipeline_stages": 2}, bubble_zero={"divided": 1})
# What a formula says.
_asked("count", Case.at, "parameters.embeddings", embeddings={})
_asked("count", Case.at, "bytes_per_parameter", bytes_per_parameter={})
_asked("bytes", Case.at, "weights", weights_fp32=FP32, weights_bf16=BF16)
_asked("bytes", Case.at, "gradients", gradients={})
_asked("bytes", Case.at, "optimizer.states", adam_states=ADAM | FP32, momentum_states={"optimizer": "momentum"} | FP32)
_asked("bytes", Case.at, "optimizer.master", master=MASTER)
_asked("bytes", Case.at, "states.adafactor", adafactor_states=FP32)
_asked("bytes", Case.at, "states.lion", lion_states=FP32)
_asked("bytes", Case.at, "states.muon", muon_states=FP32)
_asked("bytes", Case.at, "attention.flash", flash_kept=FLASH)
_asked("bytes", Case.at, "logits", logits=PLAIN)
# Fields and methods of the case.
_shown("text", model="model.name", gpu="gpu.title", precision="one.precision", peak_at=lambda c: c.step().peak_at)
_shown("count", batch="one.batch", sequence="one.sequence", tokens="tokens", gpus="gpus", adapters=Case.adapters)
_shown("count", layers="model.layers", positions="model.positions", parameters="parameters")
_shown("bytes", gpu_memory="gpu.memory", usable=lambda c: Headroom().usable(c.gpu, c.setup), room=Case.room, free=Case.free,
       reserved=lambda c: reserved(c, c.one))  # fmt: skip
_shown("bytes", forward_kept=Case.forward, scores_block=Case.scores, block_flat=Case.flat, cache_token=Case.cache)
_shown("bytes", stage=_stage, boundary=_boundary, experts_each=_experts, inference=Case.inference)
_shown("bytes", block_activations=_block, states_trained=_trained, advertised_gib=_advertised)
_shown("vendor", host_link="gpu.host_link", advertised=_advertised)
_shown("share", adapters_kept=_adapters_kept)
_shown("number", moved=_moved)
_shown("teraflop", flops=_flops)
# What is the same for all.
_shown("count", late_step=LATE_STEP, rank=RANK, ring=RING.context, cluster=CLUSTER, page_tokens=PAGE)
_shown("count", tensor_gpus=GPUS, tensor_tokens=LONG, head_again=GPT.vocabulary * GPT.width)
_shown("count", mixtral=MIXTURE.parameters, mixtral_active=formula("parameters.active").at(MIXTURE))
_shown("bytes", engine_run=sum(SERVED.engine.profiled(SERVED.model, SERVED.gpu).values()), engine_pages=SERVED.pages)
_shown("count", engine_tokens=SERVED.tokens, engine_rows=SERVED.engine.sequences, engine_logit=SAMPLED)
_shown("count", fp16_largest=int(_float("fp16", "largest")))
_shown("tiny", fp16_smallest=SMALLEST, fp16_vanishing=sqrt(SMALLEST / 2 / NEW), bf16_largest=_float("bf16", "largest"))
_shown("tiny", bf16_spacing=_float("bf16", "epsilon"), bf16_lost=_float("bf16", "epsilon") / 2)
_shown("tiny", fp32_lost=_float("fp32", "epsilon") / 2)
_shown("text", tensor_gpu=lambda c: H100.title)
_shown("vendor", nvlink=H100.peer_link)
_shown("bytes", tensor_sent=SENT, large_weights=WEIGHTS, large_fp32=2 * WEIGHTS, large_loading=3 * WEIGHTS)
_shown("bytes", ring_kept=_RUN.at("context.kept"), cluster_states=16 * LARGE.parameters // CLUSTER)
_shown("bytes", latent_token=cache_bytes(LATENT, 1), prefill_cache=cache_bytes(QWEN, 1), prefill_token=_prefilled)
_shown("bytes", cache_llama=cache_bytes(SMALL, 1))
_shown("bytes", cache_llama_heads=cache_bytes(SMALL.replace(kv_heads=SMALL.heads), 1))
_shown("bytes", latent_heads=LATENT.layers * LATENT.heads * (LATENT.head_width + LATENT.value_width) * 2)
_shown("number", kept_whole=_kept(1), kept_megatron=_kept(1) / GPUS)
_shown("number", kept_tensor=_kept(GPUS), kept_sequence=_kept(GPUS, by_tokens=True))
_shown("milliseconds", tensor_near=SENT / H100.peer_link, tensor_far=SENT * 15 / 14 / H100.ring(2 * GPUS))
_shown("milliseconds", tensor_products=6 * LARGE.parameters * LONG / GPUS / H100.bf16_flops)
_shown("bytes", state=formula("state.held")(**STATE, convolved=0, weight_bytes=2))
_shown("bytes", state_loop=formula("state.loop")(**STATE))
_shown("bytes", state_chunks=formula("delta.saved")(**STATE), state_kernels=formula("delta.kernel")(**STATE))
_shown("count", state_tokens=STATE["sequence"], state_even=c51.crossing())
_shown("count", state_keys=STATE["state_rows"] // 2)  # of as many columns as rows
_shown("count", picture_tokens=c52.photo(), picture_patches=c52.photo(merged=4))
_shown("bytes", picture_token=c52.kept() // c52.photo(), picture_kept=c52.kept())
_shown("bytes", flux_kept=c53.kept(pixels=512), flux_rank=c53.less(), flux_twice=c53.kept())
_shown("bytes", flux_token=formula("diffusion.single")(**c53.FLUX, sequence=1, adapter_rank=2))
_shown("count", long_tokens=STRETCHED.setup.sequence, expert_gpus=DIVIDED.expert, expert_tokens=SPARSE.setup.sequence)
_shown("bytes", long_loss=STRETCHED.at("loss.logits", precision="bf16-mixed"))
_shown("bytes", long_inputs=STRETCHED.at("checkpoint.inputs"))
_shown("count", deepseek=LATENT.parameters, deepseek_active=formula("parameters.active").at(LATENT))
_shown("bytes", deepseek_weights=weight_bytes(LATENT), deepseek_states=16 * LATENT.parameters)
_shown("bytes", deepseek_experts=SPARSE.at("experts.weights"), deepseek_kept=SPARSE.at("experts.kept"))
_shown("bytes", long_request=REQUEST)
_shown("count", long_context=CONTEXT)
_shown("count", long_requests=SERVED.pages // REQUEST)
_shown("number", e4m3_largest=_float("fp8 e4m3", "largest"))
# All else.
_shown(
    "bytes",
    half_of_adam=lambda c: _adam(c) // 2,
    activations_twice=lambda c: c.part("activations", batch=2 * c.one.batch),
    scores=lambda c: c.model.layers * c.scores(),
    dropout_cost=_dropped,
    stepped=lambda c: c.states(**ADAM, **FP32) - c.at("gradients", **FP32),
    loss_worst=_logits,
    loss_twice=lambda c: _logits(c, 2),
    best_bytes=lambda c: min(map(c.segment, range(1, c.model.layers + 1))),
    root_bytes=lambda c: c.segment(round(sqrt(c.model.layers))),
    peak_accumulated=lambda c: c.peak(batch=1, accumulation=c.one.batch * c.one.accumulation, **PLAIN),
    slope=lambda c: c.peak(batch=2 * c.one.batch) // c.one.batch - c.peak() // c.one.batch,
    adam_8bit=lambda c: 2 * _quantized(c, "8-bit optimizer state"),
    adapters_states=lambda c: c.adapters() * c.at("bytes_per_parameter", **FP32, **ADAM),
    nf4=lambda c: _quantized(c, "NF4, double quantization"),
    buckets=lambda c: c.part("communication", "rest", gpus=c.gpus),
    ddp_peak=lambda c: c.peak(gpus=c.gpus),
    zero3_peak=lambda c: c.peak(gpus=c.gpus, sharding="zero3"),
    model_flat=lambda c: c.flat(whole=True),
    experts_rest=lambda c: weight_bytes(MIXTURE) - c.gpus * _experts(c),
    first_stage=lambda c: c.gpus * _stage(c),
    received=lambda c: 2 * 4 * c.gpus * _boundary(c),
    mixtral_weights=lambda c: formula("weights").at(MIXTURE, c.having(**BF16).setup),
    rounded_peak=lambda c: c.peak(rounding=ROUNDING),
    rounding=lambda c: c.peak(rounding=ROUNDING) - c.peak(),
    context=lambda c: next(term.bytes for term in Headroom().terms(c.gpu) if term.name == "context"),
    leak=lambda c: c.free() // LATE_STEP,
    cache_all=lambda c: c.tokens * c.cache(),
    page=lambda c: cache_bytes(c.model, PAGE),
    page_waste=lambda c: cache_bytes(c.model, PAGE - 1),
    cache_longest=lambda c: cache_bytes(c.model, c.model.positions),
    large_copies=lambda c: c.gpus * WEIGHTS,
    large_share=lambda c: WEIGHTS // c.gpus,
    ppo_models=lambda c: 2 * _trained(c) + 2 * weight_bytes(c.model),
    grpo_models=lambda c: _trained(c) + weight_bytes(c.model),
)
_shown(
    "count",
    entries_twice=lambda c: 2 * c.model.vocabulary,
    micro_batches=lambda c: 4 * c.gpus,
    experts_worst=lambda c: _experts(c, "worst"),
    best_every=lambda c: min(range(1, c.model.layers + 1), key=c.segment),
    root_segment=lambda c: round(sqrt(c.model.layers)),
    largest_batch=lambda c: fitted(c, "batch", c.setup.replace(loss="plain", loss_chunks=8)),
    longest=lambda c: fitted(c, "sequence", c.setup),
    fewest=lambda c: fitted(c, "gpus", c.having(sharding="zero3").setup),
)
_shown(
    "number",
    bytes_per_number=lambda c: _block(c) / (c.tokens * c.model.width),
    root=lambda c: sqrt(c.model.layers),
    sent_ratio=lambda c: c.shared("zero.sent.numbers", "zero3") / c.shared("zero.sent.numbers", "none"),
    training_times=lambda c: c.peak() / c.inference(),
)
_shown(
    "share",
    full_flops=lambda c: _more(c, FULL, UNCHECKED),
    flash_lighter=lambda c: -_more(c, FLASH, EAGER),
    embeddings_share=lambda c: c.at("parameters.embeddings") / c.model.parameters,
    muon_saved=lambda c: 1 - c.at("states.muon", **FP32) / _adam(c),
    adam_share=lambda c: _adam(c) / c.states(**ADAM, **FP32),
    adapters_share=lambda c: c.adapters() / c.model.parameters,
    six_share=lambda c: 6 * c.model.parameters * c.tokens / _flops(c),
)
_shown(
    "milliseconds",
    bus=lambda c: _offloaded(c) / c.gpu.host_link,
    read_in_place=lambda c: _offloaded(c) / c.gpu.bandwidth,
    seconds=lambda c: _flops(c) / c.gpu.flops(c.one.dtypes.compute),
)
