"""What `derive` returns: peak, parts and phases of a step as functions of batch and sequence."""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from html import escape
from math import log2
from typing import Any

from .. import checks, units
from ..catalog import Described
from ..setup import LIMITS, Setup
from ..tables import Table
from ..witness import Followed
from . import printing
from .course import Course
from .forms import Form, combine
from .ranges import Range

#: What a tensor may be rounded up to a multiple of: nothing, or blocks as CUDA's allocator has them.
ROUNDINGS = (1, 512)
PHASES = ("rest", "after_forward", "after_backward", "step", "after_step")


@dataclass(frozen=True)
class Column:
    """Tensors of one kind: their `part`, their `owner` with * for its numbers, whether on the `host`, their `form`'s number."""

    part: str
    owner: str
    host: bool
    form: int


@dataclass(frozen=True)
class Instant:
    """One operation of the step.

    Attributes:
        operation, phase, owner: its name, the phase, and the module that it belongs to. at: where in the step, in words.
        place: its number in the step. counts: what lives while it runs, as (column's number, how many).
    """

    operation: str
    phase: str
    owner: str
    at: str
    place: int
    counts: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Case:
    """Where one course of operations holds, and its instants.

    Attributes:
        batch, sequence: the ranges. instants: in the step's order. peak: numbers of those of which one is the highest;
            rounded: with those that may be once tensors are rounded up. step: the same of the optimizer's step alone.
        moments: the end of a phase, or rest -> the number of its instant. course: all operations.
    """

    batch: Range
    sequence: Range
    instants: tuple[Instant, ...]
    peak: tuple[int, ...]
    rounded: tuple[int, ...]
    step: tuple[int, ...]
    moments: dict[str, int]
    course: Course

    def __contains__(self, point: tuple[int, int]) -> bool:
        return point[0] in self.batch and point[1] in self.sequence


@dataclass(frozen=True)
class Region:
    """Where one instant is the peak: `peak` and `parts` as sympy expressions, and whose it is."""

    instant: Instant
    peak: object
    parts: dict[str, object]
    condition: object


@dataclass(frozen=True, eq=False, repr=False)
class Point(Followed):
    """A derivation's bytes at one batch and sequence, as any witness says them.

    Attributes:
        model, setup, rounding: of the step. instant: the one at which the most bytes live. parts: bytes of each part there.
        phases: live bytes between steps (`rest`), after each phase, and the most in the optimizer's step (`step`).
        moments: phase -> bytes of each part at its end. host: of each part in the memory of the CPU, after backward.
        marks: the end of a phase, or rest -> its place in the timeline. rank: of several GPUs the one that it is.
        again: counts the step by a dry run; None where the derivation does not know its model.
    """

    witness = "derive"

    model: Described
    setup: Setup
    rounding: int
    instant: Instant
    parts: dict[str, int]
    phases: dict[str, int]
    moments: dict[str, dict[str, int]]
    owned: tuple = field(repr=False)
    host: dict[str, int] = field(default_factory=dict)
    rank: int = 0
    marks: dict[str, int] = field(default_factory=dict, repr=False)
    unrolled: Callable = field(default=lambda: ([], {}), repr=False)
    again: Callable[[], Any] | None = field(default=None, repr=False)

    @cached_property
    def _whole(self):
        return self.unrolled()

    @property
    def operations(self) -> list[tuple[str, str, str]]:
        """(name, phase, owner) of each operation that allocates, and of each mark."""
        return self._whole[0]

    def timeline(self) -> dict[str, list[int]]:
        """Live bytes while each operation runs, by part."""
        return self._whole[1]

    @cached_property
    def live(self) -> list[int]:
        """Live bytes while each operation runs."""
        return [sum(parts) for parts in zip(*self.timeline().values(), strict=True)]

    @property
    def peak_operation(self) -> int:
        """The number of the first operation at which the most bytes live."""
        return self.instant.place

    def figure(self):
        """Live bytes over the operations of the step: matplotlib's figure, with its text as `alt`."""
        from .. import draw

        s = self.setup
        title = f"{self.model.name}, {s.precision}, batch {s.batch:,}, sequence {s.sequence:,}: derived"
        return draw.timeline(self, title, units.largest(self.peak))

    def on(self, gpu, configuration="", memory: int | None = None):
        """What PyTorch's allocator makes of the step on a GPU: a `Reserved`, as a dry run's `on` says it, which is run for it.

        A formula knows how many bytes live at an instant; in which order they come and go, it does not keep.

        Raises:
            ValueError: where the derivation does not know its model.
        """
        if self.again is None:
            raise ValueError(
                f"derive.on: {self.model.name} is known by its formula alone; allowed: eb.dry_run(model, setup).on(gpu)"
            )
        return self.again().on(gpu, configuration, memory)

    @property
    def peak(self) -> int:
        """The most bytes that live at once."""
        return sum(self.parts.values())

    @property
    def peak_at(self) -> str:
        """Where in the step the peak is."""
        return self.instant.at

    def parts_at(self, phase: str) -> dict[str, int]:
        """Bytes of each part at the end of a phase: `rest`, `after_forward`, `after_backward` or `after_step`."""
        checks.one_of("Point", "phase", phase, self.moments)
        return self.moments[phase]

    def by_owner(self) -> list[tuple[str, str, int, int]]:
        """What lives at the peak: (owner, part, tensors, bytes), most bytes first, all blocks' gathered as `blocks.*`."""
        return list(self.owned)

    def table(self) -> Table:
        """Parts at the peak, phases, and the peak."""
        rows = [(name, size, units.text(size)) for name, size in self.parts.items() if size]
        rows += [(name, size, units.text(size)) for name, size in self.phases.items()]
        rows.append((f"peak, in {self.peak_at}", self.peak, units.text(self.peak)))
        title = f"{self.model.name}, batch {self.setup.batch:,}, sequence {self.setup.sequence:,}"
        return Table((title, "bytes", ""), rows)

    def __repr__(self):
        s = self.setup
        return f"<{self.model.name}, batch {s.batch}, sequence {s.sequence}: peak {units.exact(self.peak)}, in {self.peak_at}>"


@dataclass(frozen=True, eq=False)
class Derivation:
    """A step's memory as a formula in B sequences of S tokens.

    Attributes:
        model: the `Model`, or what was counted of one's own. setup: as given; its batch and sequence are not read.
        layers: the model's depth, None where unknown. forms, columns, cases: the formula itself, in whole numbers.
        part_names: in order. refused: (range of batches, range of sequences, why) of what the model cannot take.
        how: how it was obtained, in words. checked: further dry runs that it was compared with: (layers, batch, sequence).
        letters: which of B and S the model's arguments have. rank: of several GPUs the one whose step it is.
        again: from a setup to the dry run of its step; None where the model is not known any more.
    """

    model: Described
    setup: Setup
    layers: int | None
    forms: tuple[Form, ...]
    columns: tuple[Column, ...]
    cases: tuple[Case, ...]
    part_names: tuple[str, ...]
    refused: tuple[tuple[Range, Range, str], ...]
    how: str
    checked: tuple[tuple[int | None, int, int], ...]
    letters: str = "BS"
    rank: int = 0
    again: Callable[[Setup], Any] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def parameters(self) -> int:
        return int(self.model.parameters)

    # Numbers.

    def at(self, batch: int | None = None, sequence: int | None = None, rounding: int = 1) -> Point:
        """The bytes of one step.

        Args:
            batch, sequence: by default the setup's. rounding: 1, or 512: each tensor rounded up as CUDA's allocator does.

        Raises:
            ValueError: where a condition is violated, naming it.
        """
        batch = self.setup.batch if batch is None else batch
        sequence = self.setup.sequence if sequence is None else sequence
        self._check_rounding(rounding)
        case = self.case(batch, sequence)
        exact = printing.sizes(self)(batch, sequence)
        sizes = [-(-size // rounding) * rounding for size in exact]

        def total(instant):
            return sum(n * sizes[self.columns[c].form] for c, n in instant.counts if not self.columns[c].host)

        best = max((case.instants[i] for i in case.rounded), key=total)  # of equals the first
        moments = {m: self._parts(case.instants[i], sizes) for m, i in case.moments.items()}
        phases = {m: sum(parts.values()) for m, parts in moments.items()}
        phases["step"] = max(total(case.instants[i]) for i in case.step)
        setup = self.setup.replace(batch=batch, sequence=sequence)
        return Point(
            self.model, setup, rounding, best, self._parts(best, sizes), {m: phases[m] for m in PHASES}, moments,
            self._owners(best, sizes), self._host(case, exact), self.rank,
            {m: case.instants[i].place for m, i in case.moments.items()}, partial(self._unrolled, case, sizes),
            self.again and partial(self.again, setup),
        )  # fmt: skip

    def _unrolled(self, case, sizes):
        """(operations, {part: live bytes at each}) of a whole step."""
        operations, lines = case.course.unrolled([None if c.host else (c.part, sizes[c.form]) for c in self.columns])
        return operations, {part: lines.get(part, [0] * len(operations)) for part in self.part_names}

    def _check_rounding(self, rounding):
        if rounding not in ROUNDINGS:
            raise ValueError(f"derive.rounding: {rounding!r}; allowed: 1, or 512 as CUDA's allocator rounds")

    def case(self, batch: int, sequence: int) -> Case:
        """The case that holds there; ValueError, naming the violated condition, where none does."""
        for name, value in (("batch", batch), ("sequence", sequence)):
            checks.whole("derive", name, value, *LIMITS[name])
        for case in self.cases:
            if (batch, sequence) in case:
                return case
        for batches, sequences, why in self.refused:
            if batch in batches and sequence in sequences:
                raise ValueError(f"derive: batch {batch:,}, sequence {sequence:,} of {self.name}: {why}")
        for name, value in (("batch", batch), ("sequence", sequence)):
            ranges = [getattr(c, name) for c in self.cases]
            if not any(value in r for r in ranges):
                low, high = min(r.low for r in ranges), max(r.high for r in ranges)
                raise ValueError(
                    f"derive.{name}: {value:,} violates {low:,} <= {name} <= {high:,}, for which {self.name} was derived; "
                    "allowed: such values, or eb.dry_run"
                )
        raise ValueError(f"derive: no case holds at batch {batch:,}, sequence {sequence:,} of {self.name}")

    def range(self, vary: str) -> tuple[int, int]:
        """The least and the most `batch` or `sequence` that the formula holds for."""
        names = [name for name, letter in (("batch", "B"), ("sequence", "S")) if letter in self.letters]
        checks.one_of("derive", "vary", vary, names)
        ranges = [getattr(c, vary) for c in self.cases]
        return min(r.low for r in ranges), max(r.high for r in ranges)

    def _parts(self, instant, sizes):
        found = dict.fromkeys(self.part_names, 0)
        for c, n in instant.counts:
            column = self.columns[c]
            if not column.host:
                found[column.part] += n * sizes[column.form]
        return found

    def _owners(self, instant, sizes):
        found = {}
        for c, n in instant.counts:
            column = self.columns[c]
            if not column.host:
                count, size = found.get((column.owner, column.part), (0, 0))
                found[column.owner, column.part] = count + n, size + n * sizes[column.form]
        return tuple(sorted(((*key, *row) for key, row in found.items()), key=lambda row: -row[3]))

    def _host(self, case, sizes):
        there = [(self.columns[c], n) for c, n in case.instants[case.moments["after_backward"]].counts]
        found = dict.fromkeys(("parameters", "gradients", "optimizer"), 0)
        if not any(column.host for column, _ in there):
            return {}
        for column, n in there:
            if column.host and column.part in found:
                found[column.part] += n * sizes[column.form]
        return found

    def peaks(self, batch, sequence, rounding: int = 1):
        """The peaks of many steps at once, over arrays of batches and sequences, which broadcast.

        Returns:
            (peak, where): arrays of their common shape: bytes, exact whatever their size, and the number of the instant
            in `instants`.

        Raises:
            ValueError: where a condition is violated at one of the points.
        """
        self._check_rounding(rounding)
        return printing.peaks(self, batch, sequence, rounding)

    @property
    def instants(self) -> list[Instant]:
        """All that may be the peak, case by case, as `peaks` numbers them."""
        return [case.instants[i] for case in self.cases for i in case.rounded]

    def compiled(self, rounding: int = 1):
        """The peak as a Python function of batch and sequence: a few microseconds a call.

        It raises ValueError where no case holds.
        """
        self._check_rounding(rounding)
        return printing.compiled(self, rounding)

    def largest(self, vary: str, gpu, headroom=None):
        """The largest `batch` or `sequence`, the other as in the setup, that fits a GPU: a `Fit`.

        Args:
            gpu: of the catalog, by name too. headroom: what is kept free; by default the GPU's own.
        """
        from ..fit import fit

        return fit(self, self.setup, gpu, vary, headroom)

    # Formulas.

    @cached_property
    def peak(self):
        """The peak as a sympy expression in B and S."""
        return printing.cases(
            self, lambda case: printing.maximum([self.expression(case.instants[i]) for i in case.peak])
        )

    @cached_property
    def parts(self) -> dict:
        """The parts at the peak as sympy expressions: where several instants can be the peak, by pieces."""
        return {part: printing.cases(self, lambda case, part=part: self._piece(case, part)) for part in self.part_names}

    def _piece(self, case, part=None, columns=None):
        chosen = [case.instants[i] for i in case.peak]
        return printing.by_highest([(self.expression(i), self.expression(i, part, columns)) for i in chosen])

    def at_the_peak(self, part: str | None = None, owners: Container[str] | None = None):
        """(Python function of batch and sequence, JavaScript of an object with both): bytes of a part at the peak.

        Args:
            part: None for the number of the case that holds. owners: whose, by default everybody's.
        """
        if part is None:
            return printing.at_the_peak(self)
        mine = (i for i, c in enumerate(self.columns) if not c.host and c.part == part)
        return printing.at_the_peak(self, {i for i in mine if owners is None or self.columns[i].owner in owners})

    def places(self, batch: int, sequence: int) -> list[str]:
        """Of each operation of a step where in the step it is, in words."""
        course = self.case(batch, sequence).course
        return [course.places[n] for n in course.every_change()[0]]

    @cached_property
    def phases(self) -> dict:
        """Live bytes at the end of each phase as sympy expressions."""

        def of(name):
            def expression(case):
                if name == "step":
                    return printing.maximum([self.expression(case.instants[i]) for i in case.step])
                return self.expression(case.instants[case.moments[name]])

            return printing.cases(self, expression)

        return {name: of(name) for name in PHASES}

    def expression(self, instant: Instant, part: str | None = None, columns: Container[int] | None = None):
        """The live bytes of an instant, or of one part or some columns there, as a sympy expression."""
        return printing.expression(self.sum_of(instant, part, columns))

    def sum_of(self, instant: Instant, part: str | None = None, columns: Container[int] | None = None) -> dict:
        """The same as coefficients of monomials."""
        counts = {}
        for c, n in instant.counts:
            column = self.columns[c]
            if not column.host and part in (None, column.part) and (columns is None or c in columns):
                counts[self.forms[column.form]] = counts.get(self.forms[column.form], 0) + n
        return combine(counts)

    @cached_property
    def regions(self) -> list[Region]:
        """The instants that are the peak somewhere, in the order of the step, each with where it is: of the widest case."""
        case = self.main
        chosen = [case.instants[i] for i in printing.winners(self, case)]
        found = []
        for instant in chosen:
            others = [o for o in chosen if o is not instant]
            mine = self.expression(instant)
            parts = {p: e for p in self.part_names if (e := self.expression(instant, p)) != 0}
            found.append(Region(instant, mine, parts, printing.above(mine, [self.expression(o) for o in others])))
        return found

    @property
    def main(self) -> Case:
        """The case with the widest range of batches and sequences, counted in doublings."""

        def doublings(r):
            return log2(r.high / r.low) * (1 if r.multiples else 1.01)

        return max(self.cases, key=lambda c: (1 + doublings(c.batch)) * (1 + doublings(c.sequence)))

    @cached_property
    def conditions(self) -> list[tuple[str, object]]:
        """Under what the formula holds: (in words, as a sympy condition) each."""
        return printing.conditions(self)

    def latex(self) -> str:
        """The peak, as LaTeX."""
        return printing.latex(self)

    def javascript(self, rounding: int = 1) -> str:
        """The peak as an arrow function of an object with batch and sequence; exact below 2^53 bytes (8 PiB)."""
        self._check_rounding(rounding)
        return printing.javascript(self, rounding)

    # What is shown.

    def table(self) -> Table:
        """The instants that can be the peak, with their formulas."""
        rows = [
            (r.instant.at, r.instant.owner or "the whole model", r.instant.operation, printing.readable(self.sum_of(r.instant)))
            for r in self.regions
        ]  # fmt: skip
        return Table(("peak in", "module", "operation", "bytes"), rows, self._title())

    def _title(self):
        depth = f", {self.layers} layers" if self.layers else ""
        return f"{self.name}{depth}, {units.number(self.parameters)} parameters, {self.setup.precision}: the highest of"

    def said(self) -> list[str]:
        """The lines under the table: the conditions, and how the formula was obtained."""
        held = "; ".join(words for words, _ in self.conditions)
        others = [printing.place(self, case) for case in printing.unlike(self)]
        lines = [f"Holds for {held}."]
        if others:
            lines.append(f"Cases of their own, with their own formulas: {'; '.join(others)}.")
        return [*lines, self.how]

    def figure(self, sequences: Sequence[int] | None = None, batches: Sequence[int] | None = None, gpu=None):
        """Which instant is the peak, over batches and sequences: matplotlib's figure, with its text as `alt`.

        With a `gpu` of the catalog, a line where the peak passes its memory.
        """
        from .picture import regions

        return regions(self, sequences, batches, gpu)

    def explore(self, gpu=None, view: str = "parts"):
        """The explorer of this formula: batch, sequence and GPU as sliders. `view`: as for `explore.model`."""
        from ..explore import model

        return model(self, gpu, view)

    def as_dict(self) -> dict:
        """As JSON holds it: coefficients in whole numbers."""
        from .keeping import as_dict

        return as_dict(self)

    def __repr__(self):
        count = len(self.regions)
        return (
            f"<Derivation of {self.name}: {count} {'instant' if count == 1 else 'instants'} can be the peak; "
            f"{len(self.cases)} {'case' if len(self.cases) == 1 else 'cases'}>"
        )

    def __str__(self):
        return "\n".join([repr(self.table()), *self.said()])

    def _repr_html_(self):
        return self.table()._repr_html_() + "".join(f"<p>{escape(line)}</p>" for line in self.said())
