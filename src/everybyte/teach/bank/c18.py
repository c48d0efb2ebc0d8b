"""Exercises of chapter 18: what would your own model take?"""

from ...budget import budget
from ...catalog import model
from ...formulas.symbols import B, S
from ...setup import Setup
from ..exercise import Exercise

_MIXED = Setup(precision="bf16-mixed", sequence=64)


def _llama(batch, sequence):
    """The two instants of Llama 3.1 8B all in bf16, as the chapter derives them: loss backward, optimizer step."""
    tokens = batch * sequence
    return 7_998_740 * tokens + 512 * sequence + 48_181_568_520, 16 * tokens + 80_302_612_740


def _peak(batch):
    return budget(model("gpt2"), _MIXED.replace(batch=batch)).peak


def _straight(batch):
    return _peak(1) + (batch - 1) * (_peak(2) - _peak(1))


def _padded(sequence, multiple=32):
    return 4 * 16 * 8 * (-(-sequence // multiple) * multiple)


EXERCISES = [
    Exercise(
        id="18.1",
        title="The peak of Llama 3.1 8B, all in bf16, for 4 sequences of 4,096 tokens",
        difficulty=1,
        minutes=4,
        unit="GiB",
        decimals=2,
        answer=lambda: max(_llama(4, 4096)),
        mistakes={
            "that is the optimizer's step: with so many tokens the loss is higher": lambda: min(_llama(4, 4096)),
            "the peak is the higher of the two, not their sum": lambda: sum(_llama(4, 4096)),
            "that is one sequence; the batch is missing": lambda: _llama(1, 4096)[0],
        },
        hints=(
            "The formula has two instants. Put B = 4 and S = 4,096 into both.",
            "B S is 16,384 tokens: 7,998,740 bytes for each, and 48,181,568,520 that are always there. Is the other one higher?",
        ),
    ),
    Exercise(
        id="18.2",
        title="The polynomial behind five sizes of one tensor",
        difficulty=2,
        minutes=6,
        accepts="expression",
        answer=lambda: 64 * B * S**2,
        mistakes={
            "the sequence counts twice: twice the sequence gives four times the bytes": lambda: 8192 * B * S,
            "the batch counts once: three sequences take three halves of what two take": lambda: 32 * B**2 * S**2,
            "that is the size of one number; the tensor has 16 heads": lambda: 4 * B * S**2,
        },
        hints=(
            "Change one letter at a time: what does the batch from 2 to 3 do, and the sequence from 64 to 128?",
            "It is one term, c B S². Divide any of the sizes by B S².",
        ),
    ),
    Exercise(
        id="18.3",
        title="GPT-2 under autocast, 256 sequences of 64 tokens, by someone's straight line, corrected",
        difficulty=2,
        minutes=6,
        unit="GiB",
        decimals=2,
        answer=lambda: _peak(256),
        mistakes={
            "that is the published line: it goes through two peaks of the optimizer's step": lambda: _straight(256),
            "that is 255 times what the second sequence adds in the loss; the constant of the loss's line is missing": lambda: (
                839_746 * 64 * 256
            ),
        },
        hints=(
            "At one and two sequences of 64 tokens, which instant is the peak? And at 256?",
            "Use the other line of the chapter's formula for GPT-2: 839,746 bytes a token and a constant.",
        ),
    ),
    Exercise(
        id="18.4",
        title="To a multiple of how many tokens a kernel pads",
        difficulty=3,
        minutes=8,
        unit="tokens",
        answer=lambda: 32,
        mistakes={
            "that is what one token less or more changes the bytes by, where they change": lambda: (
                _padded(33) - _padded(32)
            ),
            "two sequences with the same bytes may be further apart": lambda: 16,
            "the sizes change twice on the way; count from one change to the next": lambda: 64,
        },
        hints=(
            "Between which of the sequences does the size change?",
            "The same from 65 to 96, another from 97 to 128. How many sequences share one size?",
        ),
    ),
]
