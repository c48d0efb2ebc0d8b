"""The book's notation: each symbol with its meaning, its unit, and where its value comes from.

Letters are the papers'. A condition in square brackets is Iverson's: 1 where it holds, else 0.
"""

from collections.abc import Callable
from dataclasses import dataclass

import sympy

from ..ask.choices import COMMON_OPTIMIZERS, DTYPE_BYTES, OPTIMIZERS
from ..ask.schedules import SPLIT


@dataclass(frozen=True)
class Symbol:
    """One letter of the notation.

    Attributes:
        name: spelled out, as in code. symbol: sympy's. meaning: in words. unit: what it counts.
        needs: `model` or `setup`, which gives the value; `` for a free one. value: reads it off.
    """

    name: str
    symbol: sympy.Symbol
    meaning: str
    unit: str
    needs: str
    value: Callable | None


#: Every symbol of the book, by its name in code.
SYMBOLS: dict[str, Symbol] = {}


def _symbol(name, latex, meaning, unit, needs="", value=None, positive=False):
    """A whole number, positive or at least not negative; any real one where `positive` is None."""
    sign = {"real": True} if positive is None else {"integer": True, "positive" if positive else "nonnegative": True}
    SYMBOLS[name] = Symbol(name, sympy.Symbol(latex, **sign), meaning, unit, needs, value)
    return SYMBOLS[name].symbol


def _dimension(name, latex, meaning, positive=False, value=None):
    return _symbol(name, latex, meaning, "", "model", value or (lambda m: getattr(m, name)), positive)


def _condition(name, meaning, holds):
    return _symbol(
        name, rf"[\text{{{name.replace('_', ' ')}}}]", meaning, "0 or 1", "model", lambda m: int(bool(holds(m)))
    )


def _of_setup(name, latex, meaning, unit, value, positive=False):
    return _symbol(name, latex, meaning, unit, "setup", value, positive)


def _switch(name, meaning, holds):
    return _of_setup(name, rf"[\text{{{name.replace('_', ' ')}}}]", meaning, "0 or 1", lambda s: int(bool(holds(s))))


# The run.
B = _of_setup("batch", "B", "sequences in a step, on one GPU", "", lambda s: s.batch, True)
S = _of_setup("sequence", "S", "tokens in a sequence", "", lambda s: s.sequence, True)

# The model's dimensions.
L = _dimension("layers", "L", "layers (blocks)", True)
H = _dimension("width", "H", "width of the residual stream", True)
A = _dimension("heads", "A", "attention heads", True)
V = _dimension("vocabulary", "V", "entries of the vocabulary", True)
A_kv = _dimension("kv_heads", "A_{kv}", "key and value heads", True)
D = _dimension("head_width", "D", "width of a head", True)
F = _dimension("ffn_width", "F", "inner width of the MLP", True)
P = _dimension("parameters", "P", "parameters in all", True)
N = _dimension("learned_positions", "N", "rows of the learned position table")
W = _dimension("embedding_width", "W", "width of the token table", True)
T = _dimension("token_types", "T", "rows of the segment table")
K_n = _dimension("block_norms", "K_n", "norms of width H in a block")
E = _dimension("experts", "E", "routed experts in a mixture layer")
E_s = _dimension("shared_experts", "E_s", "experts that every token visits")
E_t = _dimension("experts_per_token", "E_t", "routed experts that one token visits")
F_e = _dimension("expert_width", "F_e", "inner width of an expert")
N_max = _dimension("positions", r"S_{max}", "longest sequence")
L_m = _dimension("mixture_layers", "L_m", "layers with experts")
R_q = _dimension("query_rank", "R_q", "rank of the queries' compression")
R_kv = _dimension("latent_rank", "R_{kv}", "rank of the keys' and values' compression")
D_r = _dimension("rope_width", "D_r", "rotary part of a head")
D_v = _dimension("value_width", "D_v", "width of a value head")

# Conditions on the model.
tied = _condition("tied", "the output head is the token table", lambda m: m.tied)
gated = _condition("gated", "the MLP has three matrices", lambda m: m.gated)
fused = _condition("fused", "query, key and value share one tensor", lambda m: m.fused)
qkv_bias = _condition("qkv_bias", "biases on query, key and value", lambda m: m.qkv_bias)
out_bias = _condition("out_bias", "a bias on the attention's output", lambda m: m.out_bias)
ffn_bias = _condition("ffn_bias", "biases in the MLP", lambda m: m.ffn_bias)
norm_bias = _condition("norm_bias", "norms have a bias", lambda m: m.norm == "layernorm" and m.norm_bias)
final_norm = _condition("final_norm", "a norm before the head", lambda m: m.final_norm)
embedding_norm = _condition("embedding_norm", "a norm after the embeddings", lambda m: m.embedding_norm)
qk_norm = _condition("qk_norm", "norms on queries and keys", lambda m: m.qk_norm)
sinks = _condition("sinks", "a learned attention sink a head", lambda m: m.sinks)
projected = _condition("projected", "W differs from H", lambda m: m.embedding_width != m.width)
pooler = _condition("pooler", "BERT's pooling layer", lambda m: m.pooler)
router_bias = _condition("router_bias", "a bias for each expert's score", lambda m: m.router_bias)
narrow = _condition("narrow", "the width of a head is no multiple of eight", lambda m: m.head_width % 8)
latent = _condition("latent", "multi-head latent attention", lambda m: m.latent_rank > 0)

mask_buffers = _condition("mask_buffers", "eager attention's causal masks are buffers", lambda m: m.family == "gpt")

# Bytes of one number, by role.
w = _of_setup(
    "weight_bytes", "w", "bytes of one weight in forward and backward", "B",
    lambda s: DTYPE_BYTES[s.dtypes.compute if s.fsdp else s.base_dtype], True,
)  # fmt: skip
w_s = _of_setup(
    "stored_weight_bytes",
    "w_s",
    "bytes of one weight between steps",
    "B",
    lambda s: DTYPE_BYTES[s.base_dtype],
    True,
)
r_A = _of_setup(
    "adapter_rank", "r_A", "rank of adapters; 0 without", "", lambda s: s.adapters.rank if s.adapters else 0
)
w_A = _of_setup(
    "adapter_bytes", "w_A", "bytes of one number of an adapter; 0 without", "B",
    lambda s: DTYPE_BYTES[s.trained_dtype] if s.adapters else 0,
)  # fmt: skip
r = _of_setup(
    "reduced_bytes", "r", "bytes of one gradient as GPUs add it up", "B", lambda s: DTYPE_BYTES[s.reduced_dtype], True
)
G = _of_setup("shards", "G", "GPUs that divide a model among them", "", lambda s: s.shards, True)
C = _of_setup("context", "C", "GPUs that share every sequence", "", lambda s: s.mesh.context, True)
E_p = _of_setup("expert", "E_p", "GPUs that divide the experts", "", lambda s: s.mesh.expert, True)
G_e = _of_setup(
    "expert_shards", "G_e", "GPUs that have the same experts, among which FSDP divides them", "", lambda s: s.expert_shards, True
)  # fmt: skip
rho = _of_setup(
    "routing",
    r"\rho",
    "rows that come to a GPU's experts, over those that it sends",
    "",
    lambda s: s.mesh.routing,
    None,
)
gathers = _switch(
    "gathers",
    "keys and values of all GPUs come at once, and not around the ring",
    lambda s: s.mesh.rotation == "all-gather",
)
R = _of_setup("replicas", "R", "groups of GPUs that each divide a model among them", "", lambda s: s.replicas, True)
sharded_optimizer = _switch("sharded_optimizer", "the optimizer's states are divided", lambda s: s.sharding != "none")
sharded_gradients = _switch("sharded_gradients", "gradients are divided", lambda s: s.sharding in ("zero2", "zero3"))
sharded_weights = _switch("sharded_weights", "weights are divided", lambda s: s.sharding == "zero3")
one_unit = _switch("one_unit", "FSDP gathers the whole model at once", lambda s: s.fsdp and s.sharding_units == "model")
ends_apart = _switch(
    "ends_apart", "FSDP gathers the token embedding, and the last norm with the head, by themselves",
    lambda s: s.fsdp and s.sharding_units == "block+ends",
)  # fmt: skip
t = _of_setup("tensor", "t", "GPUs that divide each matrix", "", lambda s: s.mesh.tensor, True)
sequence_parallel = _switch(
    "sequence_parallel", "what stands between divided matrices is divided by tokens",
    lambda s: s.mesh.tensor > 1 and s.mesh.sequence_parallel,
)  # fmt: skip
loss_parallel = _switch(
    "loss_parallel", "logits stay divided by the vocabulary", lambda s: s.mesh.tensor > 1 and s.mesh.loss_parallel
)
no_sync = _switch("no_sync", "the last batch alone has its gradients sent", lambda s: s.no_sync)


def _common(setup):
    """The optimizer, whose states are as large as the weights; ValueError where they are not."""
    row = OPTIMIZERS[setup.optimizer]
    if not row.common:
        raise ValueError(
            f"Setup.optimizer: the formulas speak of {', '.join(COMMON_OPTIMIZERS)}, not of {setup.optimizer!r}, whose states or "
            "temporaries have other sizes; eb.budget answers"
        )
    return row


mixed = _of_setup(
    "cast_to_gather", r"[\text{cast to gather}]", "weights are cast before they are gathered", "0 or 1",
    lambda s: int(s.fsdp and s.dtypes.autocast),
)  # fmt: skip
c = _of_setup(
    "compute_bytes", "c", "bytes of one number in a matrix product", "B", lambda s: DTYPE_BYTES[s.dtypes.compute], True
)
m_w = _of_setup(
    "master_bytes", "m_w", "bytes of one master weight; 0 without", "B",
    lambda s: DTYPE_BYTES[s.dtypes.master] if s.dtypes.master else 0,
)  # fmt: skip
s_b = _of_setup(
    "state_bytes", "s", "bytes of one number of optimizer state", "B", lambda s: DTYPE_BYTES[s.state_dtype], True
)
n_s = _of_setup("states", "n_s", "optimizer states a parameter", "", lambda s: _common(s).states)
n_c = _of_setup("loss_chunks", "n_c", "chunks asked for in the chunked loss", "", lambda s: s.loss_chunks, True)
n_a = _of_setup(
    "accumulation", "n_a", "batches whose gradients add up before a step", "", lambda s: s.accumulation, True
)
p = _of_setup("pipeline", "p", "GPUs in a row, a pipeline", "", lambda s: s.mesh.pipeline, True)
v = _of_setup("pipeline_stages", "v", "stages of a pipeline on each GPU", "", lambda s: s.mesh.stages, True)
i_p = _symbol("place", "i", "place of a GPU in its pipeline, from 0", "")
hop = _of_setup(
    "hop", "h", "forwards that each place nearer to the first GPU runs ahead", "",
    lambda s: {"1f1b": 1, "interleaved-1f1b": 2, "interleaved-zero-bubble": 1, "zbv": 1}.get(s.mesh.schedule, 0),
)  # fmt: skip
all_first = _switch(
    "all_first", "every forward runs before the first backward", lambda s: s.mesh.schedule in ("gpipe", "looped-bfs")
)
divided = _switch(
    "divided", "a pipeline's weights' gradients run apart from its inputs'", lambda s: s.mesh.schedule in SPLIT
)
accumulated = _switch("accumulated", "gradients of several batches add up", lambda s: s.accumulation > 1)
K = _of_setup(
    "segment", "K", "blocks that are checkpointed together; 1 where none is", "", lambda s: s.segment or 1, True
)
segmented = _switch("segmented", "segments of blocks are checkpointed", lambda s: s.segment > 0)
selective = _switch("selective", "attention is checkpointed", lambda s: s.checkpointing == "selective")
chunked = _switch("chunked", "head and loss run chunk by chunk", lambda s: s.loss == "chunked")
autocast = _switch("autocast", "autocast casts weights in forward", lambda s: s.dtypes.autocast and not s.fsdp)
scaled = _switch("loss_scaling", "fp16's loss scaler", lambda s: s.dtypes.loss_scaling)
eager = _switch("eager", "attention forms its scores", lambda s: s.attention == "eager")
dropped = _switch("dropout", "there is dropout", lambda s: s.dropout > 0)
half = _switch("half", "matrix products in 16 bits", lambda s: s.dtypes.compute != "fp32")
fp16 = _switch("fp16", "matrix products in fp16", lambda s: s.dtypes.compute == "fp16")
master = _switch("master", "the optimizer has weights of its own", lambda s: s.dtypes.master)
moved = _switch("moved", "gradients move to a buffer at once", lambda s: s.master_gradients == "fp32")
adam = _switch("adam", "the optimizer is Adam or AdamW", lambda s: _common(s).algorithm == "adam")
adafactor = _switch("adafactor", "the optimizer is Adafactor", lambda s: s.optimizer == "adafactor")
muon = _switch("muon", "the optimizer is Muon, with AdamW for the rest", lambda s: s.optimizer == "muon")
adam8bit = _switch(
    "adam8bit", "AdamW's states are in 8 bits", lambda s: OPTIMIZERS[s.optimizer].algorithm == "adam8bit"
)
foreach = _switch("foreach", "the optimizer steps all tensors together", lambda s: s.optimizer_impl == "foreach")
loop = _switch("loop", "the optimizer steps tensor by tensor", lambda s: s.optimizer_impl == "loop")
fused_adam = _switch(
    "fused_adam", "Adam's step is one kernel",
    lambda s: s.optimizer_impl == "fused" and _common(s).algorithm == "adam",
)  # fmt: skip
g = _of_setup(
    "gradient_bytes", "g", "bytes of one gradient as backward leaves it; 0 where it moves to a buffer", "B",
    lambda s: 0 if s.master_gradients == "fp32" else DTYPE_BYTES[s.dtypes.weights],
)  # fmt: skip
g_m = _of_setup(
    "gradient_buffer_bytes", "g_m", "bytes of one number of a persistent gradient buffer; 0 without", "B",
    lambda s: 0 if s.master_gradients == "bf16" else 4,
)  # fmt: skip
rounding = _symbol(
    "rounding", "k", "what each tensor is rounded up to a multiple of: 1 for tensor bytes, 512 as CUDA rounds", "B", positive=True
)  # fmt: skip

# Free symbols: number formats and quantization.
e_bits = _symbol("exponent_bits", "e", "exponent bits", "bit", positive=True)
m_bits = _symbol("mantissa_bits", "m", "mantissa bits", "bit", positive=True)
top = _symbol(
    "top_reserved", r"[\text{top reserved}]", "the top exponent is infinity and NaN, as in IEEE 754", "0 or 1"
)
nan = _symbol("top_nan", r"[\text{top NaN}]", "the largest code is NaN, the rest of its exponent numbers", "0 or 1")
q_bits = _symbol("quantized_bits", "b", "bits of a quantized number", "bit", positive=True)
q_block = _symbol("quantization_block", "q_1", "numbers that share one scale", "", positive=True)
q_scale = _symbol("scale_bits", "s_1", "bits of a scale", "bit", positive=True)
q_outer = _symbol("outer_block", "q_2", "scales that share one outer scale", "", positive=True)
q_outer_scale = _symbol("outer_scale_bits", "s_2", "bits of an outer scale; 0 without", "bit")

mu = _symbol("magnitude", r"\mu", "base-2 logarithm of a number's magnitude", "", positive=None)
sigma = _symbol("scale", r"\sigma", "base-2 logarithm of the loss scale", "")

# Free symbols: a machine's size and rates.
multiprocessors = _symbol("multiprocessors", "n_m", "multiprocessors of the GPU", "", positive=True)
threads = _symbol("threads", "n_t", "threads that a multiprocessor holds", "", positive=True)
tile = _symbol("tile", "n_{tile}", "numbers that CUB's radix sort gives a block of threads", "", positive=True)
grouped = _symbol("grouped_mm", "b_g", "bytes that a grouped product in bf16 takes on a GPU, besides each group's", "B")
queries = _symbol("query_tile", "n_q", "queries in a tile of memory-efficient attention's backward", "", positive=True)
splits = _symbol("splits", "n_k", "parts into which flash attention cuts the keys", "", positive=True)
ell = _symbol("host_link", r"\ell", "bytes a second between host and GPU, in one direction", "B", positive=True)
f = _symbol("flop_rate", "f", "floating-point operations of matrix products a second", "", positive=True)

#: From sympy's symbol back to its entry.
BY_SYMBOL = {entry.symbol: entry for entry in SYMBOLS.values()}
