"""Exercises of lab 5: optimizers and adapters."""

from . import Lora, answers, run

FULL = run("gpt2", precision="bf16-mixed", optimizer_impl="fused")
LORA = FULL.having(adapters=Lora(16, base="bf16"))
NF4 = {"quantization": "nf4"}
STATES = LORA.part("optimizer", "rest")

ANSWERS = {
    "05.1": answers(
        8 * 16 * 12 * (4 + 2 + 5 + 5) * 768, one=STATES / 2, full=FULL.part("optimizer", "rest"), all_bytes=2 * STATES
    ),
    "05.2": answers(
        -LORA.falls(NF4), rest=LORA.phase("rest") - LORA.phase("rest", **NF4), full=FULL.peak() - LORA.peak(**NF4)
    ),
    "05.3": answers(
        FULL.falls({"optimizer": "adamw8bit"}),
        lion=FULL.falls({"optimizer": "lion", "optimizer_impl": "loop"}),
        states=FULL.part("optimizer", "rest", optimizer="adamw8bit"),
    ),
}
