"""How far the reader is: what has been solved, by chapter, and what comes next."""

from dataclasses import dataclass
from pathlib import Path

from ..common.tables import Table
from .callout import Callout
from .exercise import DIFFICULTIES, Exercise, bank, chapters
from .kept import PREDICTED, SOLVED, TRIED, load


@dataclass(frozen=True)
class Progress:
    """How far the reader is.

    Attributes:
        solved, tried, predicted: ids of exercises answered rightly, of those answered wrongly, of predictions made.
        path: the file; None where none is kept. trouble: what is wrong with it, a sentence, or "".
    """

    solved: frozenset[str] = frozenset()
    tried: frozenset[str] = frozenset()
    predicted: frozenset[str] = frozenset()
    path: Path | None = None
    trouble: str = ""

    @property
    def next(self) -> Exercise | None:
        """The first that is unsolved in a chapter begun; then the first of a chapter not begun; None at the end."""
        left = [e for chapter in _in_order() for e in bank(chapter).values() if e.id not in self.solved]
        begun = {id.partition(".")[0] for id in self.solved | self.tried}
        return next((e for e in left if e.chapter in begun), left[0] if left else None)

    def table(self) -> Table:
        """A row for each chapter, then one for all: solved of how many, wrong so far, predictions made, the next."""
        rows, all_of = [], [id for chapter in chapters() for id in bank(chapter)]
        for chapter in _in_order():
            ids = list(bank(chapter))
            left = [id for id in ids if id not in self.solved]
            guesses = sum(id.removeprefix("P").partition(".")[0] == chapter for id in self.predicted)
            name = f"lab {chapter}" if _is_lab(chapter) else f"chapter {chapter}"
            rows.append((name, *self._counted(ids), guesses, left[0] if left else "–"))
        last = self.next.id if self.next else "–"
        rows.append(("the book", *self._counted(all_of), len(self.predicted), last))
        columns = ("", "solved", "not yet right", "predictions", "next")
        return Table(columns, rows, " ".join(filter(None, [self._said(), self.trouble])))

    def _counted(self, ids):
        return f"{len(self.solved & {*ids})} of {len(ids)}", len((self.tried - self.solved) & {*ids})

    def _said(self):
        e = self.next
        return f"Next: {e.id}, {e.title} ({DIFFICULTIES[e.difficulty]}, {e.minutes} minutes)." if e else "All solved."

    def _shown(self):
        if self.solved or self.tried or self.predicted:
            return self.table()
        return Callout("open", "No exercises answered yet", " ".join(filter(None, [self._said(), self.trouble])))

    def __repr__(self):
        return repr(self._shown())

    def _repr_html_(self):
        return self._shown()._repr_html_()


def progress() -> Progress:
    """What has been solved, by chapter, and what comes next. It writes nothing, but sets a damaged file aside."""
    kept, path, trouble = load()
    solved, tried, predicted = (frozenset(kept.get(what, ())) for what in (SOLVED, TRIED, PREDICTED))
    return Progress(solved, tried, predicted, path, trouble)


def _in_order():
    """The chapters that have exercises, then the labs."""
    return sorted(chapters(), key=lambda c: (_is_lab(c), c))


def _is_lab(chapter):
    return "01" <= chapter <= "09"
