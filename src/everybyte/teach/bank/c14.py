"""Exercises of chapter 14: what must backward remember?"""

from sympy import Rational

from ...catalog import model
from ...formulas import formula
from ...formulas.symbols import A, B, F, H, L, S, c, w
from ...setup import Setup
from ..exercise import Exercise
from ..program import Case, Program, small_llamas

_TOKENS = B * S
_SQUARE = A * B * S**2


def _xl(**setup):
    return formula("activations.block").at(model("gpt2-xl"), Setup(batch=8, sequence=1024, **setup))


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


def _per_token(mlp=4, casts=5, grouped=True, stream=4, statistics=2):
    """What it would be with so many tensors in the MLP, so many casts of the norms' results, a stream of so many bytes."""

    def kept_per_token(m, precision):
        mixed = precision == "bf16-mixed"
        numbers = (casts if mixed else 2) * m.width + 2 * m.head_width * (
            m.heads + (m.kv_heads if grouped else m.heads)
        )
        return 2 * (stream if mixed else 2) * m.width + 4 * statistics + 2 * (numbers + mlp * m.ffn_width)

    return kept_per_token


EXERCISES = [
    Exercise(
        id="14.1",
        title="What one block of GPT-2 XL saves, under autocast with FlashAttention",
        difficulty=1,
        minutes=4,
        unit="MiB",
        significant=2,
        answer=lambda: _xl(precision="bf16-mixed"),
        mistakes={
            "this is fp32's: under autocast only the residual stream keeps four bytes": _xl,
            "this is all in bf16: under autocast the residual stream stays fp32": lambda: _xl(precision="bf16"),
            "this is eager attention's: FlashAttention keeps no square": lambda: _xl(
                precision="bf16-mixed", attention="eager"
            ),
            "the masks of dropout are in it: here is none": lambda: _xl(precision="bf16-mixed", dropout=0.1),
            "these are all 48 blocks": lambda: 48 * _xl(precision="bf16-mixed"),
        },
        factors={"batch": 8},
        hints=(
            "How many bytes does one block save for each of the B S H numbers of the residual stream?",
            "36 bytes, times 8 x 1,024 x 1,600; the statistics and log-sum-exps add almost 1 MiB.",
        ),
    ),
    Exercise(
        id="14.2",
        title="Find the error: article 1's formula, for autocast with dropout on the branches alone",
        difficulty=2,
        minutes=8,
        accepts="expression",
        answer=lambda: _leading(precision="bf16-mixed", attention="eager") + 2 * _TOKENS * H,
        mistakes={
            "the masks of the two branches are missing: one byte an element each": lambda: _leading(
                precision="bf16-mixed", attention="eager"
            ),
            "this is article 1's formula: it counts the scores' mask, and a residual stream in 16 bits": 34
            * _TOKENS
            * H
            + 5 * _SQUARE,
            "this is article 3's code: one square and one of the block's wide tensors": 8 * _TOKENS * H + 2 * _SQUARE,
            "this is article 5's sum: one tensor of the stream and one square": 2 * _TOKENS * H + 2 * _SQUARE,
            "the scores have no dropout here": lambda: _leading(precision="bf16-mixed", attention="eager", dropout=0.1),
            "the residual stream stays fp32, and softmax runs in fp32: this is all in 16 bits": lambda: (
                _leading(precision="bf16", attention="eager") + 2 * _TOKENS * H
            ),
            "the residual stream is right; softmax runs in fp32 and keeps its result, and the product keeps a 16-bit copy": 38
            * _TOKENS
            * H
            + 2 * _SQUARE,
            "the 16-bit copy of the softmax's result is missing: the product with the values keeps it": 38 * _TOKENS * H
            + 4 * _SQUARE,
            "this is fp32's": lambda: _leading(attention="eager") + 2 * _TOKENS * H,
        },
        hints=(
            "Which of the 34 and of the 5 are masks, which of those stay, and which is the dropped copy of softmax's result?",
            "Two tensors of the residual stream are four bytes a number, and two masks one. Of the square: softmax's result in fp32, and what the product reads.",
        ),
    ),
    Exercise(
        id="14.3",
        title="A ReLU in place of the GELU",
        difficulty=2,
        minutes=8,
        accepts="expression",
        answer=lambda: _mlp(F),
        mistakes={
            "this is the GELU's block: ReLU's derivative can be read from its result": lambda: _mlp(2 * F),
            "ReLU's result is the input of the last linear layer, which needs it": lambda: _mlp(0),
            "a bit a number would be enough, but PyTorch keeps the result itself, and the next layer shares it": lambda: (
                _mlp(F) + _TOKENS * F / 8
            ),
            "a mask of one byte is not kept: the sign is in the result, which is there already": lambda: (
                _mlp(F) + _TOKENS * F
            ),
        },
        hints=(
            "The derivative of ReLU is 1 where its result is positive, else 0. Who keeps that result anyway?",
            "GELU keeps its input, c B S F. ReLU keeps its result, which the layer after it keeps too: count it once.",
        ),
    ),
    Exercise(
        id="14.4",
        title="Find the error: article 2's formula, for a step all in bf16",
        difficulty=2,
        minutes=6,
        accepts="expression",
        answer=lambda: L * _leading(precision="bf16"),
        mistakes={
            "this is article 2's formula, and article 4's with k = 2: two of a block's sixteen": 4 * _TOKENS * H * L,
            "this is article 5's formula: one of a block's sixteen": 2 * _TOKENS * H * L,
            "this is article 4's formula with k = 10: a block keeps more than that": 20 * _TOKENS * H * L,
            "this is article 1's formula: with FlashAttention there is no square, without dropout no mask": L
            * (34 * _TOKENS * H + 5 * _SQUARE),
            "this is article 3's code: it has a square, and of the block's tensors one": L
            * (8 * _TOKENS * H + 2 * _SQUARE),
            "34 counts the masks of two dropouts": lambda: L * _leading(precision="bf16", dropout=0.1),
            "this is autocast's: here the residual stream is in bf16 too": lambda: L * _leading(precision="bf16-mixed"),
            "this is fp32's": lambda: L * _leading(),
            "these are numbers, not bytes": lambda: L * _leading(precision="bf16") / 2,
            "the layers are missing": lambda: _leading(precision="bf16"),
        },
        hints=(
            "Go through the block once more and count the tensors of B S H numbers; one of width 4 H counts as four.",
            "2 of the stream, 2 outputs of norms, 4 around attention, 8 in the MLP: sixteen, two bytes each, in every block.",
        ),
    ),
    Exercise(
        id="14.5",
        title="Find the tokens at which article 4's shortcut is right",
        difficulty=3,
        minutes=10,
        accepts="expression",
        answer=lambda: _tokens(precision="bf16"),
        mistakes={
            "these are activations under autocast: here all is in bf16": lambda: _tokens(precision="bf16-mixed"),
            "half as many: are the weights two bytes each, and the activations bf16's?": lambda: _tokens(),
            "the shortcut's 1.5 is missing": lambda: _tokens(precision="bf16") * Rational(2, 3),
            "this is the answer upside down": lambda: 1 / _tokens(precision="bf16"),
            "a block has 12 H^2 weights; the layers cancel": lambda: _tokens(precision="bf16") * L,
        },
        hints=(
            "Both sides are bytes: 1.5 x 2 x 12 L H^2 on the left. What do L blocks save for BS tokens?",
            "36 L H^2 = 32 B S H L.",
        ),
    ),
    Program(
        id="14.6",
        title="A function for what one block of a Llama saves",
        difficulty=2,
        minutes=12,
        call="kept_per_token(model, precision)",
        cases=_llamas,
        answer=_per_token,
        mistakes={
            "that is a GPT's MLP: the gated one saves four tensors of its inner width": lambda: _per_token(mlp=2),
            "the gate's product has two factors, and the layer down saves its result: one tensor is missing": lambda: (
                _per_token(mlp=3)
            ),
            "under autocast each of five projections saves a cast of its own": lambda: _per_token(casts=2),
            "keys and values have fewer heads than queries": lambda: _per_token(grouped=False),
            "under autocast the residual stream stays fp32": lambda: _per_token(stream=2),
            "an RMS norm has one statistic for each token, of 4 bytes": lambda: _per_token(statistics=4),
            "the norms' statistics are missing: 4 bytes each": lambda: _per_token(statistics=0),
        },
        hints=(
            "Take the chapter's list of a Llama's block, divide each line by B S, and put 2 or 4 for w and 2 for c.",
            "In bf16: 2 x 2 H for the stream, 2 x 2 H for the norms' results, 2 D (2 A + 2 A_kv), 2 x 4 F, and 8 bytes of statistics.",
        ),
    ),
]
