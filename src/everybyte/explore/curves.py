"""Explorers with curves over one size, and the one of number formats' ranges."""

from sympy import ceiling

from ..ask.choices import PRECISIONS, Sharding
from ..ask.setup import Setup
from ..catalog import Gpu, Model, models
from ..common import checks
from ..formulas import SYMBOLS, Formula, bindings, formula
from ..formulas.formats import FLOATS
from ..formulas.quantized import saved
from ..formulas.symbols import A, B, D, F, H, L, S, c, mu, sigma
from ..rules.formulas import COMPILED_LLAMA, refused
from .beside import said
from .controls import (
    OF_STATES,
    Choice,
    Slider,
    a_decoder,
    a_gpt,
    asked,
    decided,
    gpus_label,
    opens,
    powers,
    shared,
    steps,
)
from .explorer import Explorer, told
from .pictures import Lines, Ranges


def _curves(name, *quantities):
    """[(part, label, quantity)] of an explorer's curves; parts and labels stand in explorers.toml."""
    return [(*look, q) for look, q in zip(said(name)["curves"], quantities, strict=True)]


#: Head widths of published models, and 36, which is no multiple of eight.
_WIDTHS = (16, 32, 36, 48, 64, 80, 96, 128, 192, 256)
_HEADS = 128


@opens()
def attention(model: Model | None = None, setup: Setup | None = None) -> Explorer:
    """Chapter 18: bytes that one GPT block saves for backward, with eager and flash attention, over the sequence.

    It uses the model's heads (at most 128) and head width, by default GPT-2's; the rest of the block is GPT-2's.
    """
    gpt2 = models("reference")["gpt2"]
    start = model or gpt2
    if start.heads > _HEADS:
        raise ValueError(f"attention.model: {start.name} has {start.heads} heads; allowed: 1 to {_HEADS}")
    widths = sorted({*_WIDTHS, start.head_width})
    wide = {f"{d} wide": {"head_width": d, "narrow": int(d % 8 > 0)} for d in widths}
    controls = [
        Slider("heads", "heads", 1, _HEADS, start.heads),
        Choice("head_width", "width of a head", wide, f"{start.head_width} wide", kind="slider"),
        *asked(setup, "precision", "dropout", "batch", "sequence"),
    ]
    block, square = formula("activations.block"), formula("attention.scores")
    curves = _curves("attention", block.given(eager=1), block.given(eager=0), square.given(eager=1))
    picture = Lines("sequence", "sequence (tokens)", None, curves)
    derived = [("width", A * D), ("ffn_width", 4 * A * D)]
    return told("attention", controls, picture, base=bindings(gpt2, None), derived=derived)


@opens(*OF_STATES, "batch", "sequence", "attention")
def loss(model: Model | None = None, setup: Setup | None = None) -> Explorer:
    """Chapter 14: bytes of the loss's logits-sized tensors, and of what all blocks save, over the vocabulary.

    The model, by default GPT-2, may be any of GPT-2's architecture.
    """
    start, choice = a_gpt(model)
    sizes = {m.vocabulary: name for name, m in reversed(models("reference").items())}
    vocabularies = {"(the model's)": {}} | {f"{v:,}, as {sizes[v]}": {"vocabulary": v} for v in sorted(sizes)}
    chunks = {"plain": {"chunked": 0, "loss_chunks": 1}}
    chunks |= {f"in {n} chunks": {"chunked": 1, "loss_chunks": n} for n in (2, 8, 64)}
    controls = [
        choice,
        Choice("vocabulary", "vocabulary", vocabularies, kind="slider"),
        *asked(setup, "precision", "attention"),
        Choice("loss", "loss", chunks),
        *asked(setup, "batch", "sequence"),
    ]
    curves = _curves("loss", formula("loss.logits"), L * formula("activations.block").given(dropout=0))
    values = sorted({2**i for i in range(8, 20)} | set(sizes) | {start.vocabulary})
    return told("loss", controls, Lines("vocabulary", "vocabulary", values, curves, log=True))


@opens("batch")
def linear_attention(setup: Setup | None = None) -> Explorer:
    """Chapter 51: bytes that the recurrence of one layer saves, as a loop, as torch code by chunks, by kernels, over the sequence.

    States are square, as wide as a head, and each has a head of its own. Kernels take chunks of 64. Beside them what flash
    attention saves of as many heads.
    """
    widths = {f"{d} wide": {"head_width": d} for d in (64, 128, 256)}
    controls = [
        Slider("heads", "heads", 1, _HEADS, 32),
        Choice("width", "width of a head", widths, "128 wide", kind="slider"),
        steps("chunk", "chunk", powers(4, 8), 64, said="{} tokens in a chunk".format),
        *asked(setup, "batch"),
        steps("sequence", "sequence (tokens)", powers(9, 17), 4096),
    ]
    size = {"state_heads": A, "state_key_heads": A, "state_rows": D, "state_columns": D, "compute_bytes": 2}
    code = [formula(name).given(**size) for name in ("state.loop", "kimi.saved", "delta.saved")]
    kernels = [formula(name).given(**size, chunk=64) for name in ("kimi.kernel", "delta.kernel")]
    flash = formula("context.kept").given(context=1, kv_heads=A, compute_bytes=2)
    picture = Lines(
        "sequence", "sequence (tokens)", powers(9, 17), _curves("linear_attention", *code, *kernels, flash), log=True
    )
    return told("linear_attention", controls, picture)


STAGES: dict[Sharding, str] = {"zero2": "ZeRO-2", "zero3": "ZeRO-3"}
#: GPUs of one machine, each with its own link to the host.
GPUS = powers(0, 3)
SEQUENCE = 1024


def _seconds(what, amount, rate):
    """A formula: `amount` over a rate, in seconds, rounded up to tenths of a millisecond."""
    expr = ceiling(10_000 * amount / SYMBOLS[rate].symbol) / 10_000
    return Formula(f"seconds {what}", "", expr, "s", "the explorer's own quotient", "26_offloading")


@opens("batch", "sequence", "precision", "sharding", "checkpointing", "gpus", "offload", "optimizer", "optimizer_impl")
def offloading(model: Model | None = None, setup: Setup | None = None, gpu: Gpu | None = None) -> Explorer:
    """Chapter 26: the least time of transfers and of arithmetic in one batch of an offloaded model, over its sequences.

    At the data sheets' rates, with both directions of the bus at once and products in bf16. FSDP's units are blocks, under ZeRO-2
    or ZeRO-3 on 1 to 8 GPUs. Sequences have 1,024 tokens, attention is flash. The model is a dense Llama or a GPT of the book's code;
    the default is Llama 3.1 8B, mixed, every block checkpointed, on one GPU.
    """
    _, choice = a_decoder(model, "llama-3.1-8b")
    chosen = setup or Setup(precision="bf16-mixed", sharding="zero3", checkpointing="full")
    checks.one_of("offloading", "setup.sharding", chosen.sharding, STAGES)
    checks.whole("offloading", "setup.sequence", chosen.sequence, SEQUENCE, SEQUENCE)
    checks.one_of("offloading", "setup.checkpointing", chosen.checkpointing, ("none", "full"))
    sixteen = [name for name, precision in PRECISIONS.items() if precision.compute == "bf16"]
    precisions: dict[str, dict] = {
        p: decided(None, Setup(precision=p), "stored_weight_bytes", "reduced_bytes", "half") for p in sixteen
    }
    stages = {label: decided(None, Setup(sharding=s), "sharded_weights") for s, label in STAGES.items()}
    kept = {"(no checkpointing)": Setup(), "full checkpointing": Setup(checkpointing="full")}
    again = {label: decided(None, s, "segmented") for label, s in kept.items()}
    controls = [
        choice,
        Choice("precision", "precision", precisions, chosen.precision),
        Choice("stage", "stage", stages, STAGES[chosen.sharding]),
        Choice("checkpointing", "checkpointing", again, list(again)[chosen.segment > 0]),
        steps("gpus", "GPUs", GPUS, chosen.gpus, "shards", gpus_label),
        *asked(setup, "batch"),
        shared("gpu", gpu and gpu.name),
    ]
    products = sum(formula(name).expr for name in ("flops.forward", "flops.backward", "checkpoint.flops"))
    products -= formula("flops.masked").expr  # which flash attention skips
    up, down = (formula(name).expr for name in ("fsdp.to_gpu", "fsdp.to_host"))
    amounts = ("up", up, "host_link"), ("down", down, "host_link"), ("of products", products, "flop_rate")
    curves = _curves("offloading", *(_seconds(*amount) for amount in amounts))
    picture = Lines("batch", "sequences in the batch", powers(0, 8), curves, unit="s", log=True)
    derived = zip(said("offloading")["also"], ("fsdp.to_gpu", "fsdp.to_host"), strict=True)
    return told("offloading", controls, picture, derived=derived)


#: The matrices of `low_precision`'s explorer: (model, inputs, outputs), fields of the model.
_MATRICES = {
    "up of {}": ("llama-3.1-8b", "width", "ffn_width"),
    "down of {}": ("llama-3.1-8b", "ffn_width", "width"),
    "an expert's up of {}": ("deepseek-v3", "width", "expert_width"),
}


def low_precision() -> Explorer:
    """Chapter 27: what one linear layer saves for backward, over the tokens: bf16, and Transformer Engine's 8 and 4 bits on one GPU."""
    matrices = {}
    for label, (name, *fields) in _MATRICES.items():
        inputs, outputs = (getattr(models("reference")[name], field) for field in fields)
        matrices[f"{label.format(name)}: {inputs:,} to {outputs:,}"] = {"width": inputs, "ffn_width": outputs}
    controls = [Choice("matrix", "matrix", matrices), *asked(None, "batch", "sequence")]
    curves = _curves(
        "low_precision", *(sum(saved(name, B * S, H, F).values()) for name in said("low_precision")["recipes"])
    )
    picture = Lines("sequence", "tokens in each sequence", powers(7, 17), curves, log=True)
    return told("low_precision", controls, picture)


def compiled() -> Explorer:
    """Chapter 28: what one Llama block saves in bf16, over the sequence: as the book writes it, compiled, and checkpointed."""
    llamas = {n: m for n, m in models("reference").items() if not refused(COMPILED_LLAMA, m)}
    controls = [
        Choice("model", "model", {name: bindings(m, None) for name, m in llamas.items()}, "llama-3.1-8b"),
        *asked(None, "batch", "sequence"),
    ]
    block = formula("compiled.llama_block").expr
    curves = _curves("compiled", block + c * B * S * F, block, c * B * S * H)
    picture = Lines("sequence", "tokens in each sequence", None, curves)
    return told("compiled", controls, picture, base=decided(None, Setup(precision="bf16"), "compute_bytes", "half"))


def formats() -> Explorer:
    """Chapter 20: the range of a number format with chosen bits, beside fp32, bf16, fp16 and fp8.

    A gradient of magnitude 2^x times a loss scale is marked. Each format keeps it, rounds it (to nearest, ties to even), rounds it
    to 0, or overflows.
    """
    tops = said("formats")["tops"]
    controls = [
        Slider("exponent_bits", "exponent bits", 2, 8, 5),
        Slider("mantissa_bits", "mantissa bits", 1, 23, 10),
        Choice("top", "top exponent", tops),
        Slider("magnitude", "gradient, log2", -160.0, 130.0, -20.25, 0.25),
        Slider("scale", "loss scale, log2", 0, 32, 0),
    ]
    shown = {name: FLOATS[name] for name in ("fp32", "bf16", "fp16", "fp8 e5m2", "fp8 e4m3")}
    presets = {}
    for name, bits in shown.items():
        top = next(label for label, values in tops.items() if values.items() <= bits.items())
        presets[name] = {"exponent_bits": bits["exponent_bits"], "mantissa_bits": bits["mantissa_bits"], "top": top}
    presets |= {label: presets["fp16"] | gradient for label, gradient in said("formats")["gradients"].items()}
    bounds = {name: f"formats.{name}" for name in ("smallest", "largest", "epsilon", "spacing")}
    bounds["normal"] = "formats.smallest_normal"
    picture = Ranges(list(shown.items()), "yours", bounds, "magnitude", "scaled gradient")
    return told("formats", controls, picture, presets=presets, derived=[("magnitude", mu + sigma)])
