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
        title="The peak of GPT-2 medium, 16 × 1,024 tokens in four micro-batches",
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
            "Weights, Adam's two states and the gradients of the micro-batches before stand; then come four sequences' tokens.",
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
        title="How much too heavy a token is in the micro-batch with the fewest real ones",
        difficulty=1,
        minutes=4,
        answer=lambda: 6_000 / (4 * 400),
        mistakes={
            "that is against a token of the fullest micro-batch; against what it should be": lambda: 3_000 / 400,
            "each mean is divided by four, too": lambda: 6_000 / 400,
            "that is the number of micro-batches": lambda: 4,
            "that is how much too light a token of the fullest is": lambda: 6_000 / (4 * 3_000),
            "that is the inverse": lambda: 4 * 400 / 6_000,
        },
        hints=(
            "What is a token's weight in the loop's sum of four means, and what is it in one mean over all 6,000?",
            "1 / (4 × 400), against 1 / 6,000.",
        ),
    ),
    Exercise(
        id="23.4",
        title="What eight loss chunks take off micro-batches of four sequences",
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
            "A chunk is cut from a micro-batch, not from the step: four sequences.",
            "`eb.budget` with batch=4, accumulation=16, plain and chunked, and subtract.",
        ),
    ),
]
