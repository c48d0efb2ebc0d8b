"""Exercises of chapter 21: does mixed precision halve the memory?"""

import math

from ...budget import budget
from ...catalog import model
from ...formulas import SYMBOLS, formula
from ...setup import Setup
from ..exercise import Exercise
from ..program import Case, Program, named_shapes, small_gpts, small_llamas

A, B, S, H = (SYMBOLS[name].symbol for name in ("heads", "batch", "sequence", "width"))
_MIXED = Setup(precision="bf16-mixed")


def _casts(name, **changes):
    return formula("casts").at(model(name).replace(**changes), _MIXED)


def _turn(layers, heads, head_width, vocabulary, logits=True):
    loss = (heads * head_width + vocabulary) / (heads * layers)
    return math.ceil(14 * head_width + (loss if logits else 0))


def _rise(**changes):
    short = Setup(batch=1, sequence=128, **changes)
    before, after = (budget(model("gpt2-xl"), s).peak for s in (short, short.replace(precision="bf16-master")))
    return after - before


def _falls(name, **changes):
    eager = Setup(attention="eager", **changes)
    return budget(model(name), eager).peak - budget(model(name), eager.replace(precision="bf16-mixed")).peak


def _states(phase):
    short = Setup(batch=1, sequence=128)
    before, after = (
        budget(model("gpt2-xl"), short.replace(precision=p)).phases[phase] for p in ("fp32", "bf16-master")
    )
    return after - before


def _cast():
    run = Setup(batch=1, sequence=32, precision="bf16-mixed")
    for m in [*small_gpts(21, 4), *small_llamas(21, 4)]:
        yield Case(m.name, (named_shapes(m),), int(budget(m, run).parts_at("after_forward")["casts"]))


def _cast_bytes(each=2, vectors=False, tables=False, tied=True):
    """What it would be with other bytes a number, with vectors or tables cast too, or without a tied head."""

    def casts(weights):
        names, total = [name for name, _ in weights], 0
        for name, shape in weights:
            head = name == "token.weight" and "head.weight" not in names and tied
            if (len(shape) == 2 or vectors) and (name not in ("token.weight", "position.weight") or head or tables):
                total += each * math.prod(shape)
        return total

    return casts


EXERCISES = [
    Exercise(
        id="21.1",
        title="The 16-bit casts of GPT-2 medium's weights, after forward",
        difficulty=1,
        minutes=4,
        unit="GiB",
        decimals=2,
        answer=lambda: _casts("gpt2-medium"),
        mistakes={
            "the head is missing: the token table is cast too, where it is multiplied": lambda: _casts(
                "gpt2-medium", vocabulary=1
            ),
            "these are 4 bytes each: casts are 16-bit": lambda: 2 * _casts("gpt2-medium"),
            "these are fp32's weights": lambda: 4 * model("gpt2-medium").parameters,
        },
        factors={"layers": 24},
        hints=(
            "Which weights enter a matrix product? A block's four matrices, and one more at the end.",
            "2 bytes × (24 × 12 × 1,024² + 50,257 × 1,024).",
        ),
    ),
    Exercise(
        id="21.2",
        title="What one block keeps with eager attention and dropout: autocast less fp32",
        difficulty=2,
        minutes=8,
        accepts="expression",
        answer=lambda: -28 * B * S * H - 2 * A * B * S**2,
        mistakes={
            "that is without dropout": -28 * B * S * H + 2 * A * B * S**2,
            "that is fp32 less autocast": 28 * B * S * H + 2 * A * B * S**2,
            "the square is missing: 7 bytes a score against 9": -28 * B * S * H,
            "the stream's two tensors stay fp32": -32 * B * S * H - 2 * A * B * S**2,
        },
        hints=(
            "Outside of attention dropout adds the same masks to both. Which bytes of the square does each precision keep?",
            "fp32 keeps 4 + 4 + 1 bytes a score with dropout, autocast 4 + 2 + 1.",
        ),
    ),
    Exercise(
        id="21.3",
        title="The sequence from which on autocast cannot pay, for a model of Llama 3 8B's shape",
        difficulty=2,
        minutes=6,
        answer=lambda: _turn(32, 32, 128, 128_256),
        mistakes={
            "that is the block's own turning point: the loss shifts it": lambda: _turn(
                32, 32, 128, 128_256, logits=False
            ),
            "that is with GPT-2's vocabulary": lambda: _turn(32, 32, 128, 50_257),
            "round up: at this length a large batch still pays, a little": lambda: _turn(32, 32, 128, 128_256) - 1,
        },
        hints=(
            "The expression `turns` has the answer: head width, heads, layers and vocabulary go in.",
            "14 × 128 + (32 × 128 + 128,256) / (32 × 32), rounded up.",
        ),
    ),
    Exercise(
        id="21.4",
        title="How far a master copy raises the peak of GPT-2 XL on one short sequence",
        difficulty=2,
        minutes=6,
        unit="GiB",
        decimals=2,
        answer=_rise,
        mistakes={
            "that is at rest; the peak is in the optimizer's step": lambda: _states("rest"),
            "that is with the fused step: foreach has temporaries of its own": lambda: _rise(optimizer_impl="fused"),
            "that is the whole peak, not what it rose by": lambda: (
                budget(model("gpt2-xl"), Setup(batch=1, sequence=128, precision="bf16-master")).peak
            ),
        },
        hints=(
            "With 128 tokens the peak is in the optimizer's step: look at the last column of the table of bytes a parameter.",
            "4 bytes for each of 1,557,611,200 parameters, less a few.",
        ),
    ),
    Exercise(
        id="21.5",
        title="What autocast takes off GPT-2 large's peak with eager attention and dropout",
        difficulty=3,
        minutes=8,
        unit="GiB",
        decimals=2,
        answer=lambda: _falls("gpt2-large", dropout=0.1),
        mistakes={
            "that is without dropout, and it rises": lambda: _falls("gpt2-large"),
            "you have the sign the wrong way round": lambda: -_falls("gpt2-large", dropout=0.1),
            "without dropout it would rise by this; with it, it falls": lambda: -_falls("gpt2-large"),
        },
        hints=(
            "Predict with exercise 21.2's expression times 36 layers, the casts, the last norm and the logits.",
            "`eb.budget(eb.model('gpt2-large'), ...)` twice, with attention='eager' and dropout=0.1, and subtract.",
        ),
    ),
    Program(
        id="21.6",
        title="A function for the 16-bit casts of a model's weights",
        difficulty=2,
        minutes=8,
        call="casts(weights)",
        cases=_cast,
        answer=_cast_bytes,
        mistakes={
            "a copy in 16 bits has two bytes a number": lambda: _cast_bytes(each=4),
            "what is saved for backward are matrices: biases and gains are not": lambda: _cast_bytes(vectors=True),
            "a table that rows are looked up in enters no product": lambda: _cast_bytes(tables=True),
            "where there is no `head.weight`, the token table is the head, and it enters a product": lambda: (
                _cast_bytes(tied=False)
            ),
        },
        hints=(
            "Two bytes for each number of every matrix that enters a product. Which matrices do not?",
            "The tables of tokens and positions are looked up. But where the list has no `head.weight`, the head is `token.weight`.",
        ),
    ),
]
