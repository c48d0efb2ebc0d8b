"""Bytes along one letter: the function is found, whatever its divisor and rest, or none is."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everybyte.derivation import Range
from everybyte.derivation.growing import grows
from everybyte.deriving.lines import Line, Unsure
from everybyte.step.amount import Amount

WIDE = Range(16, 131_072)
START = [48, 64, 97, 128, 150, 191, 224, 225, 256, 310]


def solved(functions, within=WIDE):
    """(the amounts that the functions' values give, one after another along one line; how many sizes it took)."""
    sizes = [n for n in START if n in within] or within.some([], 10)
    while True:
        line = Line("R", sizes, within)
        try:
            return [line.solve([Fraction(f(n)) for n in sizes]) for f in functions], len(sizes)
        except Unsure as error:
            assert error.args[0] not in sizes and error.args[0] in within
            sizes = sorted([*sizes, error.args[0]])


FUNCTIONS = {
    "pixels": lambda r: 12 * r * r,
    "patches": lambda r: 3072 * (r // 16) ** 2,
    "with a class": lambda r: 64 * ((r // 14) ** 2 + 1),
    "scores": lambda r: 8 * ((r // 16) ** 2 + 1) ** 2,
    "strides": lambda r: 32 * (-(-r // 32)) ** 2,
    "a rest of its own": lambda r: 100 * ((r + 2) // 4 - 2) ** 2,
    "no padding": lambda r: 4 * (r - 6) ** 2,
    "a large divisor": lambda r: 7 * ((r + 90) // 128),
    "nothing": lambda r: 5,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_found(name):
    (form,), looked = solved([FUNCTIONS[name]])
    for r in (16, 17, 31, 47, 113, 223, 240, 517, 1000, 99_999):
        assert form.at({"R": r}) == FUNCTIONS[name](r), (name, r)
    assert looked < 30 and Amount.read(form.as_list()) == form


@settings(max_examples=8, deadline=None)
@given(by=st.integers(2, 64), power=st.integers(1, 2), data=st.data())
def test_any_divisor_and_rest_are_found(by, power, data):
    plus = data.draw(st.integers(0, by - 1))
    (amount,), _ = solved([lambda r: 4 * ((r + plus) // by) ** power + 3])
    assert all(amount.at({"R": r}) == 4 * ((r + plus) // by) ** power + 3 for r in range(16, 600))


def test_what_is_padded_and_what_is_of_several_divisors_is_found_beside_what_they_are_made_of():
    tokens = FUNCTIONS["with a class"]
    functions = [
        tokens,
        lambda r: -(-(tokens(r) // 64) // 32) * 32,
        FUNCTIONS["strides"],
        lambda r: 9 * (r // 14) ** 2 + 2 * (-(-r // 32)) ** 2 + 1,
    ]
    found, _ = solved(functions)
    for f, amount in zip(functions, found, strict=True):
        assert [amount.at({"R": r}) for r in (17, 100, 223, 777)] == [f(r) for r in (17, 100, 223, 777)]


def test_of_multiples_alone_the_letter_itself_is_enough():
    (amount,), looked = solved([FUNCTIONS["patches"]], Range(16, 4096, 16))
    assert amount.text() == "12*R*R" and looked < 12


def test_what_is_no_such_function_is_none():
    assert solved([lambda r: r * r % 1009])[0] == [None]


def test_what_grows_is_known():
    for name, function in FUNCTIONS.items():
        (amount,), _ = solved([function])
        assert grows(amount, "R", 16), name
    (falls,), _ = solved([lambda r: 10**9 - r])
    assert not grows(falls, "R", 16)
