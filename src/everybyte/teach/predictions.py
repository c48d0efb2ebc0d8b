"""A number committed to before it is seen, and the two side by side afterwards."""

from dataclasses import dataclass
from fractions import Fraction
from textwrap import shorten

from . import kept
from .callout import Callout
from .quantities import missing, read, show

_MADE: dict[str, "Prediction"] = {}
#: Closer than this, a guess is called close.
_CLOSE = Fraction(11, 10)


@dataclass(frozen=True)
class Prediction:
    """A reader's guess. `value` is in bytes where `unit` is one of bytes, None where there is no guess; `trouble` says why.

    `note`: why it could not be kept for `progress()`, "" where it was.
    """

    id: str
    question: str
    unit: str
    value: Fraction | None
    trouble: str = ""
    note: str = ""

    def reveal(self, value: float | Fraction) -> Callout:
        """The answer beside the guess, and by what factor they differ. `value` is in bytes where the unit is one of bytes."""
        answer = f"The answer is {show(value, self.unit)}"
        if self.value is None:
            return Callout("guess", f"Prediction {self.id}", f"No guess was made. {answer}.")
        text = f"You said {show(self.value, self.unit)}. {answer}: {_apart(self.value, Fraction(value))}"
        return Callout("guess", f"Prediction {self.id}", text)

    @property
    def callout(self) -> Callout:
        """What the reader sees now."""
        if self.value is not None:
            text = f"You say {show(self.value, self.unit)}. The chapter will answer."
            return Callout("guess", f"Prediction {self.id}", f"{self.question} {text}".strip()).and_said(self.note)
        example = f'"1.5 {self.unit}"' if self.unit else "1.5"
        how = f"Not guessed yet: put a number, such as {example}, in place of the three dots and run the cell again."
        text = " ".join(filter(None, [self.question, self.trouble, how]))
        return Callout("unreadable" if self.trouble else "open", f"Prediction {self.id}", text)

    def __repr__(self):
        return repr(self.callout)

    def _repr_html_(self):
        return self.callout._repr_html_()


def predict(id: str, guess: object, question: str = "", *, unit: str = "GiB") -> Prediction:
    """Commit to a number before seeing it; kept in this session for `reveal`, and that it was made for `progress()`.

    Args:
        id: such as "P13.1", which no exercise has. guess: a number, or text with a unit; `...` until the reader edits it.
        unit: what a plain number means. Of bytes where it is one of `units.UNITS`.
    """
    value, trouble = None, ""
    try:
        value = None if missing(guess) else read(guess, unit)
    except ValueError as error:
        trouble = f"The guess could not be read: {shorten(str(error), 200)}."
    note = "" if value is None else kept.keep(kept.PREDICTED, id)
    made = Prediction(id, question, unit, value, trouble, note)
    if not (trouble and id in _MADE and _MADE[id].value is not None):
        _MADE[id] = made  # an earlier guess that could be read stands, until another can
    return made


def reveal(id: str, value: float) -> Callout:
    """The answer beside the guess that `predict(id, ...)` took. `value` is in bytes where that unit is one of bytes.

    Raises:
        ValueError: where no `predict` with this id ran in this session.
    """
    if id not in _MADE:
        known = ", ".join(_MADE) or "none yet"
        raise ValueError(f"reveal.id: {id!r} was not predicted in this session; allowed: {known}")
    return _MADE[id].reveal(value)


def _apart(guess, answer):
    if guess == answer:
        return "exactly."
    if guess * answer <= 0:
        return "no factor joins the two."
    factor = max(guess / answer, answer / guess)
    if factor <= _CLOSE:
        return "within a tenth of it."
    return f"{float(factor):.3g} times too {'much' if abs(guess) > abs(answer) else 'little'}."
