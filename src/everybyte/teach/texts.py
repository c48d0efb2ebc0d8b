"""Texts in TOML, beside the Python that computes: read whole, or refused by the name of what is wrong."""

import tomllib
from importlib import resources

from ..common import checks


def read(package: str, file: str) -> dict[str, dict]:
    """The tables of a package's TOML file, in its order; ValueError, naming the file, where it is none."""
    path = resources.files(package).joinpath(file)
    return parsed(path.name, path.read_text(encoding="utf-8"))


def parsed(file: str, text: str) -> dict[str, dict]:
    """The tables of a file that holds this text."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{file}: no TOML, {error}") from None


def some(owner: str, field: str, value: object) -> None:
    """Raise unless `value` is text, and not blank."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{owner}.{field}: {checks.shown(value)} is no text")
