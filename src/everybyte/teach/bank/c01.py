"""Exercises of lab 1: mixed precision."""

from . import answers, run

FP32, MIXED = run("gpt2"), run("gpt2", precision="bf16-mixed")
P, CASTS = FP32.parameters, MIXED.step().parts["casts"]


def rise(precision="bf16-mixed", attention="eager"):
    return -run("gpt2-xl", attention=attention).falls({"precision": precision})


ANSWERS = {
    "01.1": answers(MIXED.at("phase.rest") - FP32.at("phase.rest"), weights=-2 * P, everything=-6 * P, casts=CASTS),
    "01.2": answers(CASTS, positions=2 * P, head=CASTS - 2 * 50257 * 768, fp32=2 * CASTS),
    "01.3": answers(rise, precision="bf16", attention="flash"),
}
