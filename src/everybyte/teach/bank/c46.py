"""Exercises of chapter 46: the questions people are asked."""

from math import sqrt

from ...formulas.formats import FLOATS
from . import answers, formula, model, run

XL = run("gpt2-xl", batch=1, sequence=1_024, precision="bf16-mixed")


def cache(heads="kv_heads", tensors=2, width=2):
    m = model("llama-3.1-70b", code="reference")
    return tensors * m.layers * getattr(m, heads) * m.head_width * width * 32 * 8_192


def vanishing(new=0.05, share=2, name="smallest"):
    """The gradient below which the new part of Adam's average of squares vanishes in fp16, in millionths."""
    return 10**6 * sqrt(formula(f"formats.{name}")(**FLOATS["fp16"]) / share / new)


def stage(micro_batches=4, blocks=12, precision="bf16-mixed"):
    return micro_batches * blocks * XL.at("activations.block", precision=precision)


def states(whole, sharded):
    return 7 * 10**9 * (whole + sharded / 8)


ANSWERS = {
    "46.1": answers(cache, heads="heads", tensors=1, width=4),
    "46.2": answers(vanishing, usual={"new": 0.001}, share=1, name="smallest_normal", new=1),
    "46.3": answers(stage, micro_batches=1, blocks=48, precision="fp32"),
    "46.4": answers(
        states(2, 14), zero1=states(4, 12), zero3=states(0, 16), master=states(6, 10), published=56 * 10**9
    ),
}
