"""Exercises of the first notebook: two numbers, one expression."""

from ...formulas.symbols import A, H
from . import answers, model

LARGE = model("gpt2-large")
P = LARGE.parameters


def total(linear, square):
    """Article 1's sum for this run, with its linear activations and its scores over these numbers."""
    tokens = 8 * 1024
    block = 34 * tokens * LARGE.width // linear + 5 * tokens * LARGE.heads * 1024 // square
    return 18 * P + LARGE.layers * block


ANSWERS = {
    "00.2": answers(16 * P, twelve=12 * P, eight=8 * P, eighteen=18 * P),
    "00.3": answers(
        34 * H / (5 * A), upside_down=5 * A / (34 * H), heads=34 * H / 5, width=34 / (5 * A), one=H / (5 * A)
    ),
    "00.4": answers(
        total(2, 4), everything=total(1, 1) // 2, linear=total(2, 2), scores=total(1, 4), quartered=total(4, 4)
    ),
}
