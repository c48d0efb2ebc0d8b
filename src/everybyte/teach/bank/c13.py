"""Exercises of chapter 13: what must backward remember?"""

from ...formulas.symbols import A, B, F, H, L, S, c, w
from . import Case, Run, Setup, answers, each, formula, model, program, run, small_llamas

TOKENS = B * S


def terms(stream=0, square=0):
    """Bytes for each number of the stream and of the square."""
    return stream * TOKENS * H + square * A * B * S**2


def blocks(stream, square=0):
    return L * terms(stream, square)


def xl(precision="bf16-mixed", attention="flash", dropout=0.0):
    return run("gpt2-xl", precision=precision, attention=attention, dropout=dropout).at("activations.block")


def leading(precision="bf16", attention="flash", dropout=0.0):
    """The terms in B S H and A B S^2 of what one block keeps, its MLP four times as wide as the stream."""
    setup = Setup(precision=precision, attention=attention, dropout=dropout)
    block = formula("activations.block").for_model(model("gpt2"), setup)
    return terms(block.coeff(terms(1)), block.coeff(terms(0, 1)))


def masked(precision="bf16-mixed", dropout=0.0, masks=2):
    """Bytes of eager attention, with masks of some bytes for each number of the stream."""
    return leading(precision, "eager", dropout) + terms(masks)


def tokens(precision="bf16"):
    """Tokens at which a 16-bit GPT's blocks keep 1.5 times the bytes of their 12 H^2 weights."""
    return 36 * H**2 / (leading(precision) / TOKENS)


def mlp(numbers):
    """Bytes that a block keeps, by data type, where its MLP keeps `numbers` per token beside its input."""
    return TOKENS * (H * (2 * w + 6 * c) + numbers * c)


BF16, LIMIT = leading(), tokens()


def llamas():
    """Bytes per token that a block of small Llamas saves, without attention's rows and its 24 bytes of random state."""
    for m in small_llamas(14, 8):
        for precision in ("bf16", "bf16-mixed"):
            kept = Run(m, Setup(batch=2, sequence=32, precision=precision)).at("activations.llama") - 24
            yield Case(f"{m.name}, {precision}", (m, precision), kept // (2 * 32) - 4 * m.heads)


def saved(m, precision, *, mlp=4, casts=5, grouped=True, stream=4, statistics=2):
    mixed = precision == "bf16-mixed"
    numbers = (casts if mixed else 2) * m.width + 2 * m.head_width * (m.heads + (m.kv_heads if grouped else m.heads))
    return 2 * (stream if mixed else 2) * m.width + 4 * statistics + 2 * (numbers + mlp * m.ffn_width)


ANSWERS = {
    "13.1": answers(xl, fp32=xl("fp32"), precision="bf16", attention="eager", dropout=0.1, all_blocks=48 * xl()),
    "13.2": answers(
        masked,
        masks=0,
        dropout={"dropout": 0.1, "masks": 0},
        precision="bf16",
        fp32=masked("fp32"),
        **each(terms, article_1=(34, 5), article_3=(8, 2), article_5=(2, 2), softmax=(38, 2), copy=(38, 4)),
    ),
    "13.3": answers(mlp(F), gelu=mlp(2 * F), result=mlp(0), bit=mlp(F) + TOKENS * F / 8, byte=mlp(F) + TOKENS * F),
    "13.4": answers(
        L * BF16,
        **each(blocks, article_1=(34, 5), article_2=4, article_3=(8, 2), article_4=20, article_5=2),
        dropout=L * leading(dropout=0.1),
        autocast=L * leading("bf16-mixed"),
        fp32=L * leading("fp32"),
        numbers=L * BF16 / 2,
        layers=BF16,
    ),
    "13.5": answers(
        tokens, precision="bf16-mixed", fp32=tokens("fp32"), factor=2 * LIMIT / 3, inverse=1 / LIMIT, layers=LIMIT * L
    ),
    "13.6": program(
        saved, llamas, gpt={"mlp": 2}, mlp=3, casts=2, grouped=False, stream=2, normed={"statistics": 4}, statistics=0
    ),
}
