"""The reader's progress: solved exercises by chapter, and the next one."""

from dataclasses import dataclass
from pathlib import Path

from ..common.tables import Table
from .callout import Callout
from .exercise import DIFFICULTIES, Exercise, chapter_of, chapters, exercise, listed
from .kept import PREDICTED, SOLVED, TRIED, load


@dataclass(frozen=True)
class Progress:
    """The reader's progress.

    Attributes:
        solved, tried, predicted: ids of exercises with a right answer, exercises with a wrong answer, predictions.
        path: the file; None where none is kept. trouble: a sentence on what is wrong with it, or "".
    """

    solved: frozenset[str] = frozenset()
    tried: frozenset[str] = frozenset()
    predicted: frozenset[str] = frozenset()
    path: Path | None = None
    trouble: str = ""

    @property
    def next(self) -> Exercise | None:
        """The first unsolved exercise of a chapter that was begun; else of any chapter; None at the end."""
        left = [id for chapter in _in_order() for id in listed(chapter) if id not in self.solved]
        begun = {*map(chapter_of, self.solved | self.tried)}
        return exercise(next((id for id in left if chapter_of(id) in begun), left[0])) if left else None

    def table(self) -> Table:
        """A row for each chapter, then one for all: solved, wrong so far, predictions, the next exercise."""
        rows, every = [], []
        guesses = [chapter_of(id.removeprefix("P")) for id in self.predicted]
        for chapter in _in_order():
            ids = list(listed(chapter))
            every += ids
            left = next((id for id in ids if id not in self.solved), "–")
            rows.append(self._row(f"{_kind(chapter)} {chapter}", ids, guesses.count(chapter), left))
        rows.append(self._row("the book", every, len(guesses), self.next.id if self.next else "–"))
        return Table(("", "solved", "not yet right", "predictions", "next"), rows, self._said())

    def _row(self, name, ids, guesses, left):
        solved, tried = self.solved & {*ids}, (self.tried - self.solved) & {*ids}
        return name, f"{len(solved)} of {len(ids)}", len(tried), guesses, left

    def _said(self):
        e = self.next
        said = f"Next: {e.id}, {e.title} ({DIFFICULTIES[e.difficulty]}, {e.minutes} minutes)." if e else "All solved."
        return f"{said} {self.trouble}".strip()

    def _shown(self):
        if self.solved or self.tried or self.predicted:
            return self.table()
        return Callout("open", "No exercises answered yet", self._said())

    def __repr__(self):
        return repr(self._shown())

    def _repr_html_(self):
        return self._shown()._repr_html_()


def progress() -> Progress:
    """The reader's progress: solved exercises by chapter, and the next one. It only reads, but sets a damaged file aside."""
    kept, path, trouble = load()
    solved, tried, predicted = (frozenset(kept.get(what, ())) for what in (SOLVED, TRIED, PREDICTED))
    return Progress(solved, tried, predicted, path, trouble)


def _in_order():
    """The chapters that have exercises, then the labs."""
    return sorted(chapters(), key=lambda chapter: (_kind(chapter) == "lab", chapter))


def _kind(chapter):
    return "lab" if "01" <= chapter <= "09" else "chapter"
