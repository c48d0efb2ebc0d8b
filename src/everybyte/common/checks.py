"""Checks of user input, with errors of one form: the field, the value, the allowed values."""

import difflib
import re
from collections.abc import Iterable

ABSURD = 2**40
#: The most characters of a value in a message.
SHOWN = 200
#: So many names of what is allowed.
MANY = 100


def printable(text: str, most: int | None = None) -> str:
    """Foreign text on one line, with escapes for characters that a terminal would act on, or not show.

    These are control characters with the new line, marks that change the direction of writing, and lone surrogates.
    A text of more than `most` characters is cut, with the number of characters left out.
    """
    left = 0 if most is None else len(text) - most
    text = text[:most] if left > 0 else text
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return f"{text}… ({left:,} characters more)" if left > 0 else text


def shown(value: object) -> str:
    """A value for a message: its repr on one line, shortened."""
    if isinstance(value, str | bytes) and len(value) > SHOWN:
        return f"{value[:SHOWN]!r}… ({len(value) - SHOWN:,} characters more)"
    try:
        said = repr(value)
    except Exception:  # a number of more digits than Python writes, or a repr of somebody's own that fails
        return f"a {type(value).__name__} that cannot be written out"
    return printable(said if isinstance(value, str) else " ".join(said.split()), SHOWN + 2)


def natural(text: str) -> int | None:
    """The whole number of a text of at most 4,000 plain digits; None for any other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 4000 else None


def whole(owner: str, field: str, value: object, least: int, most: int = ABSURD) -> None:
    """Raise unless `value` is an int in [least, most]."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        said = f" is not a whole number from {least} to {most:,}" if least < most else f"; allowed: {least}"
        raise ValueError(f"{owner}.{field}: {shown(value)}{said}")


def whole_numbers(owner: str, field: str, values):
    """`values` as a numpy array of 64-bit integers, or of Python's where one is larger. Raise for other values."""
    import numpy

    array = numpy.asarray(values)
    if array.dtype.kind not in "iu" and not all(type(v) is int for v in array.flat):
        raise ValueError(f"{owner}.{field}: an array of {array.dtype}; allowed: whole numbers")
    large = array.dtype == object or (array.dtype == "uint64" and array.size and array.max() >= 2**63)
    return array.astype(object if large else "int64")


#: Field -> other names of some of its values.
ELSEWHERE = {
    "sharding": {"fsdp": "zero3", "fsdp2": "zero3", "hsdp": "zero3", "ddp": "none"},
    "optimizer": {
        "adam8bit": "adamw8bit",
        "adamw_8bit": "adamw8bit",
        "paged_adamw_8bit": "paged-adamw8bit",
        "adamw_torch_8bit": "torchao-adamw8bit",
        "adamw_torch_4bit": "adamw4bit",
    },
    "precision": {"float32": "fp32", "bfloat16": "bf16", "amp": "bf16-mixed"}
    | dict.fromkeys(("fp16", "float16"), "fp16-mixed"),
}


def one_of(owner: str, field: str, value: object, allowed: Iterable[str]) -> None:
    """Raise unless `value` is one of `allowed`; the message names near matches, or other names of the same thing."""
    allowed = tuple(allowed)
    if isinstance(value, str) and value in allowed:  # an array has no one answer to `in`
        return
    typed = value.lower()[:SHOWN] if isinstance(value, str) else ""
    known = ELSEWHERE.get(field, {}).get(typed)
    near = [known] if known in allowed else []
    near = near or [name for name in allowed if typed and name.lower().startswith(typed)][:3]
    near = near or difflib.get_close_matches(typed, allowed, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    more = f" and {len(allowed) - MANY} more" if len(allowed) > MANY else ""
    raise ValueError(f"{owner}.{field}: {shown(value)} is unknown; {hint}allowed: {', '.join(allowed[:MANY])}{more}")


def line(owner: str, field: str, value: object) -> None:
    """Raise unless `value` is printable text of one line, with at most 200 characters."""
    if not isinstance(value, str):
        raise ValueError(f"{owner}.{field}: {shown(value)} is not text")
    if len(value) > 200 or not value.isprintable():
        raise ValueError(f"{owner}.{field}: {value[:60]!r}; allowed: 200 characters at most, all of them printable")


def probability(owner: str, field: str, value: object, one: bool = False) -> None:
    """Raise unless `value` is a number in [0, 1), or with `one` in [0, 1]."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not (0 <= value < 1 or one and value == 1):
        raise ValueError(f"{owner}.{field}: {shown(value)} is not a number in [0, 1{']' if one else ')'}")


def flag(owner: str, field: str, value: object) -> None:
    """Raise unless `value` is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{owner}.{field}: {shown(value)} is not True or False")


def pairs(owner: str, words: Iterable[str], names: Iterable[str] | None = None) -> dict[str, str]:
    """{name: value} from words such as `rank=16`. Raise for a missing value, and an unknown or repeated name."""
    found: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        if names is not None:
            one_of(owner, "field", name, names)
        said = printable(name, SHOWN)
        if not name or not value:
            field = f"{owner}.{said}" if name else owner
            raise ValueError(f"{field}: {shown(word)} has no value; allowed: {said or 'NAME'}=VALUE")
        if name in found:
            raise ValueError(f"{owner}.{said}: {shown(found[name])} and {shown(value)}; allowed: one value")
        found[name] = value
    return found


def words(owner: str, text: str, names: Iterable[str]) -> dict:
    """The fields in a command's text, `rank=16 targets=q,v dropout=0.05`: numbers as numbers, others as text."""
    if not isinstance(text, str):
        raise ValueError(f"{owner}: {shown(text)}; allowed: text such as NAME=VALUE NAME=VALUE")
    said: dict = dict(pairs(owner, text.replace(";", " ").split(), list(names)))
    for name, value in said.items():
        number = float(value) if re.fullmatch(r"[0-9]*\.[0-9]+", value) else natural(value)
        said[name] = value if number is None else number
    return said


def kind(owner: str, field: str, value: object, wanted: type) -> None:
    """Raise unless `value` is a `wanted`."""
    if not isinstance(value, wanted):
        said = shown(value)
        said = said if len(said) < 60 else f"a {type(value).__name__}"
        instead = f"; eb.model({said})" if wanted.__name__ == "Model" and isinstance(value, str) else ""
        raise ValueError(f"{owner}.{field}: {said}; allowed: a {wanted.__name__}{instead}")


def table(owner: str, entry: object, needed: Iterable[str], more: Iterable[str] = ()) -> None:
    """Raise unless `entry` is a table with all fields in `needed`, and no others than some of `more`."""
    if not isinstance(entry, dict):
        raise ValueError(f"{owner}: {shown(entry)}; allowed: a table")
    needed = dict.fromkeys(needed)
    for name in needed:
        if name not in entry:
            raise ValueError(f"{owner}.{name}: missing")
    for name in entry:
        one_of(owner, "field", name, needed | dict.fromkeys(more))
