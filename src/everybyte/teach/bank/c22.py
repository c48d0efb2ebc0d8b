"""Exercises of chapter 22: what does forgetting cost, and which layers should forget?"""

from ...budget import budget
from ...catalog import gpu, model
from ...formulas import SYMBOLS, formula
from ...setup import Setup
from ..exercise import Exercise

A, H, K, L, S = (SYMBOLS[name].symbol for name in ("heads", "width", "segment", "layers", "sequence"))

_FULL = Setup(checkpointing="full")
_CARD = "rtx-4090"


def _inputs(name):
    return formula("checkpoint.inputs").at(model(name), _FULL)


def _most(segment, precision="bf16-mixed"):
    """The most activations of a step of GPT-2 XL in segments of so many blocks."""
    setup = Setup(precision=precision, checkpointing="every-k", checkpoint_every=segment)
    return max(budget(model("gpt2-xl"), setup).timeline()["activations"])


def _largest(setup):
    """The largest batch of GPT-2 large whose peak is no more than the card's memory."""
    batch = 0
    while budget(model("gpt2-large"), setup.replace(batch=batch + 1)).peak <= gpu(_CARD).memory:
        batch += 1
    return batch


EXERCISES = [
    Exercise(
        id="22.1",
        title="What GPT-2 medium's segments keep of the residual stream, with full checkpointing in fp32",
        difficulty=1,
        minutes=3,
        unit="MiB",
        decimals=0,
        answer=lambda: _inputs("gpt2-medium"),
        mistakes={
            "that is one block's: there are 24": lambda: _inputs("gpt2-medium") / 24,
            "that is in 16 bits, or in segments of two blocks; full checkpointing keeps each block's input, here in fp32": lambda: (
                _inputs("gpt2-medium") / 2
            ),
            "that is what the blocks keep without checkpointing": lambda: (
                24 * formula("activations.block").at(model("gpt2-medium"), Setup())
            ),
        },
        factors={"batch": 8, "layers": 24},
        hints=(
            "One residual stream a block: B × S × H numbers.",
            "8 × 1,024 × 1,024 numbers of 4 bytes, 24 times.",
        ),
    ),
    Exercise(
        id="22.2",
        title="The depth above which segments of two beat single blocks: all in bf16, eager, with dropout",
        difficulty=2,
        minutes=8,
        accepts="expression",
        answer=lambda: 34 + 5 * A * S / H,
        mistakes={
            "that is r, or an input of 4 bytes a number where it is 2: setting the memory of K = 1 and of K = 2 equal gives twice as much": lambda: (
                17 + 5 * A * S / (2 * H)
            ),
            "that is for flash attention, without dropout": lambda: 32 + 0 * S,
            "that is without dropout": lambda: 32 + 2 * A * S / H,
        },
        hints=(
            "The derivation: K = 2 takes less than K = 1 where L is above 2 r, and r is what a block keeps over its input.",
            "Chapter 14's table of what a block keeps, last cell: 34 + 5 AS/H bytes for each number of the stream; the input is 2.",
        ),
    ),
    Exercise(
        id="22.3",
        title="What the rule of the root costs GPT-2 XL under autocast: segments of 7 against single blocks",
        difficulty=2,
        minutes=6,
        unit="GiB",
        decimals=2,
        answer=lambda: _most(7) - _most(1),
        mistakes={
            "that is against segments of two, the best; full checkpointing has one": lambda: _most(7) - _most(2),
            "those are the activations with segments of 7 alone: subtract full checkpointing's": lambda: _most(7),
            "those are seven blocks alone: subtract full checkpointing's activations, and count the inputs": lambda: (
                7 * formula("activations.block").at(model("gpt2-xl"), Setup(precision="bf16-mixed"))
            ),
            "that is in fp32": lambda: _most(7, "fp32") - _most(1, "fp32"),
        },
        hints=(
            "The chapter's function `most` takes a model and a setup, `segments` a number of blocks and a setup; 7 is the root of 48, rounded.",
            "`most(xl, segments(7, mixed))`, less the same for segments of 1.",
        ),
    ),
    Exercise(
        id="22.4",
        title="The share of more products of segments of K blocks, for a wide and deep GPT",
        difficulty=2,
        minutes=8,
        accepts="expression",
        answer=lambda: (24 * K - 8) / (72 * K),
        mistakes={
            "that is without the early stop: each segment spares its last product": lambda: (24 * K) / (72 * K),
            "that is over forward alone: the step has backward's products, twice forward's, too": lambda: (
                (24 * K - 8) / (24 * K)
            ),
            "each segment spares one product of 8 units, not each block": lambda: (16 * K) / (72 * K),
        },
        hints=(
            "In units of B S H²: a block's forward is 24, its last product 8, forward and backward together 72.",
            "Of K blocks made again, one spares its last product.",
        ),
    ),
    Exercise(
        id="22.5",
        title="The largest batch of GPT-2 large in fp32 on an RTX 4090 with full checkpointing",
        difficulty=3,
        minutes=8,
        unit="sequences",
        answer=lambda: _largest(_FULL),
        mistakes={
            "that is without checkpointing, or with selective, which flash attention leaves nothing to do": lambda: (
                _largest(Setup())
            ),
            "that is with segments of two blocks": lambda: _largest(Setup(checkpointing="every-k")),
        },
        hints=(
            'The peak must stay below `eb.gpu("rtx-4090").memory`. It is a straight line in the batch as long as the loss wins.',
            'Try `eb.budget(eb.model("gpt2-large"), setup.replace(checkpointing="full", batch=n)).peak` for n from 15 on.',
        ),
    ),
]
