"""Exercises of chapter 24: how few bytes can an optimizer live on?"""

from math import ceil, prod

from ...budget import budget
from ...catalog import model
from ...catalog.weights import layers, weights
from ...formulas import formula
from ...formulas.optimizers import BLOCK, QUANTIZED, blocks
from ...setup import Setup
from ...theory.optimizers import factors
from ..exercise import Exercise
from ..program import Case, Program, small_gpts, small_llamas

MATRIX = (4096, 14_336)
NUMBERS = MATRIX[0] * MATRIX[1]


def _eight_bit(numbers):
    return int(2 * blocks(numbers)[0])


def _vectors():
    """Numbers in GPT-2's gains and biases."""
    gpt2 = model("gpt2")
    times = layers(gpt2)
    return sum(w.count * times[w.group] * w.numbers for w in weights(gpt2) if len(w.shape) == 1)


def _step(name="gpt2-xl", optimizer="lion", **changes):
    phases = budget(model(name), Setup(optimizer=optimizer, **changes)).phases
    return phases["step"] - phases["after_step"]


def _shapes(m):
    """Of all weights."""
    times = layers(m)
    return [tuple(w.shape) for w in weights(m) for _ in range(w.count * times[w.group])]


def _states():
    run = Setup(optimizer="adamw8bit")
    for m in [*small_gpts(24, 4), *small_llamas(24, 4)]:
        yield Case(m.name, (_shapes(m),), int(formula("states.adamw8bit").at(m, run)))


def _of(scale=4, small=QUANTIZED, tables=2 * 256 * 4, states=2):
    """What it would be with a scale of so many bytes, and with tensors of fewer than `small` numbers in fp32."""

    def eight_bit_states(shapes):
        sizes = [prod(shape) for shape in shapes]
        return tables + sum(states * (4 * n if n < small else n + scale * ceil(n / BLOCK)) for n in sizes)

    return eight_bit_states


EXERCISES = [
    Exercise(
        id="24.1",
        title="What Adafactor keeps for one matrix of 4,096 by 14,336",
        difficulty=1,
        minutes=3,
        unit="B",
        answer=lambda: 4 * int(sum(factors(MATRIX))),
        mistakes={
            "that is the number of rows and columns: each is four bytes": sum(MATRIX),
            "you counted a number for each entry: Adafactor keeps rows and columns alone": 4 * NUMBERS,
            "you counted two states: it keeps no mean of the gradient": 8 * sum(MATRIX),
        },
        hints=(
            "It keeps one average for each row and one for each column.",
            "4,096 + 14,336 numbers, four bytes each.",
        ),
    ),
    Exercise(
        id="24.2",
        title="What 8-bit AdamW keeps for the same matrix",
        difficulty=2,
        minutes=5,
        unit="MiB",
        decimals=2,
        answer=lambda: _eight_bit(NUMBERS),
        mistakes={
            "the scales are missing: four bytes for each block of 256": 2 * NUMBERS,
            "AdamW keeps two states": lambda: _eight_bit(NUMBERS) // 2,
            "these are AdamW's states in fp32": 8 * NUMBERS,
        },
        hints=(
            "One byte for each number, and an fp32 scale for each block of 256. How many blocks are there?",
            "58,720,256 numbers in 229,376 blocks; then twice, for the two means. A MiB is 1024 × 1024 bytes.",
        ),
    ),
    Exercise(
        id="24.3",
        title="What 8-bit AdamW keeps for GPT-2's gains and biases",
        difficulty=2,
        minutes=4,
        unit="B",
        answer=lambda: 8 * _vectors(),
        mistakes={
            "that is two bytes for each: which tensors does it quantize?": lambda: 2 * _vectors(),
            "AdamW keeps two states": lambda: 4 * _vectors(),
            "that is one layer's: there are twelve, and the last norm": lambda: 8 * (_vectors() - 2 * 768) // 12,
        },
        hints=(
            "From how many numbers on is a tensor quantized?",
            "3,072 is less than 4,096: all of them stay in fp32, four bytes for each of two states.",
        ),
    ),
    Exercise(
        id="24.4",
        title="What Lion's step takes for GPT-2 XL",
        difficulty=3,
        minutes=8,
        unit="MiB",
        decimals=2,
        answer=_step,
        mistakes={
            "that is one copy of the token table: the old mean and the sign of the new one stand at once": lambda: (
                _step() // 2
            ),
            "that is a copy of the whole model, as AdamW's foreach makes: Lion goes tensor by tensor": lambda: _step(
                optimizer="adamw"
            ),
            "these are GPT-2's 124M": lambda: _step("gpt2"),
        },
        hints=(
            "Lion updates one tensor after another. Which one is the largest?",
            "The token table, 50,257 × 1,600 numbers of four bytes: once copied, once more as the sign of the update.",
        ),
    ),
    Program(
        id="24.5",
        title="A function for what 8-bit AdamW keeps, from the shapes of the weights",
        difficulty=2,
        minutes=10,
        call="eight_bit_states(shapes)",
        cases=_states,
        answer=_of,
        mistakes={
            "each block of 256 numbers has a scale of four bytes": lambda: _of(scale=0),
            "tensors of fewer than 4,096 numbers stay in fp32": lambda: _of(small=0),
            "the two tables of 256 values are missing, 4 bytes each value": lambda: _of(tables=0),
            "one state is missing: 8-bit AdamW keeps both means": lambda: _of(states=1),
        },
        hints=(
            "For each tensor and each of two states: a byte a number and four a block, or four a number where it is small.",
            "The last block of a tensor may be shorter, and has a scale all the same; two tables stand once for all.",
        ),
    ),
]
