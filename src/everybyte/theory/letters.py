"""Whole numbers that remember how they were made: the step is run once on numbers, and read as formulas.

A `Letter` is an ordinary whole number, so the program of a step can ask whether a dimension is 1 or a head a multiple of
eight. It also carries its expression, as text in the letters of the notation: `B*S*3*H`. The same text is evaluated on
other whole numbers (a budget), on arrays of them (a map), on sympy's symbols (a formula), and in the browser.
"""

from functools import lru_cache
from operator import floordiv


class Letter(int):
    """A whole number with its expression. Products, sums, differences and quotients with whole numbers are letters again."""

    text: str

    def __new__(cls, value, text=None):
        self = super().__new__(cls, value)
        self.text = str(int(value)) if text is None else text
        return self

    def __mul__(self, other):
        if other == 1 and type(other) is int:
            return self
        return Letter(int(self) * int(other), f"{factor(self)}*{factor(other)}")

    def __rmul__(self, other):
        if other == 1:
            return self
        return Letter(int(other) * int(self), f"{factor(other)}*{factor(self)}")

    def __add__(self, other):
        return Letter(int(self) + int(other), f"{text(self)}+{text(other)}") if other else self

    def __radd__(self, other):
        return Letter(int(other) + int(self), f"{text(other)}+{text(self)}") if other else self

    def __sub__(self, other):
        if (found := text(self)).startswith(before := f"{text(other)}+"):
            return Letter(int(self) - int(other), found.removeprefix(before))
        return Letter(int(self) - int(other), f"{text(self)}-{factor(other)}") if other else self

    def __rsub__(self, other):
        return Letter(int(other) - int(self), f"{text(other)}-{factor(self)}")

    def __neg__(self):
        return 0 - self

    def __floordiv__(self, other):
        return over(self, other)


def text(number) -> str:
    """The expression of a whole number."""
    return number.text if type(number) is Letter else str(number)


def factor(number) -> str:
    """The expression, in parentheses where it is a sum."""
    return _factor(text(number))


@lru_cache(2**16)
def _factor(found: str) -> str:
    depth = 0
    for sign in found:
        depth += (sign == "(") - (sign == ")")
        if sign in "+-" and not depth:
            return f"({found})"
    return found


def product(numbers) -> Letter:
    """The product of whole numbers."""
    value, parts = 1, []
    for number in numbers:
        value *= int(number)
        if number != 1 or type(number) is Letter:
            parts.append(factor(number))
    return Letter(value, "*".join(parts) or "1")


def over(number, divisor) -> Letter:
    """A quotient, rounded down; what both have as a factor is left out."""
    above, below = list(_split(factor(number))), []
    for one in _split(factor(divisor)):
        if one in above:
            above.remove(one)
        elif one != "1":
            below.append(one)
    left = "*".join(above) or "1"
    return Letter(int(number) // int(divisor), f"whole({left},{'*'.join(below)})" if below else left)


@lru_cache(2**14)
def _split(found: str) -> tuple[str, ...]:
    """The factors of an expression, as texts."""
    parts, depth = [""], 0
    for sign in found:
        depth += (sign == "(") - (sign == ")")
        if sign == "*" and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    return tuple(parts)


def up(number, divisor) -> Letter:
    """A quotient rounded up."""
    return Letter(-(-int(number) // int(divisor)), f"up({text(number)},{text(divisor)})")


def least(*numbers) -> Letter:
    """The smallest of some whole numbers."""
    return Letter(min(map(int, numbers)), f"least({','.join(map(text, numbers))})")


def most(*numbers) -> Letter:
    """The largest of some whole numbers."""
    return Letter(max(map(int, numbers)), f"most({','.join(map(text, numbers))})")


def _up(a, b):
    return -(-a // b)


#: What the text of sizes calls.
HELPERS = {"up": _up, "whole": floordiv, "least": min, "most": max}
