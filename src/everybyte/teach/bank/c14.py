"""Exercises of chapter 14: what must backward remember?"""

from functools import partial

from sympy import Rational

from ...ask.setup import Setup
from ...catalog import model
from ...formulas import formula
from ...formulas.symbols import A, B, F, H, L, S, c, w
from ..asking import at
from ..program import Case, small_llamas
from . import answers, program

_TOKENS = B * S
_SQUARE = A * B * S**2


def _xl(**setup):
    return at("activations.block", "gpt2-xl", batch=8, sequence=1024, **setup)


def _leading(**setup):
    """The terms in B S H and A B S^2 of what one block keeps, its MLP four times as wide as the stream."""
    block = formula("activations.block").for_model(model("gpt2"), Setup(**setup))
    return block.coeff(_TOKENS * H) * _TOKENS * H + block.coeff(_SQUARE) * _SQUARE


def _tokens(**setup):
    """Tokens at which a 16-bit GPT's blocks keep 1.5 times the bytes of their 12 H^2 weights."""
    return Rational(3, 2) * 2 * 12 * H**2 / (_leading(**setup) / _TOKENS)


def _mlp(numbers):
    """What a block keeps, by data type, where its MLP keeps so many numbers a token beside its input."""
    return _TOKENS * (H * (2 * w + 6 * c) + numbers * c)


def _llamas():
    """What one block saves for each token, of small Llamas, less attention's rows and its 24 bytes of random state."""
    batch, sequence = 2, 32
    for m in small_llamas(14, 8):
        for precision in ("bf16", "bf16-mixed"):
            setup = Setup(batch=batch, sequence=sequence, precision=precision)
            saved = formula("activations.llama").at(m, setup) - 24
            yield Case(f"{m.name}, {precision}", (m, precision), saved // (batch * sequence) - 4 * m.heads)


def _per_token(m, precision, *, mlp=4, casts=5, grouped=True, stream=4, statistics=2):
    """The answer, or what it would be with so many tensors in the MLP, so many casts of the norms' results, a stream of so many bytes."""
    mixed = precision == "bf16-mixed"
    numbers = (casts if mixed else 2) * m.width + 2 * m.head_width * (m.heads + (m.kv_heads if grouped else m.heads))
    return 2 * (stream if mixed else 2) * m.width + 4 * statistics + 2 * (numbers + mlp * m.ffn_width)


ANSWERS = {
    "14.1": answers(
        lambda: _xl(precision="bf16-mixed"),
        fp32=_xl,
        bf16=lambda: _xl(precision="bf16"),
        eager=lambda: _xl(precision="bf16-mixed", attention="eager"),
        dropout=lambda: _xl(precision="bf16-mixed", dropout=0.1),
        all_blocks=lambda: 48 * _xl(precision="bf16-mixed"),
    ),
    "14.2": answers(
        lambda: _leading(precision="bf16-mixed", attention="eager") + 2 * _TOKENS * H,
        masks=lambda: _leading(precision="bf16-mixed", attention="eager"),
        article_1=34 * _TOKENS * H + 5 * _SQUARE,
        article_3=8 * _TOKENS * H + 2 * _SQUARE,
        article_5=2 * _TOKENS * H + 2 * _SQUARE,
        dropout=lambda: _leading(precision="bf16-mixed", attention="eager", dropout=0.1),
        bf16=lambda: _leading(precision="bf16", attention="eager") + 2 * _TOKENS * H,
        softmax=38 * _TOKENS * H + 2 * _SQUARE,
        copy=38 * _TOKENS * H + 4 * _SQUARE,
        fp32=lambda: _leading(attention="eager") + 2 * _TOKENS * H,
    ),
    "14.3": answers(
        lambda: _mlp(F),
        gelu=lambda: _mlp(2 * F),
        result=lambda: _mlp(0),
        bit=lambda: _mlp(F) + _TOKENS * F / 8,
        byte=lambda: _mlp(F) + _TOKENS * F,
    ),
    "14.4": answers(
        lambda: L * _leading(precision="bf16"),
        article_2=4 * _TOKENS * H * L,
        article_5=2 * _TOKENS * H * L,
        article_4=20 * _TOKENS * H * L,
        article_1=L * (34 * _TOKENS * H + 5 * _SQUARE),
        article_3=L * (8 * _TOKENS * H + 2 * _SQUARE),
        dropout=lambda: L * _leading(precision="bf16", dropout=0.1),
        autocast=lambda: L * _leading(precision="bf16-mixed"),
        fp32=lambda: L * _leading(),
        numbers=lambda: L * _leading(precision="bf16") / 2,
        layers=lambda: _leading(precision="bf16"),
    ),
    "14.5": answers(
        lambda: _tokens(precision="bf16"),
        autocast=lambda: _tokens(precision="bf16-mixed"),
        fp32=lambda: _tokens(),
        factor=lambda: _tokens(precision="bf16") * Rational(2, 3),
        upside_down=lambda: 1 / _tokens(precision="bf16"),
        layers=lambda: _tokens(precision="bf16") * L,
    ),
    "14.6": program(
        _per_token,
        _llamas,
        gpt=partial(_per_token, mlp=2),
        mlp=3,
        casts=2,
        grouped=False,
        stream=2,
        normed=partial(_per_token, statistics=4),
        statistics=0,
    ),
}
