"""The files beside the explorers' code: texts and tables, the picture's program, stored numbers."""

import json
import tomllib
from collections.abc import Mapping
from functools import cache

from ..common import files


def read(*names: str) -> str:
    """The text of files of this folder, one after another."""
    return files.text(__package__, *names)


def program(formulas: Mapping[str, str], *names: str) -> str:
    """The scripts of these names after `picture.js`, which has the formulas in it: by name, each an arrow function."""
    body = "".join(f"  {json.dumps(name)}: {javascript},\n" for name, javascript in formulas.items())
    return files.script(__package__, "picture.js", *names).replace("{/* formulas */}", f"{{\n{body}}}")


@cache
def table(name: str) -> dict:
    """The content of a JSON or TOML file of this folder."""
    return (json if name.endswith(".json") else tomllib).loads(read(name))


_SAID = tomllib.loads(read("explorers.toml"))  # explorers ask as they are imported


def said(name: str) -> dict:
    """An explorer's table in explorers.toml: its title, presets and other texts and numbers."""
    return _SAID[name]
