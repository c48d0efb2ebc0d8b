"""Temporary memory of the optimizer's step."""

from functools import cache

from sympy import Max, Min

from .parameters import of_reference
from .symbols import A, H, P, adam, foreach, g_m, loop, master, s_b, scaled

#: Bytes taken for all tensors at once: fp32 gradients for master weights; the square roots of the variances (foreach).
GRADIENTS, ROOTS = 4 * master * (1 - Min(g_m, 1)) * P, adam * foreach * s_b * P


@cache
def one_root():
    """The most that the one-by-one loop takes: the previous tensor's scaled root is still alive while this one's is scaled."""
    groups = ("embeddings", "block", "dense", "last")
    tensors = of_reference(*groups, fused=1, gated=0, qk_norm=0, has_positions=1, kv_heads=A, head_width=H / A)
    sizes, there = [x.numbers for x in tensors], [x.count for x in tensors]
    most = [2 * sizes[0]]
    for i in range(1, len(tensors)):
        skipped = (1 - there[i - 1]) * sizes[i - 2] if i > 1 else 0
        most.append(there[i] * (there[i - 1] * sizes[i - 1] + skipped + 2 * sizes[i]))
    return adam * loop * s_b * Max(*most, evaluate=False)


@cache
def taken():
    """The most that the step takes above what lives after backward."""
    return Max(16 * scaled, 4 * scaled + GRADIENTS + ROOTS + one_root(), evaluate=False)
