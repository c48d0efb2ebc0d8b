"""Many GPUs: what FSDP holds, gathers and sends of any model that the book's references build, in letters.

FSDP cuts each tensor by rows, so that of G GPUs each holds the G-th part of the rows, rounded up. A unit (a block; the root,
which has the rest) is gathered into a flat buffer, copied out into whole tensors, used, and freed; its gradients are
copied into a flat buffer, and one G-th of their sum comes out. Source: PyTorch, `torch/distributed/fsdp/_fully_shard`
(`_fsdp_param_group.py` says what lives until when, `_fsdp_collectives.py` what is allocated).
"""

from sympy import Add, Integer, Min, ceiling

from ..rules import formulas as rows
from ..theory.buckets import BUCKET, FIRST_BUCKET, buckets
from .parameters import of_reference
from .registry import register
from .symbols import (
    E,
    G,
    L,
    R,
    ends_apart,
    fused_adam,
    m_w,
    n_a,
    n_s,
    no_sync,
    one_unit,
    r,
    s_b,
    sharded_weights,
    w,
    w_s,
)  # fmt: skip

__all__ = ["BUCKET", "FIRST_BUCKET", "SHARES", "buckets", "share"]


def share(weight):
    """Numbers that one GPU holds of a tensor."""
    rows, *columns = weight.shape
    numbers = ceiling(rows / G)
    for size in columns:
        numbers *= size
    return numbers


#: 1 where blocks have experts in place of the MLP.
_mixture = Min(E, 1)
_GROUPS = {"embeddings": 1, "block": 1, "dense": 1 - _mixture, "mixture": _mixture, "last": 1}


def _numbers(weights):
    return Add(*(_GROUPS[weight.group] * weight.count * share(weight) for weight in weights))


_LLAMA = {
    "gated": Integer(1), "fused": Integer(0), "norm_bias": Integer(0), "out_bias": Integer(0), "ffn_bias": Integer(0),
    "qk_norm": Integer(0),
}  # fmt: skip
#: No rows of positions, no numbers: there need be no condition.
_ENDS, _BLOCK = of_reference("embeddings", "last", has_positions=1), of_reference("block", "dense", "mixture")
ROOT_SHARE, BLOCK_SHARE = _numbers(_ENDS), _numbers(_BLOCK)
#: Numbers that one GPU holds of each unit.
SHARES = {
    "root": ROOT_SHARE, "block": BLOCK_SHARE, "model": ROOT_SHARE + L * BLOCK_SHARE,
    "llama_block": Add(*(w.count * share(w) for w in of_reference("block", "dense", **_LLAMA))),
}  # fmt: skip
_TOKEN = _numbers([weight for weight in _ENDS if weight.name == "token.weight"])
_LAST = _numbers([weight for weight in _ENDS if weight.group == "last"])
_SOURCE = "PyTorch, torch/distributed/fsdp/_fully_shard"


def _register(name, title, expr, unit="B", *assumptions, chapter="32_fsdp", refuses=rows.ANY):
    return register(
        f"fsdp.{name}", title, expr, unit, source=_SOURCE, chapter=chapter, assumptions=assumptions, refuses=refuses
    )


for _unit, _what, _refuses in (
    ("root", "the root: embeddings, last norm, head", rows.ROOT),
    ("block", "one block", rows.ANY),
    ("model", "the whole model", rows.ANY),
    ("llama_block", "one block of a Llama", rows.LLAMA_BLOCK),
):
    _share = SHARES[_unit]
    _register(
        f"{_unit}.share", f"numbers that one GPU holds of {_what}", _share, "parameters", "each tensor cut by rows",
        refuses=_refuses,
    )  # fmt: skip
    _register(
        f"{_unit}.flat", f"what is gathered of {_what}: a flat buffer, and as much again in whole tensors", G * _share * w,
        refuses=_refuses,
    )  # fmt: skip
    _register(
        f"{_unit}.sent", f"the flat buffer of {_what}'s gradients that is reduced", G * _share * r, refuses=_refuses
    )
    _register(
        f"{_unit}.received", f"what one GPU receives of it, and keeps: its share of {_what}'s gradients", _share * r,
        refuses=_refuses,
    )  # fmt: skip

#: Numbers of a GPU's shares, each time a unit is gathered for a batch: the root once, a block again in backward. Of the ends,
#: the last norm and the head stay, as backward needs them first.
_GATHERED = ROOT_SHARE + L * BLOCK_SHARE + sharded_weights * (1 - one_unit) * (L * BLOCK_SHARE + ends_apart * _TOKEN)
#: The batches whose gradients are sent.
_reduced = n_a - no_sync * (n_a - 1)
#: What groups of GPUs average of a GPU's shares, unit by unit, each in R parts.
_UNITS = (
    one_unit * ceiling(SHARES["model"] / R)
    + (1 - one_unit) * L * ceiling(BLOCK_SHARE / R)
    + (1 - one_unit - ends_apart) * ceiling(ROOT_SHARE / R)
    + ends_apart * (ceiling(_TOKEN / R) + ceiling(_LAST / R) + ceiling((ROOT_SHARE - _TOKEN - _LAST) / R))
)
_register(
    "sent", "bytes that one GPU sends in a step: each batch gathers weights and adds up gradients, among replicas too",
    (G - 1) * (n_a * w * _GATHERED + _reduced * r * SHARES["model"]) + 2 * _reduced * (R - 1) * r * _UNITS,
    "B", "collectives go round a ring",
)  # fmt: skip
_register(
    "to_gpu", "what offloading copies to one GPU in a step: its shares, as they are stored, each time a unit is gathered",
    n_a * w_s * _GATHERED, chapter="26_offloading",
)  # fmt: skip
_register(
    "to_host", "what offloading copies from one GPU in a step: its share of each batch's gradients that is sent",
    _reduced * r * SHARES["model"], chapter="26_offloading",
)  # fmt: skip


#: Weight tensors in all.
_tensors = Add(
    *({"embeddings": 1, "last": 1}.get(x.group, L) * _GROUPS[x.group] * x.count for x in of_reference(*_GROUPS))
)
_register("weights", "one GPU's share of the weights", w_s * SHARES["model"])
_register("gradients", "one GPU's share of the gradients", r * SHARES["model"])
_register(
    "optimizer", "one GPU's share of the optimizer's states",
    (n_s * s_b + m_w) * SHARES["model"] + 4 * fused_adam * _tensors,
)  # fmt: skip
