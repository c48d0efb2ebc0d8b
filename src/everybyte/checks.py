"""Checks of user input, worded alike: the field, the value, what is allowed."""

import difflib
import re
from collections.abc import Iterable

ABSURD = 2**40


def whole(owner: str, field: str, value: object, least: int, most: int = ABSURD) -> None:
    """Raise unless `value` is an int in [least, most]."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        said = f" is not a whole number from {least} to {most:,}" if least < most else f"; allowed: {least}"
        raise ValueError(f"{owner}.{field}: {value!r}{said}")


def whole_numbers(owner: str, field: str, values):
    """`values` as a numpy array of 64-bit whole numbers, or of Python's where one is larger; raise where one is not whole."""
    import numpy

    array = numpy.asarray(values)
    if array.dtype.kind not in "iu" and not all(type(v) is int for v in array.flat):
        raise ValueError(f"{owner}.{field}: an array of {array.dtype}; allowed: whole numbers")
    large = array.dtype == object or (array.dtype == "uint64" and array.size and array.max() >= 2**63)
    return array.astype(object if large else "int64")


#: What others call some values of a field.
ELSEWHERE = {
    "sharding": {"fsdp": "zero3", "fsdp2": "zero3", "hsdp": "zero3", "ddp": "none"},
    "optimizer": {"adam8bit": "adamw8bit", "adamw_8bit": "adamw8bit", "paged_adamw_8bit": "paged-adamw8bit"},
    "precision": {
        "float32": "fp32",
        "bfloat16": "bf16",
        "amp": "bf16-mixed",
        "fp16": "fp16-mixed",
        "float16": "fp16-mixed",
    },
}


def one_of(owner: str, field: str, value: object, allowed: Iterable[str]) -> None:
    """Raise unless `value` is one of `allowed`; the message names near matches, or what is called so elsewhere."""
    allowed = list(allowed)
    if value not in allowed:
        typed = str(value).lower()
        known = ELSEWHERE.get(field, {}).get(typed)
        near = [known] if known in allowed else []
        near = near or [name for name in allowed if typed and name.lower().startswith(typed)][:3]
        near = near or difflib.get_close_matches(typed, allowed, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        raise ValueError(f"{owner}.{field}: {value!r} is unknown; {hint}allowed: {', '.join(allowed)}")


def line(owner: str, field: str, value: object) -> None:
    """Raise unless `value` is text that can be printed on a line, of 200 characters at most."""
    if not isinstance(value, str):
        raise ValueError(f"{owner}.{field}: {value!r} is not text")
    if len(value) > 200 or not value.isprintable():
        raise ValueError(f"{owner}.{field}: {value[:60]!r}; allowed: 200 characters at most, all of them printable")


def probability(owner: str, field: str, value: object) -> None:
    """Raise unless `value` is a number in [0, 1)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError(f"{owner}.{field}: {value!r} is not a number in [0, 1)")


def flag(owner: str, field: str, value: object) -> None:
    """Raise unless `value` is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{owner}.{field}: {value!r} is not True or False")


def words(owner: str, text: str, names: Iterable[str]) -> dict:
    """The fields of a command's text, `rank=16 targets=q,v dropout=0.05`: numbers as such, all else as text. Raise for what is no field."""
    said: dict = {}
    for word in text.replace(";", " ").split():
        name, found, value = word.partition("=")
        one_of(owner, "field", name, names)
        if not found or not value:
            raise ValueError(f"{owner}.{name}: {word!r} has no value; allowed: {name}=VALUE")
        fraction = re.fullmatch(r"[0-9]*\.[0-9]+", value)
        said[name] = int(value) if value.isdecimal() else float(value) if fraction else value
    return said


def kind(owner: str, field: str, value: object, wanted: type) -> None:
    """Raise unless `value` is a `wanted`."""
    if not isinstance(value, wanted):
        said = repr(value)
        said = said if len(said) < 60 else f"a {type(value).__name__}"
        instead = f"; eb.model({value!r})" if wanted.__name__ == "Model" and isinstance(value, str) else ""
        raise ValueError(f"{owner}.{field}: {said}; allowed: a {wanted.__name__}{instead}")
