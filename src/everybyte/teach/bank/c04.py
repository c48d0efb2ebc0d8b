"""Exercises of lab 4: FSDP."""

from ...ask.setup import Setup
from ..asking import parameters, peak, step
from . import answers

_DDP = Setup(gpus=64, precision="bf16-mixed")
_ZERO3 = _DDP.replace(sharding="zero3")


ANSWERS = {
    "04.1": answers(
        lambda: step("gpt2", _ZERO3, gpus=8).phases["rest"],
        gradients=lambda: 2 * parameters("gpt2"),
        undivided=lambda: 12 * parameters("gpt2"),
        bf16=lambda: 10 * parameters("gpt2") / 8,
    ),
    "04.2": answers(
        lambda: peak("gpt2", _DDP, sharding="zero2") - peak("gpt2", _ZERO3),
        buffer=lambda: 12 * step("gpt2", _ZERO3).parts["communication"],
        ddp=lambda: peak("gpt2", _DDP) - peak("gpt2", _ZERO3),
    ),
    "04.3": answers(4 * 16, eight=32, one_byte=16),
}
