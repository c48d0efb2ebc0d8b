"""Exercises of chapter 46: the questions people are asked."""

from math import sqrt

from ...ask.setup import Setup
from ...catalog import model
from ...formulas import formula
from ...formulas.formats import FLOATS
from ..asking import at
from . import answers

_TOKENS = 32 * 8_192
_MICRO = Setup(batch=1, sequence=1_024, precision="bf16-mixed")
_SEVEN = 7 * 10**9


def _cache(heads="kv_heads", tensors=2, width=2):
    m = model("llama-3.1-70b")
    return tensors * m.layers * getattr(m, heads) * m.head_width * width * _TOKENS


def _vanishing(new=0.05, share=2, name="smallest"):
    return sqrt(formula(f"formats.{name}")(**FLOATS["fp16"]) / share / new)


def _stage(micro_batches=4, blocks=12, setup=_MICRO):
    return micro_batches * blocks * at("activations.block", "gpt2-xl", setup)


ANSWERS = {
    "46.1": answers(_cache, heads=lambda: _cache("heads"), one=lambda: _cache(tensors=1), fp32=lambda: _cache(width=4)),
    "46.2": answers(
        lambda: 10**6 * _vanishing(),
        usual=lambda: 10**6 * _vanishing(new=0.001),
        share=lambda: 10**6 * _vanishing(share=1),
        normal=lambda: 10**6 * _vanishing(name="smallest_normal"),
        new=lambda: 10**6 * _vanishing(new=1),
    ),
    "46.3": answers(
        _stage,
        last=lambda: _stage(1),
        all_blocks=lambda: _stage(4, 48),
        fp32=lambda: _stage(setup=_MICRO.replace(precision="fp32")),
    ),
    "46.4": answers(
        _SEVEN * 2 + _SEVEN * 14 / 8,
        zero1=_SEVEN * 4 + _SEVEN * 12 / 8,
        zero3=_SEVEN * 16 / 8,
        master=_SEVEN * 6 + _SEVEN * 10 / 8,
        published=56 * 10**9,
    ),
}
