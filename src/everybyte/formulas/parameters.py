"""How many parameters, exactly: the catalog's list of weight tensors, read with the notation's letters."""

from types import SimpleNamespace

from sympy import Add, Integer, Min, collect, expand, factor_terms

from ..catalog.weights import layers, weights
from .registry import register
from .symbols import SYMBOLS, E, E_t, H, L, L_m, N, T, latent, norm_bias


def lettered(**fixed):
    """A model's fields as the notation's letters: what `catalog.weights` reads. `fixed`: fields that are numbers instead."""
    fields = {name: entry.symbol for name, entry in SYMBOLS.items() if entry.needs == "model"}
    return SimpleNamespace(
        **fields | {"has_positions": Min(N, 1), "has_types": Min(T, 1), "has_experts": Integer(1)} | fixed
    )


#: What no model has that the book's references build.
_PLAIN = dict.fromkeys(
    ("latent", "has_types", "projected", "embedding_norm", "sinks", "pooler", "shared_experts", "router_bias"),
    Integer(0),
) | {"block_norms": Integer(2), "final_norm": Integer(1), "embedding_width": H}


def of_reference(*groups, **fixed):
    """The weight tensors of some groups, of what the book's references build; those that no such model has are left out."""
    return [w for w in weights(lettered(**_PLAIN | fixed)) if w.group in groups and w.count != 0]


#: Every weight tensor of a model, and how many times each group of them stands in it.
WEIGHTS, TIMES = weights(lettered()), layers(lettered())


def of(*groups, names=""):
    """The weight tensors of some groups whose names begin so."""
    return [w for w in WEIGHTS if w.group in groups and w.name.startswith(names)]


def numbers(tensors):
    """Numbers held in all, each group counted once; common factors taken out."""
    total = Add(*(w.count * w.numbers for w in tensors)).replace(Min, lambda *_: 1)  # no rows, no numbers
    return factor_terms(collect(expand(total), [latent, norm_bias, H]))


def _register(item, title, expr, *assumptions, source="nanoGPT, model.py; Vaswani et al. 2017, arXiv:1706.03762"):
    return register(
        f"parameters.{item}", title, expr, "parameters", source=source, chapter="11_parameters", assumptions=assumptions
    )


EMBEDDING_COUNT = _register(
    "embeddings", "embeddings", numbers(of("embeddings")),
    "positions are learned where N > 0; rotary ones hold no parameters",
)  # fmt: skip
ATTENTION_COUNT = _register(
    "attention", "attention of one layer", numbers(of("block", names="attention")),
    "grouped queries where the key-value heads are fewer than the heads; multi-head latent attention where [latent]",
    source="Ainslie et al. 2023, arXiv:2305.13245; DeepSeek-V2, arXiv:2405.04434, section 2.1",
)  # fmt: skip
MLP_COUNT = _register(
    "mlp", "MLP of one dense layer", numbers(of("dense")), source="Shazeer 2020, arXiv:2002.05202, equation 6"
)
MIXTURE_COUNT = _register(
    "mixture", "experts and router of one mixture layer", numbers(of("mixture")),
    "all experts are stored, whichever a token visits",
    source="Mixtral, arXiv:2401.04088, section 2.1; DeepSeek-V3, arXiv:2412.19437, section 2.1.2",
)  # fmt: skip
NORM_COUNT = _register("norms", "norms of one layer", numbers(of("block", names="norm")))
FINAL_COUNT = _register("final", "last norm, head and pooler", numbers(of("last")))
TOTAL = register(
    "parameters", "parameters of the whole model",
    EMBEDDING_COUNT.expr
    + L * (ATTENTION_COUNT.expr + NORM_COUNT.expr)
    + (L - L_m) * MLP_COUNT.expr
    + L_m * MIXTURE_COUNT.expr
    + FINAL_COUNT.expr,
    "parameters", source="the sum of the model's weight tensors; each catalog entry's published count", chapter="11_parameters",
)  # fmt: skip
_expert = numbers([w for name in ("gate_up", "down") for w in of("mixture", names=f"mlp.{name}")]) / E
_register(
    "active", "parameters that one token meets", TOTAL.expr - L_m * (E - E_t) * expand(_expert),
    "the routed experts that a token does not visit are left out; the rest counts whole",
    source="Mixtral, arXiv:2401.04088, section 2.1",
)  # fmt: skip
