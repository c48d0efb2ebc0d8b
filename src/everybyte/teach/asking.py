"""A training step, and the questions of exercises and interview cards about it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Self

from ..ask.setup import Setup
from ..catalog import model
from ..formulas import formula
from ..theory.budget import Budget, budget

_budget = cache(budget)
_PLAIN = Setup()


@dataclass(frozen=True)
class Run:
    """A model and a setup. Each method takes changed fields of the setup; amounts are in bytes.

    Without a model (None) only formulas of setups have values.
    """

    model: Any
    setup: Setup = _PLAIN

    def having(self, **changes) -> Self:
        """The same with some fields of the setup changed."""
        return replace(self, setup=self.setup.replace(**changes))

    @property
    def parameters(self) -> int:
        """The model's parameter count."""
        return int(self.model.parameters)

    def step(self, rounding: int = 1, rank: int = 0, **changes) -> Budget:
        """The budget of a step. Raise ValueError where the step is not derived for the model."""
        return self.budget(self.having(**changes).setup, rounding, rank)

    def budget(self, setup: Setup, rounding: int = 1, rank: int = 0) -> Budget:
        """The budget of the model's step under a setup as it is."""
        return _budget(self.model, setup, rounding, rank)

    def peak(self, **changes) -> int:
        """The peak of a step."""
        return self.step(**changes).peak

    def falls(self, by: dict, **changes) -> int:
        """The bytes by which the peak falls when `by` is changed too."""
        return self.peak(**changes) - self.peak(**changes | by)

    def phase(self, name: str, **changes) -> int:
        """Live bytes at the end of a phase, `rest` or `after_forward`; for `step` the most within it."""
        return self.step(**changes).phases[name]

    def part(self, name: str, phase: str = "after_forward", **changes) -> int:
        """Bytes of a part at the end of a phase."""
        return self.step(**changes).parts_at(phase)[name]

    def in_step(self, **changes) -> int:
        """The optimizer step's largest live bytes, above those after it."""
        return self.phase("step", **changes) - self.phase("after_step", **changes)

    def forward(self, **changes) -> int:
        """Bytes that forward leaves for backward."""
        return self.phase("after_forward", **changes) - self.phase("rest", **changes)

    def of_block(self, measure: Callable[..., Any], *asked, **changes):
        """Bytes that a third block adds to one of these amounts, as in `run.of_block(Run.part, "casts")`."""
        runs = (replace(self, model=self.model.replace(layers=n)) for n in (3, 2))
        three, two = (measure(run, *asked, **changes) for run in runs)
        return three - two

    def at(self, name: str, symbols: dict | None = None, **changes):
        """A registered formula's value. symbols: values in place of the run's."""
        return formula(name).at(self.model, self.having(**changes).setup, **(symbols or {}))


def run(name: str, setup: Setup = _PLAIN, **changes) -> Run:
    """A run of a model of the catalog."""
    return Run(model(name, "reference"), setup.replace(**changes))
