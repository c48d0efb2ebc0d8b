"""Arithmetic of a training step: floating-point operations of its matrix products, two for each multiplication.

Norms, activation functions, softmax and the optimizer are left out: they are limited by memory's bandwidth, not by
arithmetic. They count as PyTorch's counter does, the squares of attention whole. Flash attention skips what a causal mask hides, half
of each square: `flops.masked`, which the times of plans and layouts leave out.
"""

from sympy import Min, ceiling

from .registry import register
from .symbols import A, A_kv, B, D, F, H, K, L, S, V, chunked, dropped, eager, gated, half, segmented, selective

#: FLOPs of queries times keys, or of attention weights times values.
_square = 2 * B * A * S**2 * D
#: Whether scores are formed: so does eager attention, and in fp32 no kernel takes fewer key heads than query heads.
_formed = eager + (1 - eager) * (1 - half) * Min(A - A_kv, 1)
_head = 2 * B * S * H * V
_matrices = 2 * A * D * H + 2 * A_kv * D * H + (2 + gated) * H * F

BLOCK = register("flops.block", 2 * B * S * _matrices + 2 * _square)
FORWARD = register("flops.forward", L * BLOCK.expr + _head)
BACKWARD = register("flops.backward", 2 * FORWARD.expr + (1 - _formed) * L * _square)
LOSS_AGAIN = register("flops.again.loss", chunked * _head)
ATTENTION_AGAIN = register("flops.again.attention", (2 - _formed) * _square)
MASKED = register("flops.masked", (1 - _formed) * L * (7 + 2 * segmented + 2 * selective) * _square / 2)
SPARED = register("flops.again.spared", (1 - dropped) * 2 * B * S * H * F)

# The matrix products that backward recomputes.
_segments = segmented * (L * BLOCK.expr - ceiling(L / K) * SPARED.expr)
AGAIN = register("checkpoint.flops", _segments + selective * L * ATTENTION_AGAIN.expr)
