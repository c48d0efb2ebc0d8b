"""How numbers are marked: rows of an exercise, which Python's `check` and the card in a page without a kernel read alike."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from .. import units
from .quantities import show
from .texts import sentence

_CLOSE = Fraction(1, 200)


@dataclass(frozen=True)
class Row:
    """What is said of the numbers from `low` to `high`, both included; None: without a bound. right: they are accepted."""

    low: Fraction | None
    high: Fraction | None
    right: bool
    why: str

    def __contains__(self, number):
        return (self.low is None or self.low <= number) and (self.high is None or number <= self.high)

    def data(self) -> list:
        """The row for JavaScript, whose numbers are not exact: a bound is the text of a fraction."""
        return [*(None if bound is None else str(bound) for bound in (self.low, self.high)), self.right, self.why]


def rows(exercise) -> Iterator[Row]:
    """The rows of an exercise on a number, computed as they are asked for: the first that has the reader's number holds."""
    right, unit = exercise.right(), exercise.unit
    exact = f", exactly {units.exact(int(right))}" if unit in units.UNITS and unit != "B" else ""
    yield _about(right, exercise.slack(right), sentence(show(right, unit) + exact), right=True)
    wrong = [*exercise.wrong_numbers(), *_usual(exercise, right)]
    size = "It is too large." if right < 0 else "It is too small."
    named = next((sentence(message) for message, number in wrong if number == 0), size)
    yield _about(Fraction(0), 0, named)  # zero is near every small quotient, and no mistake of units
    for message, number in wrong:
        yield _about(number, exercise.slack(number), sentence(message))
    yield _about(right, abs(right) * _CLOSE, "Close: mind the rounding, and what is exact.")
    yield Row(None, right, False, "It is too small.")
    yield Row(right, None, False, "It is too large.")


def _about(number, slack, why, right=False):
    return Row(number - slack, number + slack, right, why)


def _usual(exercise, right):
    """(what went wrong, the wrong number) of mistakes that are made anywhere."""
    for name, factor in exercise.factors.items():
        yield f"the {name} is missing", right / factor
        yield f"the {name} is counted twice", right * factor
    yield "the sign is wrong", -right
    if exercise.unit in units.UNITS:
        yield from _of_units(right)
    yield "half of it is missing: is there one thing where there are two?", right / 2
    yield "it is twice as much: is one thing counted twice?", right * 2


def _of_units(right):
    for decimal, binary in (("GB", "GiB"), ("MB", "MiB"), ("kB", "KiB")):
        ratio = Fraction(units.UNITS[binary], units.UNITS[decimal])
        yield f"{decimal} for {binary}: divided by {units.UNITS[decimal]:,}, but called {binary}", right * ratio
        yield f"{binary} for {decimal}: divided by {units.UNITS[binary]:,}, but called {decimal}", right / ratio
    yield "bits for bytes: a byte has eight bits", right * 8
    yield "divided by eight: the numbers were bytes already, not bits", right / 8
    for power in (1024, 1024**2, 1024**3):
        yield "the unit's prefix is off, by a power of 1,024", right * power
        yield "the unit's prefix is off, by a power of 1,024", right / power
