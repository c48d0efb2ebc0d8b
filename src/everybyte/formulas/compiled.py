"""What a block saves for backward where `torch.compile` cuts it, and no matrix product is recomputed."""

from sympy import ceiling

from .registry import register
from .symbols import A, A_kv, B, D, F, H, S, c, half

_tokens = B * S
_sums = 4 * A * B * (half * S + (1 - half) * 32 * ceiling(S / 32))  # attention's log-sum-exps
GPT = register("compiled.gpt_block", c * _tokens * (8 * H + 2 * F) + _sums + 8 * _tokens * (1 + half) + 24 * half)
_numbers = 4 * H + 2 * A * D + 2 * A_kv * D + 3 * F
LLAMA = register("compiled.llama_block", c * _tokens * _numbers + _sums + 8 * _tokens + 24)
