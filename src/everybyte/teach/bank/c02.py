"""Exercises of lab 2: checkpointing."""

from ...ask.setup import Setup
from ..asking import at, peak
from . import answers

_NONE = Setup(precision="bf16-mixed")
_FULL = _NONE.replace(checkpointing="full")
_PARTS = ("flops.forward", "flops.backward", "checkpoint.flops")


def _flops(setup):
    return sum(int(at(name, "gpt2", setup)) for name in _PARTS)


def _percent(setup):
    return (_flops(setup) / _flops(_NONE) - 1) * 100


def _saved(attention):
    run = _NONE.replace(attention=attention)
    return peak("gpt2", run) - peak("gpt2", run, checkpointing="selective")


ANSWERS = {
    "02.1": answers(
        lambda: at("checkpoint.inputs", "gpt2", _FULL),
        bf16=2 * 12 * 8 * 1024 * 768,
        one_block=4 * 8 * 1024 * 768,
    ),
    "02.2": answers(lambda: _percent(_FULL), third=100 / 3),
    "02.3": answers(lambda: _saved("eager"), flash=lambda: _saved("flash")),
}
