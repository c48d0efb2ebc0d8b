"""ZeRO: what each of G GPUs holds of a model's states and sends in a step; one formula with three switches.

This is the paper's count, with all numbers divided evenly. PyTorch's FSDP divides each tensor by rows: see `sharding`.
"""

from sympy import Add, ceiling

from .registry import register
from .symbols import G, P, c, g, g_m, m_w, n_s, r, s_b, sharded_gradients, sharded_optimizer, sharded_weights, w_s

#: Numbers of one GPU's share of what is divided; the last one is padded.
SHARE = ceiling(P / G)


def held(divided):
    """Numbers that one GPU holds: all P, or its share where `divided` is 1."""
    return (1 - divided) * P + divided * SHARE


WEIGHTS = register("zero.weights", w_s * held(sharded_weights))
GRADIENTS = register("zero.gradients", (g + g_m) * held(sharded_gradients))
OPTIMIZER = register("zero.optimizer", (m_w + n_s * s_b) * held(sharded_optimizer))
STATES = register("zero.states", Add(WEIGHTS.expr, GRADIENTS.expr, OPTIMIZER.expr))

#: Numbers that one GPU sends, and receives, when shares go once around a ring: half of an all-reduce.
ROUND = (G - 1) * SHARE
#: ZeRO-2 and 3 gather weights in the data type of matrix products.
_gathered = sharded_gradients * c + (1 - sharded_gradients) * w_s
SENT_NUMBERS = register("zero.sent.numbers", (2 + sharded_weights) * ROUND)
SENT = register("zero.sent", ((2 - sharded_optimizer) * r + (sharded_optimizer + sharded_weights) * _gathered) * ROUND)
