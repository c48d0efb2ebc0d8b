"""The book's terms of art: what each means, and the chapter that defines it."""

import re
from dataclasses import dataclass
from functools import cache

from ..common import checks, files


@dataclass(frozen=True)
class Term:
    """A term of art.

    Attributes:
        name: as the book writes it.
        chapter: slug of the chapter that defines it.
        meaning: one sentence.
        also: regular expressions of its other forms.
    """

    name: str
    chapter: str
    meaning: str
    also: tuple[str, ...] = ()

    @property
    def pattern(self) -> re.Pattern[str]:
        """Where a text uses it, in any of its forms; ZeRO is no zero, and a name without capitals may begin a sentence."""
        forms = sorted([re.escape(self.name).replace(r"\ ", r"\s+"), *self.also], key=len, reverse=True)
        return re.compile(
            rf"(?<![\w-])(?:{'|'.join(forms)})(?![\w-])", 0 if self.name[1:] != self.name[1:].lower() else re.IGNORECASE
        )


@cache
def terms() -> dict[str, Term]:
    """The terms by name, in the book's order. Raise ValueError, naming the term, where one is not whole."""
    found = {}
    for name, row in files.toml(__package__, "terms.toml").items():
        checks.table(f"terms.toml.{name}", row, ("chapter", "meaning"), ("also",))
        found[name] = Term(name, row["chapter"], row["meaning"], tuple(row.get("also", ())))
    return found
