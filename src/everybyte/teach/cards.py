"""The cards of predictions and exercises, in JupyterLab and in a page without a kernel: a field for a number, and what is said of it."""

import os
from collections.abc import Callable

import anywidget
import traitlets

from .. import units
from ..common import files
from . import marking
from .callout import ALONE, Callout
from .quantities import LARGEST_MEMORY, show, spelled


def program() -> str:
    """The cards' program, in JavaScript."""
    return files.script(__package__, "cards.js")


class Card(anywidget.AnyWidget):
    """One card. `spec`: its texts and numbers; `guess`: what the reader typed and locked in; `verdict`: the kernel's on that text."""

    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)
    spec = traitlets.Dict().tag(sync=True)
    guess = traitlets.Unicode("").tag(sync=True)
    verdict = traitlets.List().tag(sync=True)

    def __init__(self, **spec):
        super().__init__(_esm=program(), _css=files.text(__package__, "cards.css"), spec=spec)


def _spec(prediction):
    return {
        "id": prediction.id, "unit": prediction.unit, "how": spelled(prediction.unit),
        "most": LARGEST_MEMORY if prediction.unit in units.UNITS else None,
        "guess": None if prediction.value is None else [float(prediction.value), show(prediction.value, prediction.unit)],
    }  # fmt: skip


def asked(prediction, locked: Callable[[str], object]) -> Card:
    """The card that asks. locked: told what the reader locks in."""
    card = Card(kind="asks", question=prediction.question, **_spec(prediction))
    card.observe(lambda change: locked(change.new), "guess")
    return card


def answered(answer) -> Card:
    """The card with the answer: shown beside a guess, or when it is asked for."""
    said = [float(answer.value), show(answer.value, answer.guess.unit)]
    return Card(kind="answers", answer=said, **_spec(answer.guess))


def exercise(exercise, checked: Callable[[str], Callout]) -> Card:
    """The card of an exercise on a number. checked: the verdict on what the reader types, where there is a kernel."""
    verdicts = {"right": "right", "not yet": "wrong", "could not be read": "unreadable"}
    spec = {
        "kind": "marks", "id": exercise.id, "title": exercise.title, "unit": exercise.unit, "how": spelled(exercise.unit),
        "exactness": exercise.exactness, "wanted": exercise.wanted, "hints": list(exercise.hints),
        "heads": {kind: exercise.said(said, "").marked for said, kind in verdicts.items()},
    }  # fmt: skip
    if os.environ.get(ALONE):
        spec["rows"] = [row.data() for row in marking.rows(exercise)]
    card = Card(**spec)

    def mark(change):
        said = checked(change.new)
        card.verdict = [change.new, said.kind, said.marked, said.text]

    card.observe(mark, "guess")
    return card
