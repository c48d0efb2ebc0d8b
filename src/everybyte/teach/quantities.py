"""Read the reader's numbers: text with a unit, plain numbers, sympy's. Text is parsed, never evaluated."""

import re
from fractions import Fraction
from numbers import Rational, Real

from .. import units

_LONGEST = 60
_LARGEST = 10**300
_NUMBER = re.compile(r"[-+]?(?:\d[\d,_]*(?:\.[\d,]*)?|\.\d+)(?:[eE][-+]?\d{1,3})?", re.ASCII)
#: A plain number from here on is a count of bytes even where the exercise asks for GiB.
_SURELY_BYTES = 2**20
#: Before and between the numbers of a guess; what people write for a unit; thousands of what is no memory.
_ABOUT = re.compile(r"^(?:~|≈|about|around|roughly|ca\.?)\s*", re.IGNORECASE)
_TO = re.compile(r"\s*(?:-|\u2013|\bto\b)\s*")
_SAID = {unit.lower(): unit for unit in units.UNITS} | {u[0].lower(): u for u in units.UNITS if u.endswith("iB")}
_TIMES = {"k": 10**3, "m": 10**6, "b": 10**9}


def missing(answer: object) -> bool:
    """Whether the reader has not answered yet: `...`, None or blank text."""
    return answer is ... or answer is None or (isinstance(answer, str) and answer.strip() in ("", "..."))


def read(answer: object, unit: str) -> Fraction:
    """The reader's number: in bytes where `unit` is one of `units.UNITS`, else in `unit`.

    In an exercise in GiB or another unit of bytes, plain numbers from 2**20 on are bytes.

    Raises:
        ValueError: a sentence for the reader, where there is no such number.
    """
    memory = unit in units.UNITS
    if isinstance(answer, str):
        return _read_text(answer.strip(), unit)
    value = _plain(answer)
    if memory and abs(value) < _SURELY_BYTES:
        return value * units.UNITS[unit]
    return value


def guess(answer: object, unit: str) -> Fraction:
    """A guess, as `read` reads a number; and as people guess: "~20 GiB", "20 g", "15-20 GiB" (its middle), "20k tokens".

    Raises:
        ValueError: as `read`.
    """
    if not isinstance(answer, str):
        return read(answer, unit)
    text = _ABOUT.sub("", answer.strip())
    first = _NUMBER.match(text)
    if first and (to := _TO.match(text, first.end())):
        rest = text[to.end() :]
        last = _NUMBER.match(rest)
        if not last:
            raise ValueError("after the range's first number there is no second")
        return (guess(first[0] + rest[last.end() :], unit) + guess(rest, unit)) / 2
    if first:
        said = text[first.end() :].strip()
        if unit in units.UNITS:
            text = f"{first[0]} {_SAID.get(said.lower(), said)}"
        elif said[:1].lower() in _TIMES and said[1:].strip() in ("", unit, unit.rstrip("s")):
            return read(first[0], unit) * _TIMES[said[0].lower()]
    return read(text, unit)


def show(value: float | Fraction, unit: str) -> str:
    """`value`, in bytes where `unit` is one of `units.UNITS`, with its unit: "11.61 GiB", "124,439,808 parameters"."""
    if unit in units.UNITS:
        scaled = Fraction(value) / units.UNITS[unit]
        digits = f"{float(scaled):,.2f}" if unit != "B" and abs(scaled) >= Fraction(1, 100) else _digits(scaled)
    else:
        digits = _digits(Fraction(value))
    return f"{digits} {unit}".rstrip()


def _digits(value: Fraction) -> str:
    if value.denominator == 1 and abs(value) < 10**15:
        return f"{int(value):,}"
    return f"{float(value):.6g}"


def _read_text(text, unit):
    if len(text) > _LONGEST:
        raise ValueError("this text is too long to be a number with its unit")
    number = _NUMBER.match(text)
    if not number:
        raise ValueError("this text does not begin with a number")
    rest = text[number.end() :].strip()
    digits = units.digits(number[0])
    if unit in units.UNITS:
        if rest.lower() in ("byte", "bytes"):
            rest = "B"
        if not rest:
            return read(Fraction(digits), unit)
        if rest in units.UNITS:
            return _within(Fraction(digits) * Fraction(units.parse(f"1 {rest}")))
        raise ValueError(f"the unit {rest!r} after the number is not one of {', '.join(units.UNITS)}")
    if rest.rstrip("s") not in ("", unit.rstrip("s")):
        raise ValueError(f"the text after the number is not {unit!r}" if unit else "there is text after the number")
    return _within(Fraction(digits))


def _plain(answer):
    if isinstance(answer, bool):
        raise ValueError("True and False are not numbers here")
    if isinstance(answer, Rational):
        return _within(Fraction(int(answer.numerator), int(answer.denominator)))
    if isinstance(answer, Real):
        value = float(answer)
        if value != value or abs(value) == float("inf"):
            raise ValueError("this is not a finite number")
        return _within(Fraction(value))
    if hasattr(answer, "free_symbols"):
        from .expressions import constant

        return _within(constant(answer))
    raise ValueError(f"this is of type {type(answer).__name__}, not a number")


def _within(value):
    if abs(value) > _LARGEST:
        raise ValueError("this number is too large to be an answer")
    return value
