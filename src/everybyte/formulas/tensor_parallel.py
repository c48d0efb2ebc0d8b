"""Tensor and sequence parallelism in closed form: what a GPT's block saves, which weights stay whole, what is sent.

`theory/tensor_parallel.py` follows PyTorch's `DTensor` operation by operation; these formulas are the sums.
"""

from sympy import Add

from .registry import register
from .symbols import A, B, F, H, L, P, S, V, dropped, ffn_bias, final_norm, norm_bias, out_bias, t, w
from .symbols import loss_parallel as by_words
from .symbols import sequence_parallel as by_tokens

#: The share of the tokens that a GPU has outside of the divided matrices.
TOKENS = by_tokens / t + (1 - by_tokens)

#: Numbers per token inside the divided part: query, key, value and attention's result; the MLP's up and activation.
WITHIN = 4 * H + 2 * F
#: Numbers per token outside of it: the inputs of both norms.
BETWEEN = 2 * H
#: Numbers per token of the divided matrices' inputs, which every GPU needs for all tokens.
GIVEN = 2 * H

#: Bytes that a block saves for backward, by kind, in 16 bits; dropout's masks take one byte a number.
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
