"""Exercises of lab 3: flash attention."""

from ...budget import budget
from ...catalog import model
from ...setup import Setup
from ..exercise import Exercise

_GIB = 2**30


def _longest(limit, attention="eager", step=512):
    """The longest sequence, a multiple of `step`, with which one sequence of GPT-2 stays within `limit` bytes."""
    length = 0
    while True:
        setup = Setup(batch=1, sequence=length + step, precision="bf16-mixed", attention=attention)
        longer = model("gpt2").replace(positions=length + step)
        if budget(longer, setup, rounding=512).peak > limit:
            return length
        length += step


EXERCISES = [
    Exercise(
        id="03.1",
        title="One layer's scores at a sequence of 8,192",
        difficulty=1,
        minutes=3,
        unit="GiB",
        answer=lambda: 4 * 12 * 8192**2,
        mistakes={
            "that is one head's; GPT-2 has twelve": 4 * 8192**2,
            "that is all layers'": 12 * 4 * 12 * 8192**2,
            "softmax's result is fp32 under autocast": 2 * 12 * 8192**2,
        },
        hints=(
            "Every position looks at every position, in every head.",
            "Heads times sequence times sequence, four bytes each.",
        ),
    ),
    Exercise(
        id="03.2",
        title="What flash attention keeps in the scores' place",
        difficulty=1,
        minutes=3,
        unit="B",
        answer=lambda: 4 * 12 * 8192,
        mistakes={
            "one number for each row of each head's square, not for each entry": 4 * 12 * 8192**2,
            "that is one head's": 4 * 8192,
            "the log-sum-exp is fp32 in any precision": 2 * 12 * 8192,
        },
        hints=(
            "Backward recomputes the scores. What of softmax can it not recompute without a second pass?",
            "The logarithm of the sum of exponentials: one fp32 number a row.",
        ),
    ),
    Exercise(
        id="03.3",
        title="The longest sequence that eager attention trains in 24 GiB",
        difficulty=2,
        minutes=6,
        unit="tokens",
        answer=lambda: _longest(24 * _GIB),
        mistakes={
            "that does not fit any more: the next shorter one does": lambda: _longest(24 * _GIB) + 512,
        },
        hints=(
            "Try multiples of 512 for one sequence, with as many positions as the sequence has tokens.",
            "lab.gpt2_for(setup) gives the model; eb.budget(..., rounding=512).peak the bytes.",
        ),
    ),
]
