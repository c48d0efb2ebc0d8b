"""The interview's cards, without and with a case's numbers."""

import re
from dataclasses import dataclass, fields
from functools import cache
from html import escape

from ...common import checks, files
from .. import texts
from .numbers import NUMBERS

PARTS = {1: "What fills the GPU", 2: "Saving it on one GPU", 3: "Many GPUs", 4: "Practice", 5: "Design dialogues"}
#: The part whose cards follow one another.
DIALOGUES = 5
#: The texts of a card, which may have numbers.
TEXTS = ("question", "answer", "follow_up", "wrong", "why")
NAME = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Card:
    """One question with its answer.

    Attributes:
        id, part, topic: its place. question: the text. answer: of thirty seconds, with numbers as names in braces.
        chapter: slug of the chapter with its derivation. follow_up: the next question. wrong: the usual wrong answer, and why it
            is wrong; both may have numbers too.

    Raises:
        ValueError: naming the card, the field, the value and the allowed values.
    """

    id: str
    part: int
    topic: str
    question: str
    answer: str
    chapter: str
    follow_up: str
    wrong: str
    why: str

    def __post_init__(self):
        owner = f"Card {self.id}"
        for field in fields(self):
            if field.name != "part":
                texts.some(owner, field.name, getattr(self, field.name))
        checks.one_of("Card", "id", self.id, [self.id] if re.fullmatch(r"[a-z0-9-]+", self.id) else ["a-z, 0-9 and -"])
        checks.whole(owner, "part", self.part, min(PARTS), max(PARTS))
        for said in TEXTS:
            for name in NAME.findall(getattr(self, said)):
                checks.one_of(owner, said, name, NUMBERS)

    @property
    def names(self) -> list[str]:
        """The names of numbers in its texts, once each."""
        return list(dict.fromkeys(name for said in TEXTS for name in NAME.findall(getattr(self, said))))


@cache
def cards() -> dict[str, Card]:
    """Every card by id, in the book's order.

    Raises:
        ValueError: where an entry of a file lacks a field, has an unknown one, or a value that is not allowed.
    """
    return read_cards(files.toml(__package__, "cards.toml") | files.toml(__package__, "dialogues.toml"))


def read_cards(entries: dict) -> dict[str, Card]:
    """Cards from tables by id, checked."""
    known = [field.name for field in fields(Card) if field.name != "id"]
    for id, entry in entries.items():
        checks.table(f"Card {id}", entry, known)
    return {id: Card(id, **entry) for id, entry in entries.items()}


#: Under a card with a number that the model's own code has not.
STARRED = "* of the book's own code of this model, as transformers' is not derived there."


@dataclass(frozen=True)
class Answered:
    """A card with its numbers. missing: {name of a number: why it has no value for this case}. starred: whether one is of the book's own code."""

    card: Card
    question: str
    answer: str
    follow_up: str
    wrong: str
    why: str
    missing: dict
    starred: bool = False

    @property
    def chapter(self) -> str:
        """The file name of the derivation's notebook."""
        return f"{self.card.chapter}.ipynb"

    def __repr__(self):
        return f"{self.question}\n\n{self.text()}"

    def text(self) -> str:
        """The text under the question."""
        return (
            f"{self.answer}\n\nRests on: {self.card.chapter}\nFollow-up: {self.follow_up}\n"
            f"The usual wrong answer: {self.wrong}\nWhy it is wrong: {self.why}"
            + "".join(f"\n{x}" for x in self.apology)
        )

    @property
    def apology(self) -> list[str]:
        """Why some numbers are missing, or are of another code."""
        said = [f"No number here: {why}." for why in dict.fromkeys(self.missing.values())]
        return said + [STARRED] * self.starred

    def _repr_html_(self):
        return f"<h4>{escape(self.question)}</h4>{self.back()}"

    def back(self) -> str:
        """The text under the question as HTML; all texts are escaped."""
        link = f'<a href="{escape(self.chapter)}">{escape(self.card.chapter)}</a>'
        return (
            f"<p>{escape(self.answer)}</p><p><b>Rests on</b> {link}. <b>Follow-up:</b> {escape(self.follow_up)}</p>"
            f"<p><b>The usual wrong answer:</b> {escape(self.wrong)} <b>Why it is wrong:</b> {escape(self.why)}</p>"
            + "".join(f"<p>{escape(line)}</p>" for line in self.apology)
        )

    def markdown(self) -> str:
        """The text under the question as Markdown; all texts are escaped."""
        return (
            f"### {plain(self.question)}\n\n{plain(self.answer)}\n\n"
            f"- **Rests on:** [{self.card.chapter}]({self.chapter})\n- **Follow-up:** {plain(self.follow_up)}\n"
            f"- **The usual wrong answer:** {plain(self.wrong)} **Why it is wrong:** {plain(self.why)}\n"
            + "".join(f"- {plain(line)}\n" for line in self.apology)
        )


def plain(text):
    """Text with Markdown's characters escaped."""
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", escape(text, quote=False))
