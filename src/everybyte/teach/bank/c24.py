"""Exercises of chapter 24: how few bytes can an optimizer live on?"""

from ...budget import budget
from ...catalog import model
from ...catalog.weights import layers, weights
from ...formulas.optimizers import blocks
from ...setup import Setup
from ...theory.optimizers import factors
from ..exercise import Exercise

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
]
