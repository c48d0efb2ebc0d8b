"""Read the reader's numbers: text with a unit, plain numbers, sympy's. Text is parsed, never evaluated."""

import re
from fractions import Fraction
from functools import cache
from numbers import Rational, Real

from .. import units

_LONGEST = 60
_LARGEST = 10**300
#: Bytes of a guess, at most.
LARGEST_MEMORY = 2**60
#: A plain number from here on is a count of bytes even where the exercise asks for GiB.
_SURELY_BYTES = 2**20
#: How a number is written, for Python's regular expressions and JavaScript's: what may stand before it, itself, between two, its commas.
_WRITTEN = {
    "about": r"(?:~|≈|about|around|roughly|ca\.?)\s*",
    "number": r"[-+]?(?:\d[\d,_]*(?:\.[\d,]*)?|\.\d+)(?:e[-+]?\d{1,3})?",
    "to": r"\s*(?:-|\u2013|\bto\b)\s*",
    "grouped": units.GROUPED,
}
_ABOUT, _NUMBER, _TO = (re.compile(_WRITTEN[name], re.ASCII | re.IGNORECASE) for name in ("about", "number", "to"))
#: Thousands of what is no memory.
_TIMES = {"k": 10**3, "m": 10**6, "b": 10**9, "thousand": 10**3, "million": 10**6, "billion": 10**9}


def missing(answer: object) -> bool:
    """Whether the reader has not answered yet: `...`, None or blank text."""
    return answer is ... or answer is None or (isinstance(answer, str) and answer.strip() in ("", "..."))


def read(answer: object, unit: str) -> Fraction:
    """The reader's number: in bytes where `unit` is one of `units.UNITS`, else in `unit`.

    In an exercise in GiB or another unit of bytes, plain numbers from 2**20 on are bytes. Text as people write it: "20 GiB", "20 g",
    "~20 GiB", "15-20 GiB" (the middle), "20k tokens".

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


@cache
def spelled(unit: str) -> dict:
    """How a text with a number of `unit` is read, as data for the cards' program too.

    `names`: {what may follow the number, in small letters without spaces: its size in bytes, or in `unit`}; `plain`: [the size of
    a number with nothing after it, from where on it is of bytes] of memory; `longest`, `largest`: what is still read.
    """
    how = {**_WRITTEN, "longest": _LONGEST, "largest": str(_LARGEST)}
    if unit in units.UNITS:
        names = {name.lower(): size for name, size in units.UNITS.items()} | {"byte": 1, "bytes": 1}
        names |= {name[0].lower(): size for name, size in units.UNITS.items() if name.endswith("iB")}
        return how | {"names": names, "plain": [units.UNITS[unit], _SURELY_BYTES]}
    one = unit.lower().replace(" ", "").rstrip("s")
    own = {"", one, f"{one}s"} if one else {""}
    in_units = {word: times // _TIMES.get(one, 1) for word, times in _TIMES.items() if times >= _TIMES.get(one, 1)}
    return how | {
        "names": {word + name: times for word, times in in_units.items() for name in own} | dict.fromkeys(own, 1)
    }


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
    text = text[about.end() :] if (about := _ABOUT.match(text)) else text
    first = last = _NUMBER.match(text)
    if not first:
        raise ValueError("this text does not begin with a number")
    rest = text[first.end() :]
    if to := _TO.match(rest):
        last = _NUMBER.match(rest := rest[to.end() :])
        if not last:
            raise ValueError("after the range's first number there is no second")
        rest = rest[last.end() :]
    ends = [_sized(Fraction(units.digits(number[0])), rest.strip(), unit) for number in (first, last)]
    return _within(sum(ends) / 2)


def _sized(value, said, unit):
    """The number in bytes, or in `unit`, by what is written after it."""
    names, name = spelled(unit)["names"], re.sub(r"\s+", "", said).lower()
    if unit in units.UNITS and not name:
        return read(value, unit)
    if name in names:
        return value * names[name]
    if unit in units.UNITS:
        raise ValueError(f"the unit {said!r} after the number is not one of {', '.join(units.UNITS)}")
    raise ValueError(f"the text after the number is not {unit!r}" if unit else "there is text after the number")


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
