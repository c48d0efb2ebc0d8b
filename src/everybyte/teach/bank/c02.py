"""Exercises of lab 2: checkpointing."""

from ...budget import budget
from ...catalog import model
from ...formulas import formula
from ...setup import Setup
from ..exercise import Exercise

_NONE = Setup(precision="bf16-mixed")
_FULL = _NONE.replace(checkpointing="full")
_PARTS = ("flops.forward", "flops.backward", "checkpoint.flops")


def _flops(setup):
    return sum(int(formula(name).at(model("gpt2"), setup)) for name in _PARTS)


def _percent(setup):
    return (_flops(setup) / _flops(_NONE) - 1) * 100


def _saved(attention):
    selective, none = (
        budget(model("gpt2"), _NONE.replace(checkpointing=c, attention=attention)).peak for c in ("selective", "none")
    )
    return none - selective


EXERCISES = [
    Exercise(
        id="02.1",
        title="What full checkpointing keeps of GPT-2's blocks",
        difficulty=1,
        minutes=4,
        unit="MiB",
        answer=lambda: formula("checkpoint.inputs").at(model("gpt2"), _FULL),
        mistakes={
            "the residual stream is fp32 under autocast": lambda: 2 * 12 * 8 * 1024 * 768,
            "that is one block's": lambda: 4 * 8 * 1024 * 768,
        },
        hints=(
            "Of each block forward keeps one tensor, of the shape of the residual stream.",
            "Tokens times width, in fp32 under autocast, for each of twelve blocks.",
        ),
    ),
    Exercise(
        id="02.2",
        title="The arithmetic that full checkpointing adds",
        difficulty=2,
        minutes=6,
        unit="%",
        decimals=1,
        answer=lambda: _percent(_FULL),
        mistakes={
            "a third would be every product of forward; neither the head nor each block's last product is recomputed": 100
            / 3,
        },
        hints=(
            "Forward is one part, backward about two. Which products of forward are recomputed?",
            "checkpoint.flops over flops.forward plus flops.backward. The loss is outside the segments.",
        ),
    ),
    Exercise(
        id="02.3",
        title="What selective checkpointing saves with eager attention",
        difficulty=1,
        minutes=4,
        unit="GiB",
        decimals=2,
        answer=lambda: _saved("eager"),
        mistakes={"that is with flash attention: it has no scores to recompute": lambda: _saved("flash")},
        hints=(
            "Two budgets, eager attention, with and without.",
            'The peak of eb.budget(gpt2, eb.Setup(precision="bf16-mixed", attention="eager", checkpointing="selective")).',
        ),
    ),
]
