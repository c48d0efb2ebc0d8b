"""Bytes in, text out: the only place that knows 1024**3 and 1e9.

Memory is counted in integer bytes and shown in GiB (1024**3). GB (10**9) appears only where a
data sheet or an article is quoted.
"""

import re
from numbers import Real

from .common import checks

UNITS = {
    "B": 1,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "TiB": 1024**4,
    "PiB": 1024**5,
    "EiB": 1024**6,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
}
#: A pattern of whole numbers whose commas group three digits.
GROUPED = r"[-+]?\d{1,3}(?:,\d{3})+"
_MOST = 1e300  # what is counted is less
_BINARY = ("EiB", "PiB", "TiB", "GiB", "MiB", "KiB", "B")
_DECIMAL = ("TB", "GB", "MB", "kB", "B")


def to(count: float, unit: str) -> float:
    """`count` bytes in `unit`, a key of `UNITS`."""
    return count / _factor(unit)


def largest(count: float, *, decimal: bool = False) -> str:
    """The largest unit in which `count` bytes are one or more: "GiB"."""
    return next((u for u in (_DECIMAL if decimal else _BINARY) if abs(count) >= UNITS[u]), "B")


def text(count: float, *, decimal: bool = False, digits: int = 2) -> str:
    """`count` bytes in the largest unit that keeps the number, as it is shown, at or above one: "1.53 GiB".

    Raises:
        ValueError: where `count` is no number.
    """
    _check_number("text.count", count)
    unit, names = largest(count, decimal=decimal), _DECIMAL if decimal else _BINARY
    if unit == "B" and count == int(count):
        return f"{count:.0f} B"
    said = f"{count / UNITS[unit]:.{digits}f}"
    larger = names[max(0, names.index(unit) - 1)]
    if larger != unit and abs(float(said)) * UNITS[unit] >= UNITS[larger]:  # 1.00 MiB, and not 1024.00 KiB
        return f"{count / UNITS[larger]:.{digits}f} {larger}"
    return f"{said} {unit}"


def signed(count: float) -> str:
    """`count` bytes as `text` has them, with their sign: "+1.53 GiB", "−2.00 KiB"."""
    return f"{'−' if count < 0 else '+'}{text(abs(count))}"


def gib(count: float, digits: int = 2) -> str:
    """`count` bytes in GiB, whatever their size: for columns that must line up."""
    return f"{count / UNITS['GiB']:,.{digits}f} GiB"


def exact(count: int) -> str:
    """Every digit of `count` bytes: "1,646,821,376 B"."""
    return f"{count:,} B"


def number(count: float) -> str:
    """A count of things, short: "124.4 M"."""
    _check_number("number.count", count)
    for size, suffix in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        if abs(count) >= size or abs(float(f"{1000 * count / size:.1f}")) >= 1000 and size > 10**3:
            return f"{count / size:.1f} {suffix}"
    return f"{count:g}"


def parse(value: str) -> float:
    """Bytes from "1.5 GiB" or "12,582,912 B".

    Raises:
        ValueError: where there is no number, or the unit is missing or unknown.
    """
    number = r"\s*([-+]?[\d,_]*\.?\d+(?:[eE][-+]?\d+)?)\s*([A-Za-z]+)\s*"
    match = re.fullmatch(number, value, re.ASCII) if isinstance(value, str) else None
    if not match:
        raise ValueError(f"value: {checks.shown(value)} is not a number followed by a unit, such as '1.5 GiB'")
    count = float(digits(match[1])) * _factor(match[2])
    if not abs(count) < _MOST:
        raise ValueError(f"value: {checks.shown(value)} is more than anybody has; allowed: less than 1e300 B")
    return count


def digits(number: str) -> str:
    """A typed number without what groups its digits: "12582912" from "12,582,912".

    Raises:
        ValueError: where a comma does not group three digits: somebody's decimal comma would make it a hundred times as much.
    """
    whole = re.split(r"[.eE]", number)[0]
    if "," in number and not re.fullmatch(GROUPED, whole):
        raise ValueError(
            f"value: {checks.shown(number)} has a comma that does not group three digits; allowed: a decimal point, as in 11.53"
        )
    return number.replace(",", "").replace("_", "")


def _check_number(name, count):
    if not isinstance(count, Real):
        raise ValueError(f"{name}: a {type(count).__name__}; allowed: a number below 1e300")
    if not abs(count) < _MOST:
        said = f"{count:.3g}" if isinstance(count, float) else "a whole number of hundreds of digits"
        raise ValueError(f"{name}: {said}; allowed: a number below 1e300")


def _factor(unit: str) -> int:
    if not isinstance(unit, str) or unit not in UNITS:
        raise ValueError(f"unit: {checks.shown(unit)} is not one of {', '.join(UNITS)}")
    return UNITS[unit]
