"""FSDP on G GPUs: what each holds, gathers and sends of any model that the book's references build.

FSDP cuts each tensor by rows: each of G GPUs holds the G-th part of the rows, rounded up. A unit (a block, or the root
with the rest) is gathered into a flat buffer, copied out into whole tensors, used, and freed. Its gradients are copied
into a flat buffer, and one G-th of their sum comes out. Source: PyTorch, `torch/distributed/fsdp/_fully_shard`
(`_fsdp_param_group.py` says what lives until when, `_fsdp_collectives.py` what is allocated).
"""

from math import prod

from sympy import Add, Integer, Min, ceiling

from ..rules import formulas as rows
from ..theory.buckets import BUCKET, FIRST_BUCKET, buckets
from .parameters import of_reference
from .registry import register
from .symbols import E, G, L, R, fused_adam, m_w, n_a, n_s, no_sync, one_unit, r, s_b, sharded_weights, w, w_s
from .symbols import ends_apart as apart

__all__ = ["BUCKET", "FIRST_BUCKET", "buckets"]


#: How often a unit has the tensors of a group: a block has either a mixture of experts or a dense MLP.
_mixture = Min(E, 1)
_TIMES = {"embeddings": 1, "block": 1, "dense": 1 - _mixture, "mixture": _mixture, "last": 1}


def _share(weights):
    """Numbers that one GPU holds of these tensors: of each a G-th of the rows, rounded up."""
    return Add(*(_TIMES[x.group] * x.count * ceiling(x.shape[0] / G) * prod(x.shape[1:]) for x in weights))


#: Without learned positions the table has 0 rows, so no condition is needed.
_ENDS = of_reference("embeddings", "last", has_positions=1)
_LLAMA = dict.fromkeys(("fused", "norm_bias", "out_bias", "ffn_bias", "qk_norm"), Integer(0))
_ROOT, _BLOCK = _share(_ENDS), _share(of_reference("block", "dense", "mixture"))
_MODEL = _ROOT + L * _BLOCK
_TOKEN = _share([x for x in _ENDS if x.name == "token.weight"])
_LAST = _share([x for x in _ENDS if x.group == "last"])
_LLAMA_BLOCK = _share(of_reference("block", "dense", gated=Integer(1), **_LLAMA)).subs(E, 0)

for _unit, _what, _numbers, _refuses in (
    ("root", "the root: embeddings, last norm, head", _ROOT, rows.ROOT),
    ("block", "one block", _BLOCK, rows.ANY),
    ("model", "the whole model", _MODEL, rows.ANY),
    ("llama_block", "one block of a Llama", _LLAMA_BLOCK, rows.LLAMA_BLOCK),
):
    for _item, _held in (("share", 1), ("flat", G * w), ("sent", G * r), ("received", r)):
        register(f"fsdp.{_unit}.{_item}", _held * _numbers, said=f"fsdp.unit.{_item}", of=_what, refuses=_refuses)

#: Numbers of a GPU's shares, summed over all gathers of a batch: the root once, a block a second time for backward. The
#: last norm and the head stay gathered, because backward needs them first.
_GATHERED = _ROOT + L * _BLOCK + sharded_weights * (1 - one_unit) * (L * _BLOCK + apart * _TOKEN)
#: How many batches' gradients are reduced.
_reduced = n_a - no_sync * (n_a - 1)
#: Numbers of a GPU's shares that R replicas average, unit by unit, each unit divided by R and rounded up.
_UNITS = (
    one_unit * ceiling(_MODEL / R)
    + (1 - one_unit) * L * ceiling(_BLOCK / R)
    + (1 - one_unit - apart) * ceiling(_ROOT / R)
    + apart * (ceiling(_TOKEN / R) + ceiling(_LAST / R) + ceiling((_ROOT - _TOKEN - _LAST) / R))
)
_shards = (G - 1) * (n_a * w * _GATHERED + _reduced * r * _MODEL)
register("fsdp.sent", _shards + 2 * _reduced * (R - 1) * r * _UNITS)
register("fsdp.to_gpu", n_a * w_s * _GATHERED)
register("fsdp.to_host", _reduced * r * _MODEL)

#: The number of weight tensors.
_tensors = Add(
    *({"embeddings": 1, "last": 1}.get(x.group, L) * _TIMES[x.group] * x.count for x in of_reference(*_TIMES))
)
register("fsdp.weights", w_s * _MODEL)
register("fsdp.gradients", r * _MODEL)
register("fsdp.optimizer", (n_s * s_b + m_w) * _MODEL + 4 * fused_adam * _tensors)
