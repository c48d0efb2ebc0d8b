"""Diffusion transformers: what blocks of Flux's kind save where adapters alone are trained."""

from .registry import register
from .symbols import L_1, L_2, A, B, D, H, S, r_A

#: Of an adapter between two tensors of the model's width: its two matrices in 16 bits, which autocast makes.
_CAST = 4 * r_A * H
SINGLE_TOKENS = register("diffusion.single", B * S * (34 * H + 12 * A + 6 * r_A + 8))
DOUBLE_TOKENS = register("diffusion.double", B * S * (50 * H + 12 * A + 12 * r_A + 16))
_SINGLE = SINGLE_TOKENS.expr + B * 8 * H + 3 * _CAST + 8 * D + 24
_DOUBLE = DOUBLE_TOKENS.expr + B * 32 * H + 18 * _CAST + 16 * D + 24
#: What the first block saves less: nothing before it is trained, so that its input needs no gradient.
_FIRST = B * S * (4 * H + 8) + B * 4 * H + 12 * r_A * H
BLOCKS = register("diffusion.blocks", L_1 * _SINGLE + L_2 * _DOUBLE - _FIRST)
