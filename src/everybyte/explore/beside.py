"""The files beside the explorers' code: texts and tables, the picture's program, stored numbers."""

import json
import tomllib
from functools import cache
from importlib import resources


def read(name: str) -> str:
    """The text of a file of this folder."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def table(name: str) -> dict:
    """The content of a JSON or TOML file of this folder."""
    return (json if name.endswith(".json") else tomllib).loads(read(name))


_SAID = tomllib.loads(read("explorers.toml"))  # explorers ask as they are imported


def said(name: str) -> dict:
    """An explorer's table in explorers.toml: its title, presets and other texts and numbers."""
    return _SAID[name]
