"""How many parameters, exactly: summed from the list of a transformer's weight tensors."""

from sympy import Add, Min, collect, expand, factor_terms

from .registry import Tensor, register
from .symbols import (
    A,
    A_kv,
    D,
    D_r,
    D_v,
    E,
    E_s,
    E_t,
    F,
    F_e,
    H,
    K_n,
    L,
    L_m,
    N,
    R_kv,
    R_q,
    T,
    V,
    W,
    embedding_norm,
    ffn_bias,
    final_norm,
    gated,
    latent,
    norm_bias,
    out_bias,
    pooler,
    projected,
    qk_norm,
    qkv_bias,
    router_bias,
    sinks,
    tied,
)


def _split(name, pieces, count):
    return Tensor(name, Add(*pieces), count, tuple(pieces))


def _norm(name, width, count):
    return [Tensor(f"{name}.weight", width, count), Tensor(f"{name}.bias", width, count * norm_bias)]


def _mlp(name, inner, count):
    return [
        Tensor(f"{name}.up.weight", H * inner, count * (1 - gated)),
        _split(f"{name}.gate_up.weight", (H * inner, H * inner), count * gated),
        Tensor(f"{name}.down.weight", inner * H, count),
        Tensor(f"{name}.up.bias", inner, count * ffn_bias * (1 + gated)),
        Tensor(f"{name}.down.bias", H, count * ffn_bias),
    ]


# The weight tensors of each group. ATTENTION, NORMS, MLP and EXPERTS are one layer's.
EMBEDDINGS = [
    Tensor("token.weight", V * W),
    Tensor("position.weight", N * H, Min(N, 1)),
    Tensor("type.weight", T * H, Min(T, 1)),
    Tensor("project.weight", W * H, 2 * projected),
    *_norm("embedding_norm", H, embedding_norm),
]
ATTENTION = [
    _split("attention.qkv.weight", (H * A * D, H * A_kv * D, H * A_kv * D), 1 - latent),
    _split("attention.qkv.bias", (A * D, A_kv * D, A_kv * D), (1 - latent) * qkv_bias),
    Tensor("attention.out.weight", A * D * H, 1 - latent),
    Tensor("attention.out.bias", H, out_bias),
    *_norm("attention.query_key_norm", D, 2 * qk_norm),
    Tensor("attention.sinks", A, sinks),
    Tensor("attention.query_down.weight", H * R_q, latent),
    Tensor("attention.query_norm.weight", R_q, latent),
    Tensor("attention.query_up.weight", R_q * A * D, latent),
    Tensor("attention.latent_down.weight", H * (R_kv + D_r), latent),
    Tensor("attention.latent_norm.weight", R_kv, latent),
    Tensor("attention.latent_up.weight", R_kv * A * (D - D_r + D_v), latent),
    Tensor("attention.latent_out.weight", A * D_v * H, latent),
]
NORMS = _norm("norm", H, K_n)
MLP = _mlp("mlp", F, 1)
EXPERT = _mlp("expert", F_e, 1)
ROUTER = [Tensor("router.weight", H * E), Tensor("router.bias", E, router_bias)]
FINAL = [*_norm("final_norm", H, final_norm)]
HEAD = [Tensor("head.weight", V * W, 1 - tied)]
POOLER = [Tensor("pooler.weight", H * H, pooler), Tensor("pooler.bias", H, pooler)]


def _times(count, tensors):
    return [Tensor(t.name, t.elements, count * t.count, t.unfused) for t in tensors]


#: Every weight tensor of a model.
TENSORS = [
    *EMBEDDINGS,
    *_times(L, ATTENTION),
    *_times(L, NORMS),
    *_times(L - L_m, MLP),
    *_times(L_m * (E + E_s), EXPERT),
    *_times(L_m, ROUTER),
    *FINAL,
    *HEAD,
    *POOLER,
]


def _numbers(tensors):
    """Numbers held in all, common factors taken out."""
    numbers = Add(*(t.numbers() for t in tensors)).replace(Min, lambda *_: 1)  # no rows, no numbers
    return factor_terms(collect(expand(numbers), [latent, norm_bias, H]))


def _register(item, title, expr, *assumptions, source="nanoGPT, model.py; Vaswani et al. 2017, arXiv:1706.03762"):
    return register(
        f"parameters.{item}", title, expr, "parameters", source=source, chapter="11_parameters", assumptions=assumptions
    )


EMBEDDING_COUNT = _register(
    "embeddings",
    "embeddings",
    _numbers(EMBEDDINGS),
    "positions are learned where N > 0; rotary ones hold no parameters",
)
ATTENTION_COUNT = _register(
    "attention",
    "attention of one layer",
    _numbers(ATTENTION),
    "grouped queries where the key-value heads are fewer than the heads; multi-head latent attention where [latent]",
    source="Ainslie et al. 2023, arXiv:2305.13245; DeepSeek-V2, arXiv:2405.04434, section 2.1",
)
MLP_COUNT = _register(
    "mlp", "MLP of one dense layer", _numbers(MLP), source="Shazeer 2020, arXiv:2002.05202, equation 6"
)
MIXTURE_COUNT = _register(
    "mixture",
    "experts and router of one mixture layer",
    (E + E_s) * _numbers(EXPERT) + _numbers(ROUTER),
    "all experts are stored, whichever a token visits",
    source="Mixtral, arXiv:2401.04088, section 2.1; DeepSeek-V3, arXiv:2412.19437, section 2.1.2",
)
NORM_COUNT = _register("norms", "norms of one layer", _numbers(NORMS))
FINAL_COUNT = _register("final", "last norm, head and pooler", _numbers([*FINAL, *HEAD, *POOLER]))
TOTAL = register(
    "parameters",
    "parameters of the whole model",
    EMBEDDING_COUNT.expr
    + L * (ATTENTION_COUNT.expr + NORM_COUNT.expr)
    + (L - L_m) * MLP_COUNT.expr
    + L_m * MIXTURE_COUNT.expr
    + FINAL_COUNT.expr,
    "parameters",
    source="the sum of the model's weight tensors; each catalog entry's published count",
    chapter="11_parameters",
)
_register(
    "active",
    "parameters that one token meets",
    TOTAL.expr - L_m * (E - E_t) * _numbers(EXPERT),
    "the routed experts that a token does not visit are left out; the rest counts whole",
    source="Mixtral, arXiv:2401.04088, section 2.1",
)
