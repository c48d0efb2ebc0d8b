"""Pictures beside text: patches, tokens, and what a tower that reads them saves for backward."""

from sympy import floor

from .registry import register
from .symbols import A_i, F_i, H_i, L_i, N_d, N_i, N_p, X_i, Y_i, k_i, p_i, t_i

PATCHES = register("picture.patches", X_i * Y_i / p_i**2)
TOKENS = register("picture.tokens", X_i * Y_i / (p_i * k_i) ** 2)
PIXELS = register("picture.pixels", N_p * 3 * t_i * p_i**2 * 4)
TILES = register("picture.tile", floor(X_i / p_i) * floor(Y_i / p_i))
BLOCK = register("tower.block", N_p * (22 * H_i + 4 * F_i + 4 * A_i + 16) + 24 * N_i)
KEPT = register("tower.checkpointed", 2 * H_i * N_p)
_ENDS = N_p * (8 * H_i + 8 + N_d * (6 * H_i + 2) + 48 + 8 * floor(H_i / A_i) + 6 * t_i * p_i**2)
TOWER = register("tower.saved", L_i * BLOCK.expr + _ENDS)
