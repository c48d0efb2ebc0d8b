"""Context parallelism: what attention keeps, takes and sends where C GPUs share every sequence.

In 16 bits, of one layer and one GPU; a shard is what one GPU has of the sequence. What PyTorch's ring takes beside what it is
given was read off `theory.context`: at one instant so many shards of q (A heads) and of k or v (A_kv heads) live.
"""

from ..rules import formulas as rows
from .registry import register
from .symbols import A, A_kv, B, C, D, S, c, gathers

_CHAPTER = "35_experts_and_context"
_RING = "Liu et al. 2023, arXiv:2310.01889"
_PYTORCH = "PyTorch, torch/distributed/tensor/experimental/_context_parallel/_attention.py"
_TOKENS = B * S / C
_Q, _K = _TOKENS * A * D * c, _TOKENS * A_kv * D * c
_SUMS = 4 * _TOKENS * A
#: A random state, of two numbers and one.
_STATE = 24


_ASSUMED = (
    "flash attention, 16 bits, heads of a multiple of 8 that lie token by token as linear layers make them",
    "a GPU of the ring that is neither the first nor the last, of three or more",
)
KEPT = register(
    "context.kept", "what attention keeps for backward, on one GPU", 2 * _Q + 2 * _K + _SUMS + _STATE, "B",
    source=f"{_RING}, section 3: q, k, v and the result, as flash attention keeps them, over C",
    chapter=_CHAPTER,
    assumptions=("q, k, v, the result, and each row's logarithm of a sum in fp32", _ASSUMED[0]),
    refuses=rows.RING_KERNEL,
)  # fmt: skip
FORWARD = register(
    "context.forward", "what ring attention takes in forward, at most, beside q, k and v",
    9 * _Q + (2 * C * gathers + 6 * (1 - gathers)) * _K + 3 * _SUMS + _STATE, "B",
    source=f"{_PYTORCH}, `_templated_ring_attention`: at the product in `_SDPAMerger._merge_one`",
    chapter=_CHAPTER,
    assumptions=(
        "one result in 16 bits and four tensors of it in fp32; around the ring: keys and values in use, sent and coming; at once: "
        "those of all GPUs",
        *_ASSUMED,
    ),
    refuses=rows.RING,
)  # fmt: skip
BACKWARD = register(
    "context.backward", "what ring attention takes in backward, at most, beside what was kept and the result's gradient",
    5 * _Q + (21 + (2 * C - 4) * gathers) * _K, "B",
    source=f"{_PYTORCH}, `_templated_ring_attention_backward`: at the second step's kernel",
    chapter=_CHAPTER,
    assumptions=(
        "gradients so far in fp32, and a copy of the result, whose layout the kernel does not read; keys, values and their gradients "
        "in use, sent and coming",
        "two query heads or more for each key head",
        *_ASSUMED,
    ),
    refuses=rows.GROUPED,
)  # fmt: skip
SENT = register(
    "context.sent", "bytes that one GPU sends for one attention, forward and backward",
    4 * (C - 1) * _K + 8 * C * _K / c, "B",
    source=f"{_PYTORCH}: keys and values twice to C - 1 others; their gradients, in fp32, all the way around",
    chapter=_CHAPTER,
    assumptions=("forward runs once: checkpointed blocks send keys and values once more", "either rotation"),
)  # fmt: skip
