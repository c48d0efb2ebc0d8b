"""Exercises of chapter 13: which bytes make "16 bytes per parameter"?"""

from ...catalog import model
from ...formulas import formula
from ...setup import DTYPE_BYTES, Setup
from ..exercise import Exercise


def _each(gradients):
    return formula("bytes_per_parameter").at(None, Setup(precision="bf16-master", master_gradients=gradients))


def _states(**setup):
    return formula("optimizer.states").at(model("gpt2-xl"), Setup(**setup))


EXERCISES = [
    Exercise(
        id="13.1",
        title="Bytes per parameter with bf16 weights, an fp32 master copy and gradients kept in fp32",
        difficulty=1,
        minutes=3,
        unit="B",
        answer=lambda: _each("fp32"),
        mistakes={
            "you counted the fp32 master twice": lambda: _each("fp32") + DTYPE_BYTES["fp32"],
            "the fp32 master is missing": lambda: _each("fp32") - DTYPE_BYTES["fp32"],
            "a bf16 number too few: the weights are missing, or the gradients are two bytes each": lambda: _each(
                "bf16"
            ),
            "these are gradients kept twice, in bf16 and in fp32": lambda: _each("both"),
        },
        hints=(
            "Write one line for each thing that has a number for every parameter: there are five.",
            "Weights, gradients, master copy, and Adam's two states: next to each, two bytes or four.",
        ),
    ),
    Exercise(
        id="13.2",
        title="Adam's states for GPT-2 XL in fp32",
        difficulty=1,
        minutes=4,
        unit="GiB",
        decimals=2,
        answer=_states,
        mistakes={
            "this is half: Adam keeps two states, and here each is fp32": lambda: _states(optimizer="momentum"),
            "you counted the weights too": lambda: _states() + formula("weights").at(model("gpt2-xl"), Setup()),
            "these are GPT-2 large's": lambda: formula("optimizer.states").at(model("gpt2-large"), Setup()),
        },
        hints=(
            "How many numbers does Adam remember for each parameter, from one step to the next?",
            "Momentum and variance, four bytes each, times chapter 11's count; a GiB is 1024 × 1024 × 1024 bytes.",
        ),
    ),
]
