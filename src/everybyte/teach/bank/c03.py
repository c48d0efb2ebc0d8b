"""Exercises of lab 3: flash attention."""

from itertools import count

from . import Run, Setup, answers, model


def longest(limit=24 * 2**30, step=512):
    """The longest sequence, a multiple of `step`, with which one sequence of GPT-2 stays within `limit` bytes."""
    for sequence in count(step, step):
        setup = Setup(batch=1, sequence=sequence, precision="bf16-mixed", attention="eager")
        if Run(model("gpt2").replace(positions=sequence), setup).peak(rounding=512) > limit:
            return sequence - step


ANSWERS = {
    "03.1": answers(4 * 12 * 8192**2, one_head=4 * 8192**2, all_layers=12 * 4 * 12 * 8192**2, bf16=2 * 12 * 8192**2),
    "03.2": answers(4 * 12 * 8192, entries=4 * 12 * 8192**2, one_head=4 * 8192, bf16=2 * 12 * 8192),
    "03.3": answers(longest(), next=longest() + 512),
}
