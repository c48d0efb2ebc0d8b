"""The cards of a prediction, in JupyterLab and in a page without a kernel: a field for the guess, and the answer beside it."""

from collections.abc import Callable

import anywidget
import traitlets

from .. import units
from ..common import files
from .quantities import show


def program() -> str:
    """The cards' program, in JavaScript."""
    return files.text("everybyte.common", "keeping.js") + "\n" + files.text(__package__, "cards.js")


class Card(anywidget.AnyWidget):
    """One card. `spec`: its texts and numbers; `guess`: what the reader typed and locked in."""

    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)
    spec = traitlets.Dict().tag(sync=True)
    guess = traitlets.Unicode("").tag(sync=True)

    def __init__(self, **spec):
        super().__init__(_esm=program(), _css=files.text(__package__, "cards.css"), spec=spec)


def _spec(prediction):
    memory = prediction.unit in units.UNITS
    return {
        "id": prediction.id, "unit": prediction.unit, "memory": memory, "units": units.UNITS if memory else {},
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
