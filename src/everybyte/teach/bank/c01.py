"""Exercises of lab 1: mixed precision."""

from ...budget import budget
from ...catalog import model
from ...formulas import formula
from ...setup import Setup
from . import answers

_MIXED = Setup(precision="bf16-mixed")


def _casts():
    return budget(model("gpt2"), _MIXED).parts["casts"]


def _eager_peak(precision):
    return budget(model("gpt2-xl"), Setup(precision=precision, attention="eager")).peak


ANSWERS = {
    "01.1": answers(
        lambda: formula("phase.rest").at(model("gpt2"), _MIXED) - formula("phase.rest").at(model("gpt2"), Setup()),
        weights=lambda: -2 * int(model("gpt2").parameters),
        everything=lambda: -6 * int(model("gpt2").parameters),
        casts=_casts,
    ),
    "01.2": answers(
        _casts,
        positions=lambda: 2 * int(model("gpt2").parameters),
        head=lambda: _casts() - 2 * 50257 * 768,
        fp32=lambda: 2 * _casts(),
    ),
    "01.3": answers(
        lambda: _eager_peak("bf16-mixed") - _eager_peak("fp32"),
        bf16=lambda: _eager_peak("bf16") - _eager_peak("fp32"),
        flash=lambda: budget(model("gpt2-xl"), _MIXED).peak - budget(model("gpt2-xl"), Setup()).peak,
    ),
}
