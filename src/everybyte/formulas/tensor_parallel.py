"""Tensor and sequence parallelism in closed form: what a GPT's block keeps, what stays whole, what is sent.

What PyTorch's `DTensor` makes of it, operation by operation, is `theory/tensor_parallel.py`; these are its sums.
"""

from sympy import Add

from .registry import register
from .symbols import A, B, F, H, L, P, S, V, dropped, ffn_bias, final_norm, norm_bias, out_bias, t, w
from .symbols import loss_parallel as by_words
from .symbols import sequence_parallel as by_tokens

#: The part of the tokens that a GPU has between the divided matrices.
TOKENS = by_tokens / t + (1 - by_tokens)

#: A token's numbers in a block, within heads and the MLP: query, key, value, what attention gives; up, activation.
WITHIN = 4 * H + 2 * F
#: Between them: what both norms are given.
BETWEEN = 2 * H
#: What the divided matrices are given, which each needs of every token.
GIVEN = 2 * H

#: The bytes of each kind that a block keeps, in 16 bits; norms' and attention's statistics, and dropout's masks, apart.
KEPT = {
    "within": w * B * S * WITHIN / t,
    "between": B * S * (w * BETWEEN + 2 * dropped * H) * TOKENS,
    "given": w * B * S * GIVEN,
    "statistics": B * S * (16 * TOKENS + 4 * A / t) + 24,
}
BLOCK = register("tensor.block", Add(*KEPT.values()))
_token = w * (WITHIN / t + (BETWEEN + GIVEN) * TOKENS) + 2 * dropped * H * TOKENS
MEGATRON = register("tensor.block.megatron", B * S * _token)
_norms = 1 + norm_bias
WHOLE = register("tensor.whole", L * (2 * _norms + out_bias + ffn_bias) * H + final_norm * _norms * H)
HELD = register("tensor.parameters", WHOLE.expr + (P - WHOLE.expr) / t)
SENT = register("tensor.sent", 8 * (t - 1) / t * w * B * S * H)
LOSS = register("tensor.loss", B * S * V * Add(16 * by_words / t, 3 * w * (1 - by_words)))
