"""Read texts in TOML that belong to Python code, with errors that name the wrong field."""

import tomllib
from importlib import resources

from ..common import checks


def read(package: str, file: str) -> dict[str, dict]:
    """The tables of a package's TOML file, in order. Raise ValueError, naming the file, where it is invalid."""
    path = resources.files(package).joinpath(file)
    return parsed(path.name, path.read_text(encoding="utf-8"))


def parsed(file: str, text: str) -> dict[str, dict]:
    """The tables of a file with this text."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{file}: no TOML, {error}") from None


def some(owner: str, field: str, value: object) -> None:
    """Raise ValueError unless `value` is text that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{owner}.{field}: {checks.shown(value)} is no text")


def sentence(text: str) -> str:
    """The text with a capital, and with a full stop where it has no punctuation at its end."""
    return text[:1].upper() + text[1:] + "." * (not text.endswith((".", "?", "!")))
