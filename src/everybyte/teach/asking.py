"""What exercises ask of the library about a model of the catalog, by its name; a setup where it is not the default, and changes of it."""

from ..ask.setup import Setup
from ..catalog import model
from ..formulas import formula
from ..theory.budget import budget

_PLAIN = Setup()


def step(name: str, setup: Setup = _PLAIN, **changes):
    """The budget of a step."""
    return budget(model(name), setup.replace(**changes))


def peak(name: str, setup: Setup = _PLAIN, **changes) -> int:
    """The peak of that."""
    return step(name, setup, **changes).peak


def at(what: str, name: str, setup: Setup = _PLAIN, **changes):
    """A registered formula's value."""
    return formula(what).at(model(name), setup.replace(**changes))


def parameters(name: str) -> int:
    """How many there are."""
    return int(model(name).parameters)
