"""Inference: keys and values that are kept."""

from sympy import ceiling

from ..rules import formulas as rows
from .registry import register
from .symbols import A_kv, B, D, D_r, L, R_kv, S, latent, w

_CHAPTER = "44_inference"
_TOKEN = L * ((1 - latent) * 2 * A_kv * D + latent * (R_kv + D_r)) * w


CACHE = register(
    "cache.held", "keys and values of B sequences of S tokens", B * S * _TOKEN, "B",
    source="Pope et al. 2022, arXiv:2211.05102, section 2; latent: DeepSeek-AI 2024, arXiv:2405.04434, equations 9 to 13",
    chapter=_CHAPTER,
    assumptions=("w bytes a number", "latent attention keeps what is compressed, and the rotary key that all heads share"),
    refuses=rows.UNWINDOWED,
)  # fmt: skip
PAGES = register(
    "cache.pages", "the same in whole pages of 16 tokens", B * 16 * ceiling(S / 16) * _TOKEN, "B",
    source="Kwon et al. 2023, arXiv:2309.06180, section 4",
    chapter=_CHAPTER,
    assumptions=("no two sequences share a page",),
    refuses=rows.UNWINDOWED,
)  # fmt: skip
