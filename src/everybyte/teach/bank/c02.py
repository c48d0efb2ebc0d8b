"""Exercises of lab 2: checkpointing."""

from . import answers, run

NONE, SELECTIVE = run("gpt2", precision="bf16-mixed"), {"checkpointing": "selective"}


def flops(checkpointing):
    parts = ("flops.forward", "flops.backward", "checkpoint.flops")
    return sum(int(NONE.at(part, checkpointing=checkpointing)) for part in parts)


ANSWERS = {
    "02.1": answers(
        NONE.at("checkpoint.inputs", checkpointing="full"), bf16=2 * 12 * 8 * 1024 * 768, one_block=4 * 8 * 1024 * 768
    ),
    "02.2": answers((flops("full") / flops("none") - 1) * 100, third=100 / 3),
    "02.3": answers(NONE.falls(SELECTIVE, attention="eager"), flash=NONE.falls(SELECTIVE)),
}
