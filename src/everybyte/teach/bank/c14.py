"""Exercises of chapter 14: what must backward remember?"""

from functools import partial

from sympy import Rational

from ...formulas.symbols import A, B, F, H, L, S, c, w
from . import Case, Run, Setup, answers, formula, model, program, run, small_llamas

TOKENS, SQUARE = B * S, A * B * S**2
STREAM = TOKENS * H


def xl(precision="bf16-mixed", **setup):
    return run("gpt2-xl", precision=precision, **setup).at("activations.block")


def leading(**setup):
    """The terms in B S H and A B S^2 of what one block keeps, its MLP four times as wide as the stream."""
    block = formula("activations.block").for_model(model("gpt2"), Setup(**setup))
    return block.coeff(STREAM) * STREAM + block.coeff(SQUARE) * SQUARE


def eager(precision="bf16-mixed", **setup):
    return leading(precision=precision, attention="eager", **setup)


def tokens(**setup):
    """Tokens at which a 16-bit GPT's blocks keep 1.5 times the bytes of their 12 H^2 weights."""
    return Rational(3, 2) * 2 * 12 * H**2 / (leading(**setup) / TOKENS)


def mlp(numbers):
    """What a block keeps, by data type, where its MLP keeps so many numbers a token beside its input."""
    return TOKENS * (H * (2 * w + 6 * c) + numbers * c)


BF16 = leading(precision="bf16")
REACHED = tokens(precision="bf16")


def llamas():
    """What one block saves for each token, of small Llamas, less attention's rows and its 24 bytes of random state."""
    for m in small_llamas(14, 8):
        for precision in ("bf16", "bf16-mixed"):
            saved = Run(m, Setup(batch=2, sequence=32, precision=precision)).at("activations.llama") - 24
            yield Case(f"{m.name}, {precision}", (m, precision), saved // (2 * 32) - 4 * m.heads)


def per_token(m, precision, *, mlp=4, casts=5, grouped=True, stream=4, statistics=2):
    """The answer, or what it would be with so many tensors in the MLP, so many casts of the norms' results, a stream of so many bytes."""
    mixed = precision == "bf16-mixed"
    numbers = (casts if mixed else 2) * m.width + 2 * m.head_width * (m.heads + (m.kv_heads if grouped else m.heads))
    return 2 * (stream if mixed else 2) * m.width + 4 * statistics + 2 * (numbers + mlp * m.ffn_width)


ANSWERS = {
    "14.1": answers(
        xl(),
        fp32=xl("fp32"),
        bf16=xl("bf16"),
        eager=xl(attention="eager"),
        dropout=xl(dropout=0.1),
        all_blocks=48 * xl(),
    ),
    "14.2": answers(
        eager() + 2 * STREAM,
        masks=eager(),
        article_1=34 * STREAM + 5 * SQUARE,
        article_3=8 * STREAM + 2 * SQUARE,
        article_5=2 * STREAM + 2 * SQUARE,
        dropout=eager(dropout=0.1),
        bf16=eager("bf16") + 2 * STREAM,
        softmax=38 * STREAM + 2 * SQUARE,
        copy=38 * STREAM + 4 * SQUARE,
        fp32=eager("fp32") + 2 * STREAM,
    ),
    "14.3": answers(mlp(F), gelu=mlp(2 * F), result=mlp(0), bit=mlp(F) + TOKENS * F / 8, byte=mlp(F) + TOKENS * F),
    "14.4": answers(
        L * BF16,
        article_2=4 * STREAM * L,
        article_5=2 * STREAM * L,
        article_4=20 * STREAM * L,
        article_1=L * (34 * STREAM + 5 * SQUARE),
        article_3=L * (8 * STREAM + 2 * SQUARE),
        dropout=L * leading(precision="bf16", dropout=0.1),
        autocast=L * leading(precision="bf16-mixed"),
        fp32=L * leading(),
        numbers=L * BF16 / 2,
        layers=BF16,
    ),
    "14.5": answers(
        REACHED,
        autocast=tokens(precision="bf16-mixed"),
        fp32=tokens(),
        factor=REACHED * Rational(2, 3),
        upside_down=1 / REACHED,
        layers=REACHED * L,
    ),
    "14.6": program(
        per_token,
        llamas,
        gpt=partial(per_token, mlp=2),
        mlp=3,
        casts=2,
        grouped=False,
        stream=2,
        normed=partial(per_token, statistics=4),
        statistics=0,
    ),
}
