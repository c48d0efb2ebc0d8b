"""Exercises of chapter 47: what a number claims, what a table adds up to, where two formulas meet."""

from fractions import Fraction

from ...catalog import claims
from ...catalog.claims import Stated
from ...formulas import formula
from ...formulas.symbols import A, H
from ...setup import Setup
from ..exercise import Exercise
from ..program import Case, Program

_GB = 10**9


def _most():
    span = Stated.read("30 GB")
    return (span.high + span.slack[1]) * _GB


def _rows():
    """GB of article 4's second table: its rows, and the sum that stands under them."""
    *rows, total = map(float, claims()["4.four-card-sum"].numbers)
    return rows, total


def _missing():
    rows, total = _rows()
    return round((sum(rows) - total) * _GB)


def _states(split, kept, gpus=8):
    """Bytes of 7 billion parameters' states on one of `gpus`, from those split and those kept whole."""
    found = dict.fromkeys(("weights", "gradients", "optimizer.states", "optimizer.master"))
    setup = Setup(precision="bf16-master")
    found = {name: int(formula(name).at(None, setup, parameters=7 * _GB)) for name in found}
    return sum(found[n] for n in kept) + sum(found[n] for n in split) // gpus


_OPTIMIZER = ("optimizer.states", "optimizer.master")


def _statements():
    pairs = (
        ("28", "28.4"), ("28", "28.6"), ("30", "33"), ("30", "34"), ("280", "284"), ("280", "290"), ("1.55", "1.554"),
        ("1.55", "1.56"), ("16 to 20", "20.4"), ("16 to 20", "21"), ("16 to 20", "15.5"), ("20+", "90"), ("20+", "17"),
    )  # fmt: skip
    for text, value in pairs:
        yield Case(f"{text} against {value}", (text, Fraction(value)), Stated.read(text).holds(Fraction(value)))


def _rule(cap=True, zeros=True, ends=True, opened=True):
    """What it would be without the cap, without rounding zeros, for ranges without rounding, or with a closed end."""

    def width(text):
        number = Fraction(text)
        digits = text.partition(".")[2]
        place = Fraction(1, 10 ** len(digits))
        while zeros and number and number % (10 * place) == 0:
            place *= 10
        return min(place / 2, number / 10) if cap else place / 2

    def holds(stated, value):
        low, _, high = stated.removesuffix("+").partition(" to ")
        rounding = width if ends or not high else lambda text: 0
        above = value >= Fraction(low) - rounding(low)
        if stated.endswith("+") and opened:
            return above
        return above and value <= Fraction(high or low) + rounding(high or low)

    return holds


EXERCISES = [
    Exercise(
        id="47.1",
        title="The largest computed value for which a stated 30 GB still holds",
        difficulty=1,
        minutes=3,
        unit="GB",
        answer=_most,
        mistakes={
            "half of the last digit that is not zero would be 5 GB, but a tenth of the number is less": 35 * _GB,
            "the zero may be rounding as well: the last digit that counts is the three": 30.5 * 10**9,
            "that is the least value, not the largest": 27 * _GB,
        },
        hints=(
            "Two bounds, and the smaller one counts: half of the last digit other than zero, and a tenth of the number.",
            "In 30, the last digit other than zero stands for tens; a tenth of 30 is 3.",
        ),
    ),
    Exercise(
        id="47.2",
        title="What article 4's second table leaves out when it adds up its rows",
        difficulty=1,
        minutes=4,
        unit="GB",
        decimals=1,
        answer=_missing,
        mistakes={
            "that is the rows' sum; by how much is it more than the sum in the table?": lambda: round(
                sum(_rows()[0]) * _GB
            ),
            "that is what the article says is left of 80 GB": 28 * _GB,
        },
        hints=(
            'The rows stand in `eb.claims()["4.four-card-sum"].numbers`, with the sum that the table gives as the last.',
            "Add the first six numbers, then take away the 52 GB.",
        ),
    ),
    Exercise(
        id="47.3",
        title="Each of 16 GPUs' states of 7 billion parameters under ZeRO-2, bf16 with a master copy",
        difficulty=2,
        minutes=6,
        unit="GB",
        decimals=3,
        answer=lambda: _states(("gradients", *_OPTIMIZER), ("weights",), 16),
        mistakes={
            "that is for 8 GPUs": lambda: _states(("gradients", *_OPTIMIZER), ("weights",)),
            "that is ZeRO-1: the gradients are split too": lambda: _states(_OPTIMIZER, ("weights", "gradients"), 16),
            "that is ZeRO-3: the weights stay whole": lambda: _states(("weights", "gradients", *_OPTIMIZER), (), 16),
            "the master copy is missing": lambda: _states(("gradients", "optimizer.states"), ("weights",), 16),
        },
        hints=(
            "Of the 16 bytes, two are weights, which ZeRO-2 keeps whole. What happens to the other fourteen?",
            "7 billion times (2 + 14 / 16) bytes.",
        ),
    ),
    Exercise(
        id="47.4",
        title="The sequence from which on article 3's code counts more for the scores than for the wide layer",
        difficulty=2,
        minutes=5,
        accepts="expression",
        answer=lambda: 4 * H / A,
        mistakes={
            "this is turned upside down": lambda: A / (4 * H),
            "the wide layer has four times the width": lambda: H / A,
            "both are in 16 bits: the twos cancel": lambda: 2 * H / A,
            "each head has a square of its own": lambda: 4 * H,
        },
        hints=(
            "Per layer its code has 2 B A S² for the scores, and 2 B S times 4 H for the wide layer.",
            "Set the two equal and divide by 2 B S.",
        ),
    ),
    Program(
        id="47.5",
        title="A function: whether a value is what a number states",
        difficulty=2,
        minutes=12,
        call="holds(stated, value)",
        cases=_statements,
        agree=lambda given, right: given is right,
        answer=_rule,
        mistakes={
            "the width has a cap, a tenth of the number": lambda: _rule(cap=False),
            "zeros at the end may be rounding too": lambda: _rule(zeros=False),
            "both ends of a range have a width": lambda: _rule(ends=False),
            "`20+` is open above": lambda: _rule(opened=False),
        },
        hints=(
            "From the text to the place of its last digit other than zero; half of it, but at most a tenth of the number.",
            'With `Fraction(text)`; a range is two numbers around " to ", each with a width of its own; "+" has no upper end.',
        ),
    ),
]
