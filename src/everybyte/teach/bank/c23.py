"""Exercises of chapter 23: batch, sequence or accumulation, which knob first?"""

from ...budget import budget
from ...catalog import model
from ...formulas import SYMBOLS
from ...setup import Setup
from ..exercise import Exercise

H = SYMBOLS["width"].symbol
_MEDIUM = Setup(batch=4, accumulation=4)
_SMALL = Setup(batch=4, accumulation=16)


def _medium(**changes):
    return budget(model("gpt2-medium"), _MEDIUM.replace(**changes)).peak


def _chunks(setup):
    return budget(model("gpt2"), setup).peak - budget(model("gpt2"), setup.replace(loss="chunked")).peak


def _logits(sequences):
    return 12 * model("gpt2").vocabulary * sequences * 1024 * 7 // 8


EXERCISES = [
    Exercise(
        id="23.1",
        title="The peak of GPT-2 medium, 16 × 1,024 tokens in four batches",
        difficulty=1,
        minutes=5,
        unit="GiB",
        decimals=2,
        answer=_medium,
        mistakes={
            "the gradients stand from the second batch on: 4 bytes a parameter are missing": lambda: _medium(
                accumulation=1
            ),
            "that is the whole batch at once": lambda: _medium(batch=16, accumulation=1),
            "that is a quarter of the whole's peak: the states are not cut": lambda: (
                _medium(batch=16, accumulation=1) // 4
            ),
        },
        hints=(
            "Weights, Adam's two states and the gradients of the batches before stand; then come four sequences' tokens.",
            "16 bytes a parameter, and `alpha` for each of 4 × 1,024 tokens.",
        ),
    ),
    Exercise(
        id="23.2",
        title="From how many tokens on two halves take less, under autocast with the fused step",
        difficulty=3,
        minutes=8,
        accepts="expression",
        answer=lambda: 8 * H / 3,
        mistakes={
            "that is one half's tokens, not the whole's": 4 * H / 3,
            "that is fp32's: under autocast a block keeps 36 bytes": 3 * H / 2,
            "the casts stand in both: they cancel": 4 * H,
        },
        hints=(
            "The casts are there either way. What do the halves add to the whole's peak, and what do they take off?",
            "Gradients, 4 × 12 L H² bytes, against half of 36 L H bytes a token.",
        ),
    ),
    Exercise(
        id="23.3",
        title="The loss of two batches of which one is mostly padding",
        difficulty=1,
        minutes=3,
        answer=lambda: 2,
        mistakes={
            "that is the mean of the means: six tokens count as much as two": lambda: 3,
            "that is the sum of the means": lambda: 6,
            "that is the sum over the tokens: divide by all eight": lambda: 16,
        },
        hints=(
            "The whole batch's loss is the mean over its tokens. How many are there, and what do their losses add up to?",
            "(6 × 1 + 2 × 5) / 8.",
        ),
    ),
    Exercise(
        id="23.4",
        title="What eight loss chunks take off batches of four sequences",
        difficulty=2,
        minutes=8,
        unit="GiB",
        decimals=2,
        answer=lambda: _chunks(_SMALL),
        mistakes={
            "the logits alone: chunking makes a sum of the head's gradients": lambda: _logits(4),
            "that is for all 64 sequences at once": lambda: _chunks(Setup(batch=64)),
            "that is the whole batch's logits": lambda: _logits(64),
        },
        hints=(
            "A chunk is cut from a batch, not from the step: four sequences.",
            "`eb.budget` with batch=4, accumulation=16, plain and chunked, and subtract.",
        ),
    ),
]
