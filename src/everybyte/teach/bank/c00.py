"""Exercises of the first notebook: two numbers, one expression."""

from ...catalog import model
from ...formulas.symbols import A, H
from ..asking import parameters
from . import answers


def _each(count):
    return lambda: count * parameters("gpt2-large")


def _article_1(linear, square):
    """Article 1's sum for this run, with its linear activations and its scores over these numbers."""
    large = model("gpt2-large")
    tokens = 8 * 1024
    parts = (34 * tokens * large.width // linear, 5 * tokens * large.heads * 1024 // square)
    return lambda: 18 * large.parameters + large.layers * sum(parts)


ANSWERS = {
    "00.2": answers(_each(16), twelve=_each(12), eight=_each(8), eighteen=_each(18)),
    "00.3": answers(
        34 * H / (5 * A), upside_down=5 * A / (34 * H), heads=34 * H / 5, width=34 / (5 * A), one=H / (5 * A)
    ),
    "00.4": answers(
        _article_1(2, 4),
        everything=lambda: _article_1(1, 1)() // 2,
        linear=_article_1(2, 2),
        scores=_article_1(1, 4),
        quartered=_article_1(4, 4),
    ),
}
