"""What stands beside the explorers' code: words and tables, the picture's program, what was computed before."""

import json
import tomllib
from functools import cache
from importlib import resources


def read(name: str) -> str:
    """The text of a file of this folder."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def table(name: str) -> dict:
    """What a JSON or TOML file of this folder holds."""
    return (json if name.endswith(".json") else tomllib).loads(read(name))


_SAID = tomllib.loads(read("explorers.toml"))  # explorers ask as they are imported


def said(name: str) -> dict:
    """What a reader is told of the explorer of that name, and what else stands in explorers.toml for it."""
    return _SAID[name]
