"""Multi-head latent attention in training: what one layer keeps for backward in Hugging Face's code.

A token's queries are compressed to R_q numbers, its keys and values to R_kv, and both are expanded again (DeepSeek-AI 2024,
arXiv:2405.04434, equations 9 to 13 and 37 to 47). Per token in 16 bits, beside the layer's normed input, which the projections share:

- each of the two norms of R numbers, operation by operation: the input in fp32 (4 R), the inverse root (4), what is multiplied by
  the weight and what comes of it (c R each);
- queries and keys, joined of their straight and rotary parts: copies (2 c A D);
- what values are a view of, the expanded latent with the keys' straight parts in it once more (c A (D - D_r + D_v));
- the output, which the last projection reads where the kernel left it (c A D_v); and the logarithm of each row's sum.

Rotary positions keep cosines and sines alone, which all layers share. Grouped heads keep c (2 A + 2 A_kv) D and the sums, a third of
that in DeepSeek-V3's dimensions: the latent makes the cache small, and not what training keeps.
"""

from sympy import ceiling

from .registry import register
from .symbols import A, B, D, D_r, D_v, R_kv, R_q, S, c

_NORMS = (4 + 2 * c) * (R_q + R_kv) + 2 * 4
_HEADS = c * A * (2 * D + (D - D_r + D_v) + D_v)

KEPT = register("attention.latent", B * S * (_NORMS + _HEADS) + 4 * B * A * 32 * ceiling(S / 32))
