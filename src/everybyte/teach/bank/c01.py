"""Exercises of lab 1: mixed precision."""

from ...budget import budget
from ...catalog import model
from ...formulas import formula
from ...setup import Setup
from ..exercise import Exercise

_MIXED = Setup(precision="bf16-mixed")


def _casts():
    return budget(model("gpt2"), _MIXED).parts["casts"]


def _eager_peak(precision):
    return budget(model("gpt2-xl"), Setup(precision=precision, attention="eager")).peak


EXERCISES = [
    Exercise(
        id="01.1",
        title="What autocast changes between two steps",
        difficulty=1,
        minutes=3,
        unit="B",
        answer=lambda: (
            formula("phase.rest").at(model("gpt2"), _MIXED) - formula("phase.rest").at(model("gpt2"), Setup())
        ),
        mistakes={
            "that would be 16-bit weights: autocast keeps them in fp32": lambda: -2 * int(model("gpt2").parameters),
            "that is everything in 16 bits, weights and states": lambda: -6 * int(model("gpt2").parameters),
            "the 16-bit copies die when backward is done": _casts,
        },
        hints=(
            "Which tensors live between two steps, and in which data type is each under autocast?",
            "Look at the table of roles: weights and states of fp32 and of bf16-mixed.",
        ),
    ),
    Exercise(
        id="01.2",
        title="The 16-bit copies of GPT-2's weights",
        difficulty=2,
        minutes=6,
        unit="MiB",
        decimals=1,
        answer=_casts,
        mistakes={
            "positions and norms are not cast": lambda: 2 * int(model("gpt2").parameters),
            "the token table is cast too: it is the head": lambda: _casts() - 2 * 50257 * 768,
            "a copy has two bytes a number, not four": lambda: 2 * _casts(),
        },
        hints=(
            "Of the copies that autocast makes, those stand at the peak that backward multiplies by.",
            "The matrices of twelve blocks of four linear layers, and the head; no bias.",
        ),
    ),
    Exercise(
        id="01.3",
        title="Autocast with eager attention, against fp32, for GPT-2 XL",
        difficulty=2,
        minutes=5,
        unit="GiB",
        decimals=2,
        answer=lambda: _eager_peak("bf16-mixed") - _eager_peak("fp32"),
        mistakes={
            "that is pure bf16 against fp32": lambda: _eager_peak("bf16") - _eager_peak("fp32"),
            "that is with flash attention": lambda: (
                budget(model("gpt2-xl"), _MIXED).peak - budget(model("gpt2-xl"), Setup()).peak
            ),
        },
        hints=(
            "Two budgets, of the same model and the same setup but for the precision.",
            'eb.Setup(precision="bf16-mixed", attention="eager"), and the same in fp32; the peaks\' difference.',
        ),
    ),
]
