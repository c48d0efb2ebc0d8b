"""The book's notation: each symbol with its meaning, its unit, and where its value comes from.

Letters are the papers'. A condition in square brackets is 1 where it holds, else 0. The words stand in `notation.toml`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

import sympy

from ..ask.choices import COMMON_OPTIMIZERS, DTYPE_BYTES, OPTIMIZERS
from ..ask.schedules import ALL_FIRST, SCHEDULES, SPLIT
from ..common import files

_SAID = files.entries(__package__, "notation.toml")


@dataclass(frozen=True)
class Symbol:
    """One letter of the notation.

    Attributes:
        name: spelled out, as in code. symbol: sympy's. meaning: in words. unit: what it counts.
        needs: `model` or `setup`, whose fields give the value; empty for a free symbol. value: computes it from that object.
    """

    name: str
    symbol: sympy.Symbol
    meaning: str
    unit: str
    needs: str
    value: Callable | None


#: Every symbol of the book, by its name in code.
SYMBOLS: dict[str, Symbol] = {}


def _symbol(needs, name, value):
    """Add a symbol. value: a function of the object that `needs` names, or the path of a field; by default the field `name`."""
    switch = _SAID["switches"].get(name)
    said = {"letter": rf"[\text{{{name.replace('_', ' ')}}}]", "meaning": switch, "unit": "0 or 1"}
    said = said if switch else {"unit": "", **_SAID["letters"][name]}
    sign = "positive" if said.get("least") else "nonnegative"
    letter = sympy.Symbol(said["letter"], **{"real": True} if said.get("real") else {"integer": True, sign: True})
    read = value if callable(value) else attrgetter(value or name)
    truth = (lambda asked: int(bool(read(asked)))) if switch else read
    SYMBOLS[name] = Symbol(name, letter, said["meaning"], said["unit"], needs, truth if needs else None)
    return letter


def _symbols(needs, names, value=None):
    """Add symbols, as sympy's `symbols` makes them: of one name its letter, of several a list."""
    found = [_symbol(needs, name, value) for name in names.split()]
    return found if len(found) > 1 else found[0]


_model, _setup, _free = (partial(_symbols, needs) for needs in ("model", "setup", ""))


def _width(name, dtype):
    """Add a symbol for the bytes of one number. dtype: a function of the setup, or a field's path; 0 where it gives None."""
    read = dtype if callable(dtype) else attrgetter(dtype)
    return _setup(name, lambda s: DTYPE_BYTES[read(s)] if read(s) else 0)


def _common(setup):
    """The row of the setup's optimizer. Raise ValueError where its states are not as large as the weights, which the formulas assume."""
    row = OPTIMIZERS[setup.optimizer]
    if not row.common:
        raise ValueError(
            f"Setup.optimizer: the formulas speak of {', '.join(COMMON_OPTIMIZERS)}, not of {setup.optimizer!r}, whose "
            "states or temporaries have other sizes; eb.budget answers"
        )
    return row


# The run.
B, S = _setup("batch sequence")

# The model's dimensions.
L, H, A, V, A_kv, D, F, P = _model("layers width heads vocabulary kv_heads head_width ffn_width parameters")
N, W, T, K_n, E = _model("learned_positions embedding_width token_types block_norms experts")
E_s, E_t, F_e, N_max, L_m = _model("shared_experts experts_per_token expert_width positions mixture_layers")
L_w, W_n, R_q, R_kv, D_r, D_v = _model("windowed_layers window query_rank latent_rank rope_width value_width")

# Conditions on the model.
tied, gated, fused, qkv_bias, out_bias, ffn_bias = _model("tied gated fused qkv_bias out_bias ffn_bias")
norm_bias, final_norm, embedding_norm, qk_norm = _model("norm_bias final_norm embedding_norm qk_norm")
sinks, projected, pooler, router_bias = _model("sinks projected pooler router_bias")
narrow = _model("narrow", lambda m: m.head_width % 8)
latent = _model("latent")
mask_buffers = _model("mask_buffers", lambda m: m.family == "gpt")

# How the run is divided and what it stores, with bytes of one number by role.
w = _width("weight_bytes", lambda s: s.dtypes.compute if s.fsdp else s.base_dtype)
w_s = _width("stored_weight_bytes", "base_dtype")
r_A = _setup("adapter_rank", lambda s: s.adapters.rank if s.adapters else 0)
w_A = _width("adapter_bytes", lambda s: s.trained_dtype if s.adapters else None)
r = _width("reduced_bytes", "reduced_dtype")
G = _setup("shards")
C = _setup("context", "mesh.context")
E_p = _setup("expert", "mesh.expert")
G_e = _setup("expert_shards")
rho = _setup("routing", "mesh.routing")
several = _setup("several", lambda s: s.batch > 1)
gathers = _setup("gathers", lambda s: s.mesh.rotation == "all-gather")
R = _setup("replicas")
sharded_optimizer = _setup("sharded_optimizer", lambda s: s.sharding != "none")
sharded_gradients = _setup("sharded_gradients", lambda s: s.sharding in ("zero2", "zero3"))
sharded_weights = _setup("sharded_weights", lambda s: s.sharding == "zero3")
one_unit = _setup("one_unit", lambda s: s.fsdp and s.sharding_units == "model")
ends_apart = _setup("ends_apart", lambda s: s.fsdp and s.sharding_units == "block+ends")
t = _setup("tensor", "mesh.tensor")
sequence_parallel = _setup("sequence_parallel", lambda s: s.mesh.tensor > 1 and s.mesh.sequence_parallel)
loss_parallel = _setup("loss_parallel", lambda s: s.mesh.tensor > 1 and s.mesh.loss_parallel)
no_sync = _setup("no_sync")
mixed = _setup("cast_to_gather", lambda s: s.fsdp and s.dtypes.autocast)
c = _width("compute_bytes", "dtypes.compute")
m_w = _width("master_bytes", "dtypes.master")
s_b = _width("state_bytes", "state_dtype")
n_s = _setup("states", lambda s: _common(s).states)
n_c, n_a = _setup("loss_chunks accumulation")
p = _setup("pipeline", "mesh.pipeline")
v = _setup("pipeline_stages", "mesh.stages")
i_p = _free("place")
hop = _setup("hop", lambda s: SCHEDULES[s.mesh.schedule].hops or 0)
all_first = _setup("all_first", lambda s: s.mesh.schedule in ALL_FIRST)
divided = _setup("divided", lambda s: s.mesh.schedule in SPLIT)

# What of a step is switched on.
accumulated = _setup("accumulated", lambda s: s.accumulation > 1)
K = _setup("segment", lambda s: s.segment or 1)
segmented = _setup("segmented", "segment")
selective = _setup("selective", lambda s: s.checkpointing == "selective")
chunked = _setup("chunked", lambda s: s.loss == "chunked")
autocast = _setup("autocast", lambda s: s.dtypes.autocast and not s.fsdp)
scaled = _setup("loss_scaling", "dtypes.loss_scaling")
eager = _setup("eager", lambda s: s.attention == "eager")
dropped = _setup("dropout")
half = _setup("half", lambda s: s.dtypes.compute != "fp32")
fp16 = _setup("fp16", lambda s: s.dtypes.compute == "fp16")
master = _setup("master", "dtypes.master")
moved = _setup("moved", lambda s: s.master_gradients == "fp32")
adam = _setup("adam", lambda s: _common(s).algorithm == "adam")
adafactor = _setup("adafactor", lambda s: s.optimizer == "adafactor")
muon = _setup("muon", lambda s: s.optimizer == "muon")
adam8bit = _setup("adam8bit", lambda s: OPTIMIZERS[s.optimizer].algorithm == "adam8bit")
foreach = _setup("foreach", lambda s: s.optimizer_impl == "foreach")
loop = _setup("loop", lambda s: s.optimizer_impl == "loop")
fused_adam = _setup("fused_adam", lambda s: s.optimizer_impl == "fused" and _common(s).algorithm == "adam")
g = _width("gradient_bytes", lambda s: None if s.master_gradients == "fp32" else s.dtypes.weights)
g_m = _setup("gradient_buffer_bytes", lambda s: 0 if s.master_gradients == "bf16" else 4)
rounding = _free("rounding")

# Free symbols: number formats and quantization.
e_bits, m_bits, top, nan, q_bits = _free("exponent_bits mantissa_bits top_reserved top_nan quantized_bits")
q_block, q_scale, q_outer, q_outer_scale = _free("quantization_block scale_bits outer_block outer_scale_bits")
mu, sigma = _free("magnitude scale")

# Free symbols: a machine's size and rates.
multiprocessors, threads, tile, grouped, queries = _free("multiprocessors threads tile grouped_mm query_tile")
splits, ell, f = _free("splits host_link flop_rate")

# Free symbols: what a run does beside training, and in the host's memory.
N_e, n_r, n_w, n_f, n_x = _free("kept_sequences ranks workers prefetched token_columns")
n_rows, n_cols, q_rows, q_cols = _free("matrix_rows matrix_columns block_rows block_columns")
z_s, z_t, k_rows, k_cols = _free("scale_bytes tensor_scale_bytes tile_rows tile_columns")

# Free symbols: rows on their way to experts.
a_e, n_sm, c_n, c_r, n_d = _free("alignment sending_multiprocessors nvlink_tokens rdma_tokens domain")
eight = _free("eight_bits")

# Free symbols: pictures, and the tower that reads them.
X_i, Y_i, p_i, k_i, t_i = _free("picture_width picture_height patch_side merged_side patch_frames")
N_p, N_i, L_i, H_i, A_i, F_i = _free("patches pictures tower_layers tower_width tower_heads tower_ffn_width")
N_d, tower_trained, L_1, L_2 = _free("tower_taps tower_trained single_layers double_layers")

# Free symbols: a layer with a state in place of keys and values.
A_q, A_s, N_s, P_s, Q, n_v = _free("state_key_heads state_heads state_rows state_columns chunk convolved")

#: sympy's symbol -> its entry.
BY_SYMBOL = {entry.symbol: entry for entry in SYMBOLS.values()}
