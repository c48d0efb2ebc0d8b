"""Context parallelism: what attention saves, allocates and sends where C GPUs share every sequence.

Bytes of one layer on one GPU, in 16 bits. A shard is one GPU's part of the sequence. The numbers of shards of q (A heads) and
of k or v (A_kv heads) that live at once in PyTorch's ring were read off `theory.context`, and those of DeepSpeed's exchange of heads
for tokens off `reference/mesh/ulysses.py`.
"""

from sympy import Max, Min

from .registry import register
from .symbols import A, A_kv, B, C, D, S, c, gathers, several

_TOKENS = B * S / C
_Q, _K = _TOKENS * A * D * c, _TOKENS * A_kv * D * c
_SUMS = 4 * _TOKENS * A
#: Bytes of the random state: two tensors, of two 8-byte numbers and of one.
_STATE = 24

KEPT = register("context.kept", 2 * _Q + 2 * _K + _SUMS + _STATE)
FORWARD = register("context.forward", 9 * _Q + (2 * C * gathers + 6 * (1 - gathers)) * _K + 3 * _SUMS + _STATE)
BACKWARD = register("context.backward", 5 * _Q + (21 + (2 * C - 4) * gathers) * _K)
SENT = register("context.sent", 4 * (C - 1) * _K + 8 * C * _K / c)

#: Of heads that are swapped for tokens: where there are fewer key heads than GPUs, each is sent to several of them.
_COPIED = _TOKENS * Max(A_kv, C) * D * c
#: One where a GPU has several heads, which lie one after another: their result is copied into the order of tokens.
_HEADS = Min(1, A / C - 1)

SWAPPED_KEPT = register("ulysses.kept", 2 * _Q + 2 * _COPIED + _SUMS + _STATE)
SWAPPED_FORWARD = register("ulysses.forward", (4 + _HEADS + several) * _Q + 2 * _COPIED + _SUMS + _STATE)
SWAPPED_BACKWARD = register("ulysses.backward", (1 + _HEADS + several) * _Q + 2 * _COPIED)
SWAPPED_SENT = register("ulysses.sent", 4 * (C - 1) * (_Q + _COPIED) / C)
