"""Inference: the cache of keys and values."""

from sympy import Max, Min, ceiling

from .registry import register
from .symbols import A_kv, B, D, D_r, L, L_w, R_kv, S, W_n, latent, w

_TOKEN = ((1 - latent) * 2 * A_kv * D + latent * (R_kv + D_r)) * w
#: Tokens that a layer with a window keeps: the next one is of the window's.
_NEAR = Min(S, Max(W_n - 1, 0))

CACHE = register("cache.held", B * ((L - L_w) * S + L_w * _NEAR) * _TOKEN)
PAGES = register("cache.pages", B * 16 * ((L - L_w) * ceiling(S / 16) + L_w * ceiling(_NEAR / 16)) * _TOKEN)
