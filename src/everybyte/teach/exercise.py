"""The exercises. Each has an answer, computed when it is checked, the usual mistakes, and two hints.

A chapter's exercises are in `teach/bank`, and read at the first use of the chapter.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from importlib import import_module, resources
from textwrap import shorten
from typing import ClassVar

from .. import units
from ..common import checks, files
from ..common.tables import Table
from . import kept, marking, texts
from .callout import Callout, Carded
from .quantities import missing, read, show
from .texts import sentence

_HINTS_TAKEN: dict[str, int] = {}
DIFFICULTIES = {1: "easy", 2: "medium", 3: "hard"}
#: Verdict -> kind of its callout.
_VERDICTS = {
    "right": "right",
    "not yet": "wrong",
    "not attempted yet": "open",
    "could not be read": "unreadable",
    "not proved": "unreadable",
}


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """One exercise.

    Attributes:
        id: chapter and number, "12.2". title: in the table of exercises. difficulty: 1 to 3. minutes: of a reader.
        accepts: `number` or `expression`; `function` in a `program.Program`.
        unit: what a plain number means, such as "GiB", "parameters", "bit". Bytes where it is one of `units.UNITS`.
        answer: a function that computes the right answer: a number (bytes where `unit` is one of bytes) or an expression.
        mistakes: {a sentence on what went wrong: the wrong answer, or a function that computes it}.
        factors: {a factor's name, such as "batch": its value}, for answers that lack it or have it twice.
        hints: two.
        decimals, significant, tolerance: how exact a number must be: decimals in `unit`, significant digits, or a distance (in
            bytes where `unit` is one of bytes) with its `reason`. By default exact.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    ACCEPTED: ClassVar[tuple[str, ...]] = ("number", "expression")

    id: str
    title: str
    difficulty: int
    minutes: int
    answer: Callable[[], object]
    hints: tuple[str, str]
    accepts: str = "number"
    unit: str = ""
    mistakes: Mapping[str, object] = field(default_factory=dict)
    factors: Mapping[str, int] = field(default_factory=dict)
    decimals: int | None = None
    significant: int | None = None
    tolerance: float = 0
    reason: str = ""

    def __post_init__(self):
        checks.one_of(type(self).__name__, "accepts", self.accepts, self.ACCEPTED)
        checks.kind("Exercise", "unit", self.unit, str)
        bounds = {"difficulty": (1, max(DIFFICULTIES)), "minutes": (1, 60), "decimals": (0, 20), "significant": (1, 20)}
        for name, (least, most) in bounds.items():
            if getattr(self, name) is not None:
                checks.whole("Exercise", name, getattr(self, name), least, most)
        for name, factor in self.factors.items():
            checks.whole("Exercise", f"factors.{name}", factor, 2)
        if isinstance(self.tolerance, bool) or not isinstance(self.tolerance, int | float) or self.tolerance < 0:
            said = checks.shown(self.tolerance)
            raise ValueError(f"Exercise.tolerance: {said} of {self.id}; allowed: a number from 0 on")
        if sum((self.decimals is not None, self.significant is not None, self.tolerance > 0)) > 1:
            raise ValueError(f"Exercise.tolerance: {self.id} has more than one of decimals, significant, tolerance")
        if (self.tolerance > 0) != bool(self.reason):
            raise ValueError(f"Exercise.reason: {self.id} needs a tolerance and its reason together")
        chapter, _, number = self.id.partition(".")
        if not (len(chapter) == 2 and chapter.isdecimal() and number.isdecimal()):
            raise ValueError(f"Exercise.id: {self.id!r} is not a chapter and a number, such as '12.2'")
        texts.some("Exercise", "title", self.title)
        for n, hint in enumerate(self.hints, 1):
            texts.some("Exercise", f"hints {n}", hint)
        if len(self.hints) != 2:
            raise ValueError(f"Exercise.hints: {self.id} has {len(self.hints)}; allowed: two")

    @property
    def chapter(self) -> str:
        """The chapter's number, "13"."""
        return chapter_of(self.id)

    @property
    def wanted(self) -> str:
        """The accepted kind of answer, in words."""
        if self.accepts == "expression":
            return "a sympy expression in the book's letters"
        what = f"a plain number of {self.unit}" if self.unit else "a plain number"
        if self.unit == "B":
            what = 'text such as "100 B", or a plain number of bytes'
        elif self.unit in units.UNITS:
            what = f'text such as "1.5 {self.unit}", {what}, or whole bytes'
        of_what = f" of {self.unit}" if self.unit and self.decimals is not None else ""
        return f"{what}, {self.exactness}{of_what}"

    @property
    def exactness(self) -> str:
        """How exact a number must be, in words."""
        if self.decimals is not None:
            return f"to {self.decimals} decimal{'s' * (self.decimals != 1)}"
        if self.significant is not None:
            return f"to {self.significant} significant digits"
        return f"within {show(self.tolerance, self.unit)}: {self.reason}" if self.tolerance else "exact"

    def right(self):
        """The right answer: a Fraction, or an expression."""
        return self._value(self.answer)

    def slack(self, right: Fraction) -> Fraction:
        """The accepted distance from `right`: half of the last digit, or the tolerance."""
        scale = Fraction(units.UNITS.get(self.unit, 1))
        if self.decimals is not None:
            return scale / 10**self.decimals / 2
        if self.significant is not None:
            power = int(f"{float(abs(right / scale)):e}".partition("e")[2])  # of the first digit
            return scale * Fraction(10) ** (power - self.significant + 1) / 2
        return Fraction(self.tolerance)

    def judge(self, answer: object) -> Callout:
        """Judge an answer as right, wrong (with the mistake's sentence where known), not attempted or unreadable. Never raises."""
        if missing(answer):
            how = f"In JupyterLab: put {self.wanted}, in place of the three dots and run the cell again."
            asked = self.said("not attempted yet", how)
            return Asked(asked.kind, asked.head, asked.text, self) if self.accepts == "number" else asked
        try:
            return self._judge_expression(answer) if self.accepts == "expression" else self._judge_number(answer)
        except (ValueError, RecursionError) as error:
            why = "this expression is nested too deep" if isinstance(error, RecursionError) else str(error)
            return self.said("could not be read", f"{sentence(shorten(why, 200))} It takes {self.wanted}.")

    def said(self, verdict: str, text: str) -> Callout:
        """The callout of a verdict, one of `_VERDICTS`, with its reason."""
        return Callout(_VERDICTS[verdict], f"{self.id} {verdict}", text)

    def wrong_numbers(self) -> Iterator[tuple[str, Fraction]]:
        """(what went wrong, the wrong number) of each mistake of this exercise."""
        for message, wrong in self.mistakes.items():
            yield message, self._value(wrong)

    def _value(self, value):
        return _computed(value, self.accepts) if callable(value) else _read(value, self.accepts)

    def _judge_expression(self, answer):
        from . import expressions

        given, right = expressions.read(answer), self.right()
        verdict = expressions.equal(given, right)
        if verdict:
            return self.said("right", "Equal to the book's expression.")
        if verdict is None:
            how = "It agrees with the answer wherever tried, but is not proved equal: try a simpler form."
            return self.said("not proved", how)
        for message, wrong in self.mistakes.items():
            if expressions.equal(given, self._value(wrong)):
                return self.said("not yet", sentence(message))
        return self.said("not yet", expressions.describe(right, given))

    def _judge_number(self, answer):
        given = read(answer, self.unit)
        row = next(row for row in marking.rows(self) if given in row)
        if row.right:
            return self.said("right", row.why)
        return self.said("not yet", f"You say {show(given, self.unit)}. {row.why}")


@dataclass(frozen=True, repr=False)
class Asked(Carded):
    """An exercise that waits for a number: in words, and as a card where there are widgets."""

    exercise: Exercise

    def card(self):
        from . import cards

        return cards.exercise(self.exercise, lambda said: check(self.exercise.id, said))


@cache
def _computed(function, accepts):
    """The function's value, read; cached, since each check needs it again."""
    return _read(function(), accepts)


def _read(value, accepts):
    if accepts == "expression":
        from .expressions import read as read_expression

        return read_expression(value)
    return Fraction(value) if isinstance(value, int | float) else read(value, "")


def check(id: str, answer: object) -> Callout:
    """Check an answer; the result's `.right` says whether it is accepted.

    Args:
        id: of the exercise, "12.2". answer: a number, text with a unit, a sympy expression, a function; `...` where not attempted.

    Raises:
        ValueError: where there is no such exercise. Nothing in `answer` raises.

    Right and wrong answers are kept for `progress()`; missing and unreadable ones are not.
    """
    try:
        verdict = exercise(id).judge(answer)
    except ModuleNotFoundError as error:  # the exercise's own: what a reader's function raises is in the verdict
        needs = f"What is right is computed by PyTorch. {error}: pip install 'everybyte[dryrun]'."
        return Callout("unreadable", f"{id} cannot be checked here", needs)
    if verdict.kind not in ("right", "wrong"):
        return verdict
    return verdict.and_said(kept.keep(kept.SOLVED if verdict.right else kept.TRIED, id))


def hint(id: str, number: int | None = None) -> Callout:
    """The exercise's next hint, or hint `number` (1 or 2); after the last, the place of the solution.

    Raises:
        ValueError: where there is no such exercise or hint.
    """
    hints = exercise(id).hints
    if number is None:
        number = _HINTS_TAKEN[id] = _HINTS_TAKEN.get(id, 0) + 1
    else:
        checks.whole("hint", "number", number, 1, len(hints))
    if number > len(hints):
        return Callout("hint", f"{id} has no more hints", "The solution is folded below the exercise.")
    return Callout("hint", f"{id} hint {number} of {len(hints)}", hints[number - 1])


def exercises(chapter: str | None = None) -> Table:
    """The exercises of a chapter, "13", or of the whole book: id, title, difficulty, minutes.

    Raises:
        ValueError: where the chapter has no exercises.
    """
    found = [item for c in ([chapter] if chapter else chapters()) for item in listed(c).items()]
    rows = [(id, said["title"], DIFFICULTIES[said["difficulty"]], said["minutes"]) for id, said in found]
    return Table(("exercise", "what", "difficulty", "minutes"), rows)


def exercise(id: str) -> Exercise:
    """The exercise of that id.

    Raises:
        ValueError: where there is none; the message names near matches.
    """
    chapter = chapter_of(str(id))
    near = [chapter] if chapter in chapters() else chapters()
    checks.one_of("exercise", "id", id, [known for c in near for known in listed(c)])
    return bank(chapter)[id]


def chapter_of(id: str) -> str:
    """The chapter of an id: "13" of "12.2"."""
    return id.partition(".")[0]


@cache
def chapters() -> tuple[str, ...]:
    """The numbers of the chapters that have exercises, in order."""
    found = resources.files(__package__).joinpath("bank").iterdir()
    return tuple(sorted(file.name[1:3] for file in found if file.name.endswith(".toml")))


@cache
def listed(chapter: str) -> dict[str, dict]:
    """The texts of a chapter's exercises, by id, in order; nothing is computed.

    Raises:
        ValueError: where the chapter has none.
    """
    checks.one_of("exercises", "chapter", chapter, chapters())
    return files.toml(__package__, f"bank/c{chapter}.toml")


@cache
def bank(chapter: str) -> dict[str, Exercise]:
    """A chapter's exercises by id, in order.

    Raises:
        ValueError: where the chapter has none, or its files do not match.
    """
    computed = import_module(f".bank.c{chapter}", __package__).ANSWERS
    return import_module(".bank", __package__).joined(chapter, listed(chapter), computed)
