"""Checks of user input, worded alike: the field, the value, what is allowed."""

import difflib
from collections.abc import Iterable

ABSURD = 2**40


def whole(owner: str, field: str, value: object, least: int, most: int = ABSURD) -> None:
    """Raise unless `value` is an int in [least, most]."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{owner}.{field}: {value!r} is not a whole number from {least} to {most:,}")


def one_of(owner: str, field: str, value: object, allowed: Iterable[str]) -> None:
    """Raise unless `value` is one of `allowed`; the message names near matches."""
    allowed = list(allowed)
    if value not in allowed:
        typed = str(value).lower()
        near = [name for name in allowed if typed and name.lower().startswith(typed)][:3]
        near = near or difflib.get_close_matches(typed, allowed, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        raise ValueError(f"{owner}.{field}: {value!r} is unknown; {hint}allowed: {', '.join(allowed)}")


def flag(owner: str, field: str, value: object) -> None:
    """Raise unless `value` is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{owner}.{field}: {value!r} is not True or False")


def kind(owner: str, field: str, value: object, wanted: type) -> None:
    """Raise unless `value` is a `wanted`."""
    if not isinstance(value, wanted):
        raise ValueError(f"{owner}.{field}: {value!r}; allowed: a {wanted.__name__}")
