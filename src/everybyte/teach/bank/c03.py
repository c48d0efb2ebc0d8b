"""Exercises of lab 3: flash attention."""

from ...ask.setup import Setup
from ...catalog import model
from ...theory.budget import budget
from . import answers

_GIB = 2**30


def _longest(limit, attention="eager", step=512):
    """The longest sequence, a multiple of `step`, with which one sequence of GPT-2 stays within `limit` bytes."""
    length = 0
    while True:
        setup = Setup(batch=1, sequence=length + step, precision="bf16-mixed", attention=attention)
        longer = model("gpt2").replace(positions=length + step)
        if budget(longer, setup, rounding=512).peak > limit:
            return length
        length += step


ANSWERS = {
    "03.1": answers(4 * 12 * 8192**2, one_head=4 * 8192**2, all_layers=12 * 4 * 12 * 8192**2, bf16=2 * 12 * 8192**2),
    "03.2": answers(4 * 12 * 8192, entries=4 * 12 * 8192**2, one_head=4 * 8192, bf16=2 * 12 * 8192),
    "03.3": answers(lambda: _longest(24 * _GIB), next=lambda: _longest(24 * _GIB) + 512),
}
