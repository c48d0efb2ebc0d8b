"""Shapes of JSON values, as data, and whether a value has one."""

import math
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints


@dataclass(frozen=True, eq=False)
class Kind:
    """What a field may be: its `shape`, and that in words, `allowed`. It stands in `Annotated[int, Kind(...)]`."""

    shape: Any
    allowed: str


def kinds(of: type) -> dict[str, Kind]:
    """{field: its `Kind`}, from the annotations of a class."""
    hints = get_type_hints(of, include_extras=True)
    parts = ((name, part) for name, hint in hints.items() for part in (hint, *get_args(hint)))
    return {name: part.__metadata__[0] for name, part in parts if hasattr(part, "__metadata__")}


def fits(value: object, shape: Any) -> bool:
    """Whether a JSON value has a shape.

    Args:
        shape: a type; None; a function that gives True or False; a tuple of shapes, of which one must fit;
            `[shape, ...]`, a list of any length; `[shape, shape]`, a list of exactly these; `{name: shape}`, an object
            with exactly these names, where `name?` may be missing and `...` stands for all other names.
    """
    if isinstance(shape, tuple):
        return any(fits(value, one) for one in shape)
    if isinstance(shape, list):
        each = shape[:1] * len(value) if isinstance(value, list) and shape[-1] is ... else shape
        return isinstance(value, list) and len(value) == len(each) and all(map(fits, value, each))
    if isinstance(shape, dict):
        known = {name.removesuffix("?"): one for name, one in shape.items() if name is not ...}
        if not isinstance(value, dict) or not shape.keys() & known.keys() <= value.keys():
            return False
        return (... in shape or value.keys() <= known.keys()) and all(
            fits(each, known.get(name, shape.get(...))) for name, each in value.items()
        )
    if isinstance(shape, type):
        return isinstance(value, shape)
    return value is None if shape is None else shape(value)


def some(shape: Any):
    """The shape of a list with at least one entry."""
    return lambda value: fits(value, [shape, ...]) and len(value) > 0


def whole(value: object) -> bool:
    """Whether it is a whole number, 0 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def number(value: object) -> bool:
    """Whether it is a number, 0 or more."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
