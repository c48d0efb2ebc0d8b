"""Exercises of lab 2: checkpointing."""

from ...budget import budget
from ...catalog import model
from ...formulas import formula
from ...setup import Setup
from . import answers

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


ANSWERS = {
    "02.1": answers(
        lambda: formula("checkpoint.inputs").at(model("gpt2"), _FULL),
        bf16=2 * 12 * 8 * 1024 * 768,
        one_block=4 * 8 * 1024 * 768,
    ),
    "02.2": answers(lambda: _percent(_FULL), third=100 / 3),
    "02.3": answers(lambda: _saved("eager"), flash=lambda: _saved("flash")),
}
