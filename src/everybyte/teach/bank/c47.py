"""Exercises of chapter 47: what a number claims, what a table adds up to, where two formulas meet."""

from fractions import Fraction

from ...ask.setup import Setup
from ...catalog import claims
from ...catalog.claims import Stated
from ...formulas import formula
from ...formulas.symbols import A, H
from ..program import Case
from . import answers, program

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


def _rule(stated, value, *, cap=True, zeros=True, ends=True, opened=True):
    """The answer, or what it would be without the cap, without rounding zeros, for ranges without rounding, or with a closed end."""

    def width(text):
        number = Fraction(text)
        place = Fraction(1, 10 ** len(text.partition(".")[2]))
        while zeros and number and number % (10 * place) == 0:
            place *= 10
        return min(place / 2, number / 10) if cap else place / 2

    low, _, high = stated.removesuffix("+").partition(" to ")
    rounding = width if ends or not high else lambda text: 0
    above = value >= Fraction(low) - rounding(low)
    if stated.endswith("+") and opened:
        return above
    return above and value <= Fraction(high or low) + rounding(high or low)


ANSWERS = {
    "47.1": answers(_most, five=35 * _GB, three=30.5 * 10**9, least=27 * _GB),
    "47.2": answers(_missing, sum=lambda: round(sum(_rows()[0]) * _GB), left=28 * _GB),
    "47.3": answers(
        lambda: _states(("gradients", *_OPTIMIZER), ("weights",), 16),
        eight=lambda: _states(("gradients", *_OPTIMIZER), ("weights",)),
        zero1=lambda: _states(_OPTIMIZER, ("weights", "gradients"), 16),
        zero3=lambda: _states(("weights", "gradients", *_OPTIMIZER), (), 16),
        master=lambda: _states(("gradients", "optimizer.states"), ("weights",), 16),
    ),
    "47.4": answers(4 * H / A, upside_down=A / (4 * H), width=H / A, bytes=2 * H / A, heads=4 * H),
    "47.5": program(
        _rule, _statements, lambda given, right: given is right, cap=False, zeros=False, ends=False, opened=False
    ),
}
