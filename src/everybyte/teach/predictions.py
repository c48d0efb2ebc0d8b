"""A guess before a number is shown, and both side by side afterwards."""

import hashlib
import os
from dataclasses import dataclass
from fractions import Fraction
from html import escape
from textwrap import shorten

from .. import units
from . import kept
from .callout import ALONE, Callout, Carded
from .quantities import LARGEST_MEMORY, missing, read, show

#: In an output's metadata, of an answer that the output does not show: {"prediction": its id, "sealed": seals of its words and of its
#: number}, by which who has the answer knows it; and "answer", in words, where pages and slides are made.
TOLD = "everybyte"
_MADE: dict[str, "Prediction"] = {}
#: The largest factor between the answer and a close guess.
_CLOSE = Fraction(11, 10)


@dataclass(frozen=True, repr=False)
class Prediction(Carded):
    """A guess as the reader sees it. `value` is in bytes where `unit` is one of bytes, None where there is no guess."""

    value: Fraction | None
    unit: str
    question: str = ""

    @property
    def id(self) -> str:
        """Of the book: "P12.1"."""
        return self.head.removeprefix("Prediction ")

    def card(self):
        from . import cards

        return cards.asked(self, lambda said: predict(self.id, said, self.question, unit=self.unit))

    def reveal(self, value: float | Fraction) -> Callout:
        """The answer beside the guess, with the factor between them. `value` is in bytes where the unit is one of bytes."""
        answer = f"The answer is {show(value, self.unit)}"
        text = f"No guess was made. {answer}."
        if self.value is not None:
            text = f"You said {show(self.value, self.unit)}. {answer}: {_apart(self.value, Fraction(value))}"
        return Answer("guess", self.head, text, self, Fraction(value))


@dataclass(frozen=True, repr=False)
class Answer(Carded):
    """The answer beside the guess. While there is none only `print` says it, the reader's card, and a page made for paper, folded."""

    guess: Prediction
    value: Fraction

    def _repr_html_(self):
        shown = super()._repr_html_()
        if self.guess.value is not None:
            return shown
        return f"<details><summary>{escape(self.head)}: show the answer, without a guess</summary>{shown}</details>"

    def card(self):
        from . import cards

        return cards.answered(self)

    def _repr_mimebundle_(self, **kwargs):
        data = super()._repr_mimebundle_()
        if self.guess.value is not None:
            return data
        asked = Callout(self.kind, self.head, "No guess was made. print(_) shows the answer without one.")
        id, words = self.guess.id, show(self.value, self.guess.unit)
        told = {"prediction": id, "sealed": [seal(id, words), seal(id, words.partition(" ")[0])]}
        if os.environ.get(ALONE):
            return data | {"text/plain": repr(asked)}, {TOLD: told | {"answer": words}}
        return data | {"text/plain": repr(asked), "text/html": asked._repr_html_()}, {TOLD: told}


def seal(id: str, words: str) -> str:
    """What tells whether these are the words of a prediction's answer, and not what they are."""
    return hashlib.sha256(f"{id} {words}".encode()).hexdigest()[:16]


def predict(id: str, guess: object, question: str = "", *, unit: str = "GiB") -> Prediction:
    """Guess a number before seeing it. The guess is kept in this session for `reveal`; `progress()` keeps that one was made.

    Args:
        id: such as "P12.1", which no exercise has. guess: a number, or text with a unit; `...` until the reader edits it.
        unit: of a plain number; bytes where it is one of `units.UNITS`.
    """
    value, kind, said = None, "open", [question]
    try:
        value = None if missing(guess) else _sized(read(guess, unit), unit)
    except ValueError as error:
        kind = "unreadable"
        said.append(f"The guess could not be read: {shorten(str(error), 200)}.")
    if value is None:
        such = f'a number, such as "1.5 {unit}",' if unit else "a number, such as 1.5,"
        said.append(f"Not guessed yet: put {such} in place of the three dots and run the cell again.")
    else:
        kind = "guess"
        said += [f"You say {show(value, unit)}. The chapter will answer.", kept.keep(kept.PREDICTED, id)]
    made = Prediction(kind, f"Prediction {id}", " ".join(filter(None, said)), value, unit, question)
    if kind != "unreadable" or id not in _MADE or _MADE[id].value is None:
        _MADE[id] = made  # an earlier guess that could be read stands, until another can
    return made


def reveal(id: str, value: float) -> Callout:
    """The answer beside the guess of `predict(id, ...)`. `value` is in bytes where that unit is one of bytes.

    Raises:
        ValueError: where no `predict` with this id ran in this session.
    """
    if id not in _MADE:
        known = ", ".join(_MADE) or "none yet"
        raise ValueError(f"reveal.id: {id!r} was not predicted in this session; allowed: {known}")
    return _MADE[id].reveal(value)


def _sized(value, unit):
    """A guess of bytes that some memory might have; ValueError otherwise."""
    if unit in units.UNITS and not 0 <= value <= LARGEST_MEMORY:
        raise ValueError(f"memory is from 0 B to {units.text(LARGEST_MEMORY)}")
    return value


def _apart(guess, answer):
    if guess == answer:
        return "exactly."
    if guess * answer <= 0:
        return "no factor joins the two."
    factor = max(guess / answer, answer / guess)
    if factor <= _CLOSE:
        return "within a tenth of it."
    return f"{float(factor):.3g} times too {'much' if abs(guess) > abs(answer) else 'little'}."
