"""Exercises of the first notebook: two numbers, one expression."""

from ...catalog import model
from ...formulas.symbols import A, H
from ..exercise import Exercise


def _each(count):
    return lambda: count * model("gpt2-large").parameters


def _article_1(linear, square):
    """Article 1's sum for this run, with its linear activations and its scores over these numbers."""
    large = model("gpt2-large")
    tokens = 8 * 1024
    parts = (34 * tokens * large.width // linear, 5 * tokens * large.heads * 1024 // square)
    return lambda: 18 * large.parameters + large.layers * sum(parts)


EXERCISES = [
    Exercise(
        id="00.2",
        title="Article 2's 16 bytes per parameter, for GPT-2 large",
        difficulty=1,
        minutes=2,
        unit="GiB",
        decimals=2,
        answer=_each(16),
        mistakes={
            "these are 12 bytes per parameter: the master weights are missing, or one of the two moments": _each(12),
            "the two moments are missing: these are 8 bytes per parameter": _each(8),
            "these are article 1's 18 bytes per parameter": _each(18),
        },
        hints=(
            "The cell above that names the run also shows how many parameters there are.",
            "Multiply by 16, then divide by 1024 three times: a GiB is 1024 × 1024 × 1024 bytes.",
        ),
    ),
    Exercise(
        id="00.3",
        title="The sequence length from which attention's square leads article 1's activations",
        difficulty=2,
        minutes=5,
        accepts="expression",
        answer=lambda: 34 * H / (5 * A),
        mistakes={
            "this is turned upside down": lambda: 5 * A / (34 * H),
            "the heads are missing: each of them has its own square of scores": lambda: 34 * H / 5,
            "the width is missing": lambda: 34 / (5 * A),
            "this is where the square term is one, not where the two are equal": lambda: H / (5 * A),
        },
        hints=(
            "Per layer, the formula has two terms: 34 B S H and 5 B A S². Set them equal.",
            "The batch and one S stand on both sides and cancel; what is left is linear in S.",
        ),
    ),
    Exercise(
        id="00.4",
        title="Article 1's answer, at half the sequence",
        difficulty=2,
        minutes=3,
        unit="GB",
        decimals=1,
        answer=_article_1(2, 4),
        mistakes={
            "this is half of everything, but the model's states do not shrink with the sequence": lambda: (
                _article_1(1, 1)() // 2
            ),
            "here all activations are halved, but the scores go with the square of the sequence": _article_1(2, 2),
            "the scores are quartered, but the other activations have not been halved": _article_1(1, 4),
            "here all activations are quartered, but only the scores go with the square": _article_1(4, 4),
        },
        hints=(
            "The recipe is a function of a model and a run, and `run.replace(sequence=512)` is the run that is asked for.",
            "`total(article_1(large, run.replace(sequence=512)))`: of its parts only the activations change.",
        ),
    ),
]
