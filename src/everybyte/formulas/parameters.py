"""Parameter counts: the catalog's list of weight tensors, with the notation's letters as dimensions."""

from types import SimpleNamespace

from sympy import Add, Integer, Min, collect, expand, factor_terms

from ..catalog.weights import layers, weights
from .registry import register
from .symbols import SYMBOLS, E, E_t, H, L, L_m, N, T, latent, norm_bias


def lettered(**fixed):
    """A stand-in for a `Model` whose fields are symbols, for `catalog.weights`. `fixed`: fields with other values."""
    fields = {name: entry.symbol for name, entry in SYMBOLS.items() if entry.needs == "model"}
    fields |= {
        "has_positions": Min(N, 1),
        "has_types": Min(T, 1),
        "has_experts": Integer(1),
        "has_shared": Min(SYMBOLS["shared_experts"].symbol, 1),
    }
    return SimpleNamespace(**fields | fixed)


#: Fields of features that no model of the book's references has.
_PLAIN = dict.fromkeys(
    "latent has_types projected embedding_norm sinks pooler shared_experts has_shared router_bias".split(), Integer(0)
) | {"block_norms": Integer(2), "final_norm": Integer(1), "embedding_width": H}


def of_reference(*groups, **fixed):
    """The weight tensors of these groups, as far as a model that the book's references build can have them."""
    return [w for w in weights(lettered(**_PLAIN | fixed)) if w.group in groups and w.count != 0]


#: Every weight tensor of a model, and how often each group occurs in it.
WEIGHTS, TIMES = weights(lettered()), layers(lettered())


def _numbers(group, names=""):
    """Parameters of one occurrence of a group, of the tensors whose names begin with `names`; common factors taken out."""
    tensors = [w for w in WEIGHTS if w.group == group and w.name.startswith(names)]
    total = Add(*(w.count * w.numbers for w in tensors)).replace(Min, lambda *_: 1)  # no rows, no numbers
    return factor_terms(collect(expand(total), [latent, norm_bias, H]))


EMBEDDING_COUNT = register("parameters.embeddings", _numbers("embeddings"))
ATTENTION_COUNT = register("parameters.attention", _numbers("block", "attention"))
MLP_COUNT = register("parameters.mlp", _numbers("dense"))
MIXTURE_COUNT = register("parameters.mixture", _numbers("mixture"))
NORM_COUNT = register("parameters.norms", _numbers("block", "norm"))
FINAL_COUNT = register("parameters.final", _numbers("last"))
_blocks = L * (ATTENTION_COUNT.expr + NORM_COUNT.expr) + (L - L_m) * MLP_COUNT.expr + L_m * MIXTURE_COUNT.expr
TOTAL = register("parameters", EMBEDDING_COUNT.expr + _blocks + FINAL_COUNT.expr)
_matrices = [w for w in WEIGHTS if w.group == "mixture" and w.name.startswith(("mlp.gate_up", "mlp.down"))]
_expert = Add(*(w.count * w.numbers for w in _matrices)) / E
register("parameters.active", TOTAL.expr - L_m * (E - E_t) * expand(_expert))
