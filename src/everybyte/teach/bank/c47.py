"""Exercises of chapter 47: what a number claims, what a table adds up to, where two formulas meet."""

from fractions import Fraction

from ...catalog import claims
from ...catalog.claims import Stated
from ...formulas.symbols import A, H
from . import Case, Run, Setup, answers, program

GB = 10**9
#: GB of article 4's second table: its rows, and the sum that stands under them.
*ROWS, TOTAL = map(float, claims()["4.four-card-sum"].numbers or ())
#: What ZeRO-2 shards.
SHARDED = ("gradients", "optimizer.states", "optimizer.master")


def most():
    span = Stated.read("30 GB")
    return (span.high + span.slack[1]) * GB


def states(sharded=SHARDED, whole=("weights",), gpus=16):
    """Bytes of 7 billion parameters' states on one of `gpus`, from those sharded and those kept whole."""
    paper = Run(None, Setup(precision="bf16-master"))
    found = {name: int(paper.at(name, {"parameters": 7 * GB})) for name in (*sharded, *whole)}
    return sum(found[name] for name in whole) + sum(found[name] for name in sharded) // gpus


def statements():
    pairs = (
        ("28", "28.4"), ("28", "28.6"), ("30", "33"), ("30", "34"), ("280", "284"), ("280", "290"), ("1.55", "1.554"),
        ("1.55", "1.56"), ("16 to 20", "20.4"), ("16 to 20", "21"), ("16 to 20", "15.5"), ("20+", "90"), ("20+", "17"),
    )  # fmt: skip
    for text, value in pairs:
        yield Case(f"{text} against {value}", (text, Fraction(value)), Stated.read(text).holds(Fraction(value)))


def rule(stated, value, *, cap=True, zeros=True, ends=True, opened=True):

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


def agree(given, right):
    return given is right


ANSWERS = {
    "47.1": answers(most, five=35 * GB, three=30.5 * 10**9, least=27 * GB),
    "47.2": answers(round((sum(ROWS) - TOTAL) * GB), sum=round(sum(ROWS) * GB), left=28 * GB),
    "47.3": answers(
        states,
        gpus=8,
        zero1={"sharded": SHARDED[1:], "whole": ("weights", "gradients")},
        zero3={"sharded": ("weights", *SHARDED), "whole": ()},
        master={"sharded": SHARDED[:2]},
    ),
    "47.4": answers(4 * H / A, upside_down=A / (4 * H), width=H / A, bytes=2 * H / A, heads=4 * H),
    "47.5": program(rule, statements, agree, cap=False, zeros=False, ends=False, opened=False),
}
