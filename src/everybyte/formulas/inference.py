"""Inference: the cache of keys and values."""

from sympy import ceiling

from .registry import register
from .symbols import A_kv, B, D, D_r, L, R_kv, S, latent, w

_TOKEN = L * ((1 - latent) * 2 * A_kv * D + latent * (R_kv + D_r)) * w

CACHE = register("cache.held", B * S * _TOKEN)
PAGES = register("cache.pages", B * 16 * ceiling(S / 16) * _TOKEN)
