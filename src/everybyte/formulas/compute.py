"""Arithmetic of a training step: floating-point operations of its matrix products, two for each multiplication.

Norms, activation functions, softmax and the optimizer are left out: they are limited by memory's bandwidth, not by
arithmetic. The causal mask's half of attention counts as done, as it does in the counters that are used for comparison.
"""

from .registry import register
from .symbols import A, A_kv, B, D, F, H, L, S, V, chunked, dropped, eager, gated

#: FLOPs of queries times keys, or of attention weights times values.
_square = 2 * B * A * S**2 * D
_head = 2 * B * S * H * V
_matrices = 2 * A * D * H + 2 * A_kv * D * H + (2 + gated) * H * F

BLOCK = register("flops.block", 2 * B * S * _matrices + 2 * _square)
FORWARD = register("flops.forward", L * BLOCK.expr + _head)
BACKWARD = register("flops.backward", 2 * FORWARD.expr + (1 - eager) * L * _square)
LOSS_AGAIN = register("flops.again.loss", chunked * _head)
ATTENTION_AGAIN = register("flops.again.attention", (2 - eager) * _square)
SPARED = register("flops.again.spared", (1 - dropped) * 2 * B * S * H * F)
