"""A layer with a state in place of keys and values: what its recurrence saves and takes, as torch code and as kernels.

Bytes of one call, beside its inputs and its output: the gated delta rule (Qwen3-Next, Qwen3.5), Kimi's, whose decay is one of each
row, and Mamba-2's. A chunk is Q tokens, a state N_s rows of P_s. In torch code every tensor is of 4 bytes, whatever comes in.
"""

from sympy import Max, ceiling

from .registry import register
from .symbols import A_q, A_s, B, N_s, P_s, Q, S, c, half, n_v, w

#: Chunks of a sequence, and its tokens with what fills the last one.
_n = ceiling(S / Q)
_T = _n * Q
_STATE = N_s * P_s
#: Queries and keys before they are normalized, and the roots that divide them.
_NORMED = 2 * S * (N_s + 1)

# A loop over tokens: of each the state as it decayed, the state as it was written, its decay, and what is written.
_LOOP = S * (2 * _STATE + 4 * N_s + 2 * P_s + 4) + _STATE
LOOP = register("state.loop", 4 * B * A_s * _LOOP)

# The gated delta rule by chunks.
_RULE = _NORMED + _T * (6 * N_s + 3 * P_s + 5 * Q + 4) + _n * (_STATE + 1)
RULE = register("delta.saved", 4 * B * A_s * _RULE + Q**2)
#: Gradients in the backward of the second chunk that it comes to: of values and results, of queries, keys and what they read, of
#: the square within chunks. The most stands where its result is copied, where the square's gradient grows, or the queries'.
_COPIED = _T * (3 * P_s + 3 * N_s + Q) + 2 * Q * P_s
_SQUARE = _T * (2 * P_s + 3 * N_s + 2 * Q) + Q * (P_s + Q) + _STATE
_QUERIES = _T * (2 * P_s + 4 * N_s + Q) + _STATE - Q * P_s
TAKEN = register("delta.taken", RULE.expr + 4 * B * A_s * (Max(_COPIED, _SQUARE, _QUERIES) + _n))

# Kimi's: a decay of each row, so a pair of a chunk's tokens has N_s of them; and a loop over the rows of a chunk.
_ROWS = _n * Q * (Q**2 - 1) / 3
_KIMI = (
    _NORMED + _T * (7 * N_s + 3 * P_s + 3 * Q * N_s + 2 * Q + 1) + _ROWS + _n * _STATE + (_n - 1) * N_s * (3 * Q + 1)
)
KIMI = register("kimi.saved", 4 * B * A_s * _KIMI + 3 * Q**2)

# Mamba-2's: no loop; every pair of chunks has a decay.
_PAIRS = (_n + 1) ** 2
_SSD = _T * (5 * N_s + 4 * P_s + 3 * Q + 2) + (2 * _n + 1) * _STATE + _PAIRS
_WIDENED = half * 4 * S * (P_s + 2) + (1 - half) * 4 * S
SSD = register("ssd.saved", B * A_s * (4 * _SSD + _WIDENED + 2 * c * S) + 2 * Q**2 + 2 * _PAIRS)
_OUTPUT = _T * (6 * P_s + 2 * N_s + 2) + (_n + 2) * _STATE
OUTPUT = register("ssd.taken", SSD.expr + B * A_s * (4 * _OUTPUT + half * c * S))

# Kernels: queries and keys normalized with their roots, decays that are summed, and the rows of chunks.
_KERNEL = A_q * (2 * N_s * c + 8)
KERNEL = register("delta.kernel", B * S * (_KERNEL + A_s * (4 + Q * c)))
KIMI_KERNEL = register("kimi.kernel", B * S * (_KERNEL + A_s * (4 * N_s + 2 * Q * c)))

# What a layer holds while it generates.
HELD = register("state.held", B * (4 * A_s * _STATE + w * n_v * (A_s * P_s + 2 * A_q * N_s)))
