"""A step's memory with a letter for every dimension: of the batch, and of the model itself."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sympy

from .. import units
from ..ask.setup import Setup
from ..catalog import Model
from ..common import checks
from ..common.tables import Shown, Table
from ..step.course import PHASES
from ..step.witness import heading
from .symbolic import maximum

#: Letter -> (what it counts, field of `Model` or `Setup`), as the book's notation has them.
LETTERS = {
    "B": ("sequences in a step", "batch"),
    "S": ("tokens in a sequence", "sequence"),
    "L": ("layers", "layers"),
    "A": ("attention heads", "heads"),
    "A_{kv}": ("key and value heads", "kv_heads"),
    "D": ("width of a head", "head_width"),
    "F": ("inner width of the MLP", "ffn_width"),
    "V": ("entries of the vocabulary", "vocabulary"),
    "N": ("rows of the learned position table", "learned_positions"),
}


def symbol(name: str):
    """The letter, as the book's notation has it in sympy."""
    sign = {"nonnegative": True} if name == "N" else {"positive": True}
    return sympy.Symbol(name, integer=True, **sign)


def check_width(model: Model):
    """The width has no letter: refuse one that heads of their own width do not make up."""
    if model.width != model.heads * model.head_width:
        raise ValueError(
            f"derive.model: width {model.width} of {model.name} in letters; allowed: heads by head_width, "
            f"{model.heads * model.head_width}"
        )


@dataclass(frozen=True)
class LetteredInstant:
    """One operation of the step: `parts` is part -> live bytes while it runs, as sympy expressions; `total` their sum."""

    operation: str
    phase: str
    owner: str
    at: str
    parts: dict[str, Any]
    total: Any


@dataclass(frozen=True, eq=False)
class Lettered(Shown):
    """A step's memory as formulas in the letters of `LETTERS`: of every model of an architecture, at every batch and sequence.

    Attributes:
        model: one of the architecture. setup: its batch and sequence are not read. instants: in the step's order, of the
            layers the first and the last. highest: numbers of those of which one is the highest, by proof; step: the same
            of the optimizer's step alone. moments: the end of a phase, or rest -> the number of its instant.
        conditions: under what it holds: (in words, as a sympy condition) each. how: how it was obtained, in words.
    """

    model: Model
    setup: Setup
    instants: tuple[LetteredInstant, ...]
    highest: tuple[int, ...]
    step: tuple[int, ...]
    moments: dict[str, int]
    conditions: tuple[tuple[str, Any], ...]
    how: str

    @cached_property
    def peak(self):
        """The peak: the largest of the instants that can be it."""
        return maximum(self.instants[i].total for i in self.highest)

    @cached_property
    def phases(self) -> dict[str, Any]:
        """Live bytes at the end of each phase, and the most in the optimizer's step (`step`)."""
        found = {name: self.instants[i].total for name, i in self.moments.items()}
        found["step"] = maximum(self.instants[i].total for i in self.step)
        return {name: found[name] for name in PHASES}

    def at(self, model: Model | None = None, batch: int | None = None, sequence: int | None = None) -> dict:
        """The step of a model of this architecture: `peak`, `peak_at`, `parts` and `phases` in whole bytes.

        Args:
            model: by default the one that stands for the architecture. batch, sequence: by default the setup's.

        Raises:
            ValueError: a model of another architecture, or numbers that violate a condition, which is named.
        """
        model = self.model if model is None else model
        values = self._values(model, batch, sequence)
        for words, condition in self.conditions:
            if not condition.subs(values):
                said = ", ".join(f"{s} = {v:,}" for s, v in values.items())
                raise ValueError(f"derive: {words} does not hold for {said} ({condition})")
        totals = [int(self.instants[i].total.subs(values)) for i in self.highest]
        best = self.instants[self.highest[totals.index(max(totals))]]
        return {
            "peak": max(totals),
            "peak_at": best.at,
            "parts": {part: int(e.subs(values)) for part, e in best.parts.items()},
            "phases": {name: int(e.subs(values)) for name, e in self.phases.items()},
        }

    def _values(self, model, batch, sequence):
        checks.kind("derive", "model", model, Model)
        changed = {name for name in vars(self.model) if getattr(model, name) != getattr(self.model, name)}
        dimensions = {field for _, field in LETTERS.values()} | {"width", "positions", "embedding_width"}
        if strange := sorted(changed - dimensions - {"name", "published", "source"}):
            field = strange[0]
            raise ValueError(
                f"derive.model: {field} {getattr(model, field)!r} of {model.name}; allowed: {getattr(self.model, field)!r}, as in "
                f"{self.model.name}: other dimensions alone"
            )
        grouped = model.kv_heads < model.heads
        if grouped != (self.model.kv_heads < self.model.heads):  # kernels repeat key heads only where they are fewer
            raise ValueError(
                f"derive.model: kv_heads {model.kv_heads} of {model.name}; allowed: {'as many as' if grouped else 'fewer than'} "
                f"heads, as in {self.model.name}"
            )
        check_width(model)
        said = {"batch": batch, "sequence": sequence}
        run = {name: getattr(self.setup, name) if n is None else n for name, n in said.items()}
        self.setup.replace(**run).check_model(model)
        return {symbol(name): run.get(field, getattr(model, field, None)) for name, (_, field) in LETTERS.items()}

    @property
    def symbols(self) -> list[tuple[Any, str]]:
        """(letter, what it counts) of each letter that the formulas have."""
        used = set().union(*(i.total.free_symbols for i in self.instants))
        return [(symbol(name), words) for name, (words, _) in LETTERS.items() if symbol(name) in used]

    def latex(self) -> str:
        """The peak, as LaTeX."""
        return sympy.latex(self.peak)

    def table(self) -> Table:
        """The instants that can be the peak, with their formulas."""
        chosen = [self.instants[i] for i in self.highest]
        rows = [(i.at, i.owner or "the whole model", i.operation, str(i.total)) for i in chosen]
        title = f"{self.model.name}'s architecture, {self.setup.precision}: the highest of"
        return Table(("peak in", "module", "operation", "bytes"), rows, title)

    def said(self) -> list[str]:
        """The lines under the table."""
        letters = "; ".join(f"{s}: {words}" for s, words in self.symbols)
        held = "; ".join(words for words, _ in self.conditions)
        return [f"{letters}.", f"Holds for {held}." if held else "Holds for all of them.", self.how]

    def as_dict(self) -> dict:
        """As JSON holds it: expressions as text."""
        return heading("derive", self.model, self.setup) | {
            "letters": {str(s): words for s, words in self.symbols},
            "peak": str(self.peak),
            "phases": {name: str(e) for name, e in self.phases.items()},
            "conditions": [words for words, _ in self.conditions],
            "how": self.how,
        }

    def __repr__(self):
        letters = ", ".join(str(s) for s, _ in self.symbols)
        return f"<Derivation of {self.model.name}'s architecture in {letters}: {units.number(len(self.highest))} instants can be the peak>"

    __str__ = Shown.__repr__
