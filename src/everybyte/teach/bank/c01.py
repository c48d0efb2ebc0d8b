"""Exercises of lab 1: mixed precision."""

from ...ask.setup import Setup
from ..asking import at, parameters, peak, step
from . import answers

_MIXED = Setup(precision="bf16-mixed")


def _casts():
    return step("gpt2", _MIXED).parts["casts"]


def _eager_peak(precision):
    return peak("gpt2-xl", precision=precision, attention="eager")


ANSWERS = {
    "01.1": answers(
        lambda: at("phase.rest", "gpt2", _MIXED) - at("phase.rest", "gpt2"),
        weights=lambda: -2 * parameters("gpt2"),
        everything=lambda: -6 * parameters("gpt2"),
        casts=_casts,
    ),
    "01.2": answers(
        _casts,
        positions=lambda: 2 * parameters("gpt2"),
        head=lambda: _casts() - 2 * 50257 * 768,
        fp32=lambda: 2 * _casts(),
    ),
    "01.3": answers(
        lambda: _eager_peak("bf16-mixed") - _eager_peak("fp32"),
        bf16=lambda: _eager_peak("bf16") - _eager_peak("fp32"),
        flash=lambda: peak("gpt2-xl", _MIXED) - peak("gpt2-xl"),
    ),
}
