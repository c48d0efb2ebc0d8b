"""The table of contents: the map of chapters in the README, which every tool and test reads."""

import re
from dataclasses import dataclass

_PART = re.compile(r"^\*\*(.+?)\*\*$")
_ROW = re.compile(r"^\| (?:\[`(\w+)`\]\(((?:notebooks|labs)/\w+\.ipynb)\)|`(\w+)`) \| (.+?) \|$")


@dataclass(frozen=True)
class Entry:
    """A line of the table of contents: `path` is None for what is still to be written; `part` is "" before the first."""

    slug: str
    path: str | None
    question: str
    part: str


def contents(readme: str) -> list[Entry]:
    """The entries in reading order; ValueError where no notebook is linked."""
    entries, part = [], ""
    for line in readme.splitlines():
        if line.startswith("#"):
            part = ""
        if match := _PART.match(line):
            part = match[1]
        if match := _ROW.match(line):
            linked, path, planned, question = match.groups()
            entries.append(Entry(linked or planned, path, question, part))
    if not any(e.path for e in entries):
        raise ValueError("the README's map of chapters links no notebook")
    return entries
