"""Exercises of lab 4: FSDP."""

from ...budget import budget
from ...catalog import model
from ...setup import Setup
from . import answers

_DDP = Setup(gpus=64, precision="bf16-mixed")
_ZERO3 = _DDP.replace(sharding="zero3")


def _peak(**changes):
    return budget(model("gpt2"), _DDP.replace(**changes)).peak


ANSWERS = {
    "04.1": answers(
        lambda: budget(model("gpt2"), _ZERO3.replace(gpus=8)).phases["rest"],
        gradients=lambda: 2 * int(model("gpt2").parameters),
        undivided=lambda: 12 * int(model("gpt2").parameters),
        bf16=lambda: 10 * int(model("gpt2").parameters) / 8,
    ),
    "04.2": answers(
        lambda: _peak(sharding="zero2") - _peak(sharding="zero3"),
        buffer=lambda: 12 * budget(model("gpt2"), _ZERO3).parts["communication"],
        ddp=lambda: _peak() - _peak(sharding="zero3"),
    ),
    "04.3": answers(4 * 16, eight=32, one_byte=16),
}
