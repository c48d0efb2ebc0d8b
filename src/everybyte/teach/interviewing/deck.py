"""The deck of an interview: its cards with the numbers of a case, as tables, pages, and files for other programs."""

import csv
import io
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from html import escape
from pathlib import Path

from ...common import checks, files
from ...common.tables import Table
from .cards import NAME, PARTS, TEXTS, Answered, Card, plain
from .case import Case
from .drill import Drill
from .numbers import NUMBERS, SHOWN


@dataclass(frozen=True)
class Deck:
    """Cards for one choice of model, GPU and setup."""

    case: Case
    cards: tuple[Card, ...]
    _values: dict = field(default_factory=dict, repr=False, compare=False)

    def __len__(self):
        return len(self.cards)

    def value(self, name: str) -> tuple[object, str]:
        """(a number, ""), or (None, why it has no value for this case).

        Raises:
            ValueError: where there is no number of that name.
        """
        return self._found(name)[:2]

    def _found(self, name):
        """The same, and whether the number is of the book's own code, where another code of the same model has none."""
        checks.one_of("Deck", "number", name, NUMBERS)
        if name not in self._values:
            faults = []
            for case in filter(None, (self.case, self.case.twin)):
                try:
                    self._values[name] = NUMBERS[name][1](case), "", case is not self.case
                    break
                except ValueError as error:
                    faults.append(str(error))
            else:
                self._values[name] = None, faults[0], False
        return self._values[name]

    def shown(self, name: str) -> str:
        """A number rounded as in the answers; of the book's own code, where the model's code is another that has none, marked by a star."""
        value, why, own = self._found(name)
        return "(no number here)" if why else SHOWN[NUMBERS[name][0]](value) + "*" * own

    def card(self, id: str) -> Answered:
        """The card of that id, with its numbers.

        Raises:
            ValueError: where the deck has none; the message names near matches.
        """
        known = {card.id: card for card in self.cards}
        checks.one_of("Deck", "id", id, known)
        card = known[id]
        said = {text: NAME.sub(lambda match: self.shown(match[1]), getattr(card, text)) for text in TEXTS}
        missing = {name: why for name in card.names if (why := self.value(name)[1])}
        return Answered(card, **said, missing=missing, starred=any(self._found(name)[2] for name in card.names))

    def about(self, topic: str | None = None, part: int | None = None) -> "Deck":
        """The cards of a topic, or of a part.

        Raises:
            ValueError: where there are none.
        """
        if topic is not None:
            checks.one_of("Deck", "topic", topic, dict.fromkeys(card.topic for card in self.cards))
        if part is not None:
            checks.whole("Deck", "part", part, min(PARTS), max(PARTS))
        wanted = (c for c in self.cards if topic in (None, c.topic) and part in (None, c.part))
        return Deck(self.case, tuple(wanted))

    def table(self, answers: bool = False) -> Table:
        """A table of all questions: id, topic, chapter of the derivation; or the answers, for places where nothing folds."""
        if answers:
            return Table(("card", "question", "answer"), [(a.card.id, a.question, a.answer) for a in self._all()])
        rows = [(a.card.id, a.card.topic, a.question, a.card.chapter) for a in self._all()]
        return Table(("card", "topic", "question", "rests on"), rows)

    def browse(self) -> "Folded":
        """All questions, each with its answer folded under it."""
        return Folded(tuple(self._all()))

    def drill(self, ids: Iterable[str] | None = None) -> "Drill":
        """A `Drill`: question, your answer, the card's answer; missed cards return. ids: the order; by default the deck's."""
        order = [card.id for card in self.cards] if ids is None else list(ids)
        for id in order:
            checks.one_of("drill", "ids", id, [card.id for card in self.cards])
        if not order or len(set(order)) < len(order):
            raise ValueError(f"drill.ids: {order!r} is empty or names a card twice")
        return Drill(self, order)

    def room(self):
        """The interview room: one card at a time, full of keys; what was wrong comes back. For a notebook."""
        from .room import shown

        return shown(self)

    def save_room(self, path: str | Path) -> Path:
        """Write the room as a page that needs no network, with cards to print on both sides of paper."""
        from .room import page

        return _write(path, page([self]).encode())

    def page(self, part: int) -> str:
        """One part's cards as a page of Markdown for printing.

        Raises:
            ValueError: where there is no such part, or the deck has no card of it.
        """
        found = self.about(part=part)
        if not len(found):
            raise ValueError(f"Deck.part: {part} has no card here; allowed: {sorted({c.part for c in self.cards})}")
        case, setup = self.case, self.case.setup
        chosen = f"{case.model.name}, {case.gpu.title}, {setup.batch} × {setup.sequence:,} tokens, {setup.precision}"
        first = f"# Interview, part {part}: {PARTS[part]}\n\n{plain(chosen)}\n"
        return "\n".join([first, *(a.markdown() for a in found._all())])

    def save_page(self, part: int, path: str | Path) -> Path:
        """Write that page to a file."""
        return _write(path, self.page(part).encode())

    def save_csv(self, path: str | Path) -> Path:
        """Write all cards as CSV: a row of names, then a row for each card."""
        text = io.StringIO(newline="")
        names = [f.name for f in fields(Card)]
        rows = ([getattr(a if name in TEXTS else a.card, name) for name in names] for a in self._all())
        csv.writer(text).writerows([names, *rows])
        return _write(path, text.getvalue().encode())

    def save_anki(self, path: str | Path) -> Path:
        """Write all cards as an Anki package. Cards keep their identity, so another import replaces their numbers.

        Raises:
            ImportError: where genanki is not installed: `pip install "everybyte[cards]"`.
            ValueError: where the name does not end with `.apkg`.
        """
        path = Path(path)
        if path.suffix != ".apkg":
            raise ValueError(f"save_anki.path: {path.name!r} does not end with '.apkg'")
        try:
            import genanki
        except ImportError as error:
            raise ImportError('Anki packages need genanki: pip install "everybyte[cards]"') from error

        face = {"name": "Card", "qfmt": "{{Question}}", "afmt": "{{FrontSide}}<hr id=answer>{{Answer}}"}
        kind = genanki.Model(
            _number_of("model"), "Every Byte", fields=[{"name": "Question"}, {"name": "Answer"}], templates=[face]
        )
        deck = genanki.Deck(_number_of("deck"), "Every Byte: interview")
        for a in self._all():
            back = re.sub(r"<a [^>]*>|</a>", "", a.back())  # the notebooks are not beside Anki
            tags = [f"part-{a.card.part}", a.card.topic.replace(" ", "-")]
            guid = genanki.guid_for("everybyte", a.card.id)
            deck.add_note(genanki.Note(kind, [escape(a.question), back], guid=guid, tags=tags))
        package = io.BytesIO()
        genanki.Package(deck).write_to_file(package, timestamp=0.0)
        return _write(path, package.getvalue())

    def _all(self):
        return [self.card(card.id) for card in self.cards]


def _number_of(name):
    """A number of 31 bits, by which Anki identifies decks and kinds of notes."""
    return zlib.crc32(f"everybyte.interview.{name}".encode()) & 0x7FFFFFFF


def _write(path, data):
    with files.whole(path) as file:
        file.write(data)
    return Path(path)


@dataclass(frozen=True)
class Folded:
    """Cards to leaf through: in a notebook each answer is folded under its question."""

    cards: tuple[Answered, ...]

    def __repr__(self):
        return "\n\n".join(map(repr, self.cards))

    def _repr_html_(self):
        return "".join(
            f"<details><summary><b>{escape(a.question)}</b></summary>{a.back()}</details>" for a in self.cards
        )
