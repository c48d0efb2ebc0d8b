"""Texts that belong to Python code: whether one is there, and as a sentence."""

from ..common import checks


def some(owner: str, field: str, value: object) -> None:
    """Raise ValueError unless `value` is text that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{owner}.{field}: {checks.shown(value)} is no text")


def sentence(text: str) -> str:
    """The text with a capital, and with a full stop where it has no punctuation at its end."""
    return text[:1].upper() + text[1:] + "." * (not text.endswith((".", "?", "!")))
