"""Exercises of lab 4: FSDP."""

from . import answers, run

DDP = run("gpt2", gpus=64, precision="bf16-mixed")
ZERO3 = DDP.having(sharding="zero3")
P = DDP.parameters

ANSWERS = {
    "04.1": answers(ZERO3.phase("rest", gpus=8), gradients=2 * P, undivided=12 * P, bf16=10 * P / 8),
    "04.2": answers(
        DDP.peak(sharding="zero2") - ZERO3.peak(),
        buffer=12 * ZERO3.step().parts["communication"],
        ddp=DDP.peak() - ZERO3.peak(),
    ),
    "04.3": answers(4 * 16, eight=32, one_byte=16),
}
