"""What `derive` returns: peak, parts and phases of a step as functions of batch and sequence."""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from html import escape
from math import log2, prod
from typing import Any

from .. import units
from ..ask.setup import LIMITS, Setup
from ..catalog import Described
from ..common import checks
from ..common.tables import Table
from ..step.course import place_of
from ..step.witness import Counted, Followed
from . import keeping, printing
from .course import Case, Column, Instant, unrolled
from .forms import USUAL, Form, combine
from .printing import NAMES
from .ranges import LONGEST, Range

#: What a tensor may be rounded up to a multiple of: nothing, or blocks as CUDA's allocator has them.
ROUNDINGS = (1, 512)
PHASES = ("rest", "after_forward", "after_backward", "step", "after_step")


@dataclass(frozen=True)
class Region:
    """Where one instant is the peak: `peak` and `parts` as sympy expressions, and whose it is."""

    instant: Instant
    peak: object
    parts: dict[str, object]
    condition: object


@dataclass(frozen=True, eq=False, repr=False)
class Point(Followed):
    """A derivation's bytes at one batch, sequence, and size of each further letter, as any witness says them.

    Attributes:
        model, setup, rounding: of the step. instant: the one at which the most bytes live. parts: bytes of each part there.
        phases: live bytes between steps (`rest`), after each phase, and the most in the optimizer's step (`step`).
        moments: phase -> bytes of each part at its end. host: of each part in the memory of the CPU, after backward.
        marks: the end of a phase, or rest -> its place in the timeline. rank: of several GPUs the one that it is.
        again: counts the step by a dry run; None where the derivation does not know its model. sizes: of the reader's own letters.
        unsaid: of batch and sequence those that the model's arguments do not have: any is as good as another.
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
    sizes: dict[str, int] = field(default_factory=dict)
    unsaid: tuple[str, ...] = ()

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
        part_names: in order. refused: (ranges, why) of what the model cannot take.
        how: how it was obtained, in words. checked: further dry runs that it was compared with: (layers, batch, sequence, ...).
        letters: those that the model's arguments have: B, S, and the reader's own. rank: of several GPUs the one whose step it is.
        again: from a setup and sizes of further letters to the dry run of its step; None where the model is not known any more.
    """

    model: Described
    setup: Setup
    layers: int | None
    forms: tuple[Form, ...]
    columns: tuple[Column, ...]
    cases: tuple[Case, ...]
    part_names: tuple[str, ...]
    refused: tuple[tuple[tuple[Range, ...], str], ...]
    how: str
    checked: tuple[tuple[int | None, ...], ...]
    letters: str = "BS"
    rank: int = 0
    again: Callable[..., Any] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def parameters(self) -> int:
        return int(self.model.parameters)

    @property
    def further(self) -> str:
        """The reader's own letters."""
        return self.letters.translate({ord(letter): None for letter in USUAL})

    # Numbers.

    def at(self, batch: int | None = None, sequence: int | None = None, rounding: int = 1, **sizes: int) -> Point:
        """The bytes of one step.

        Args:
            batch, sequence: by default the setup's. rounding: 1, or 512: each tensor rounded up as CUDA's allocator does.
            sizes: of the reader's own letters, such as R=224, all of them; B and S are the batch and the sequence.

        Raises:
            ValueError: a letter that is not there, or is missing; where a condition is violated, naming it.
        """
        batch, sequence, sizes = self._point(batch, sequence, sizes)
        self._check_rounding(rounding)
        case = self.case(batch, sequence, **sizes)
        exact = printing.sizes(self)(batch, sequence, *sizes.values())
        each = [-(-size // rounding) * rounding for size in exact]

        def total(instant):
            return sum(n * each[self.columns[c].form] for c, n in instant.counts if not self.columns[c].host)

        best = max((case.instants[i] for i in case.rounded), key=total)  # of equals the first
        moments = {m: self._parts(case.instants[i], each) for m, i in case.moments.items()}
        phases = {m: sum(parts.values()) for m, parts in moments.items()}
        phases["step"] = max(total(case.instants[i]) for i in case.step)
        setup = self.setup.replace(batch=batch, sequence=sequence)
        return Point(
            self.model, setup, rounding, best, self._parts(best, each), {m: phases[m] for m in PHASES}, moments,
            self._owners(best, each), self._host(case, exact), self.rank,
            {m: case.instants[i].place for m, i in case.moments.items()}, partial(self._unrolled, case, each),
            self.again and partial(self.again, setup, **sizes), sizes,
            tuple(name for letter, name in NAMES.items() if letter not in self.letters),
        )  # fmt: skip

    def _point(self, batch, sequence, sizes):
        """(batch, sequence, sizes of the reader's own letters), with the setup's for those not said."""
        said = {"B": batch, "S": sequence}
        if strange := sorted(set(sizes) - {*said, *self.further}):
            allowed = ", ".join(["batch", "sequence", *USUAL, *self.further])
            raise ValueError(f"derive: the letter {strange[0]!r} is none of {self.name}'s; allowed: {allowed}")
        for letter, name in NAMES.items():
            if letter in sizes and said[letter] is not None:
                raise ValueError(
                    f"derive.{name}: {said[letter]!r}, and {letter} {sizes[letter]!r}; allowed: one of the two"
                )
            said[letter] = sizes.get(letter, said[letter])
            if said[letter] is None:
                said[letter] = getattr(self.setup, name)
        if missing := [letter for letter in self.further if letter not in sizes]:
            low, high = self.range(missing[0])
            raise ValueError(
                f"derive.{missing[0]}: no size; allowed: {missing[0]}=, from {low:,} to {high:,}; or one for all, by fixed(...)"
            )
        return said["B"], said["S"], {letter: sizes[letter] for letter in self.further}

    def fixed(self, **sizes: int) -> "Derivation":
        """The same with sizes for some of the reader's own letters: a formula in those that are left.

        Args:
            sizes: as R=224.

        Raises:
            ValueError: a letter that is none of them, or a size for which a condition is violated.
        """
        from .fixing import fixed

        return fixed(self, sizes) if sizes else self

    def _unrolled(self, case, sizes):
        """(operations, {part: live bytes at each}) of a whole step."""
        operations, owners, lines = unrolled(case.course, [0 if c.host else sizes[c.form] for c in self.columns])
        return [(o.name, o.phase, owner) for o, owner in zip(operations, owners, strict=True)], lines

    def _check_rounding(self, rounding):
        if rounding not in ROUNDINGS:
            raise ValueError(f"derive.rounding: {rounding!r}; allowed: 1, or 512 as CUDA's allocator rounds")

    def case(self, batch: int, sequence: int, **sizes: int) -> Case:
        """The case that holds there; ValueError, naming the violated condition, where none does."""
        point = {"B": batch, "S": sequence, **sizes}
        for letter, value in point.items():
            name = NAMES.get(letter, letter)
            checks.whole("derive", name, value, *LIMITS.get(name, (1, LONGEST)))
        at = tuple(point.values())
        for case in self.cases:
            if at in case:
                return case
        said = {letter: value for letter, value in point.items() if letter in self.letters or not self.further}
        where = ", ".join(f"{NAMES.get(letter, letter)} {value:,}" for letter, value in said.items())
        for ranges, why in self.refused:
            if all(value in r for value, r in zip(at, ranges, strict=True)):
                raise ValueError(f"derive: {where} of {self.name}: {why}")
        for letter, value in point.items():
            name, each = NAMES.get(letter, letter), [c.ranges[letter] for c in self.cases]
            if not any(value in r for r in each):
                low, high = min(r.low for r in each), max(r.high for r in each)
                raise ValueError(
                    f"derive.{name}: {value:,} violates {low:,} <= {name} <= {high:,}, for which {self.name} was derived; "
                    "allowed: such values, or eb.dry_run"
                )
        raise ValueError(f"derive: no case holds at {where} of {self.name}")

    def range(self, vary: str) -> tuple[int, int]:
        """The least and the most `batch`, `sequence`, or size of a further letter that the formula holds for."""
        letters = {"batch": "B", "sequence": "S"}
        names = [name for name, letter in letters.items() if letter in self.letters]
        checks.one_of("derive", "vary", vary, [*names, *self.further])
        ranges = [c.ranges[letters.get(vary, vary)] for c in self.cases]
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

    def peaks(self, batch, sequence, rounding: int = 1, **sizes):
        """The peaks of many steps at once, over arrays of batches, sequences and sizes of further letters, which broadcast.

        Returns:
            (peak, where): arrays of their common shape: bytes, exact whatever their size, and the number of the instant
            in `instants`.

        Raises:
            ValueError: where a condition is violated at one of the points.
        """
        self._check_rounding(rounding)
        batch, sequence, sizes = self._point(batch, sequence, sizes)
        return printing.peaks(self, batch, sequence, rounding, sizes)

    @property
    def instants(self) -> list[Instant]:
        """All that may be the peak, case by case, as `peaks` numbers them."""
        return [case.instants[i] for case in self.cases for i in case.rounded]

    def compiled(self, rounding: int = 1):
        """The peak as a Python function of batch, sequence and further letters in their order: a few microseconds a call.

        It raises ValueError where no case holds.
        """
        self._check_rounding(rounding)
        return printing.compiled(self, rounding)

    def largest_size(self, setup: Setup, letter: str, over: Callable[[int], int]):
        """(the largest size of a further letter that is not over, or None; the next larger one, or None; the least one).

        Args:
            over: bytes that a size is over some bound. setup: its batch and sequence.

        Raises:
            ValueError: where the peak is not known to grow with the letter.
        """
        from .growing import largest

        return largest(self, setup, letter, over)

    # Formulas.

    @cached_property
    def peak(self):
        """The peak as a sympy expression in B, S and the reader's own letters."""
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
        """(Python function of the letters in their order, JavaScript of an object with them): bytes of a part at the peak.

        Args:
            part: None for the number of the case that holds. owners: whose, by default everybody's.
        """
        if part is None:
            return printing.at_the_peak(self)
        mine = (i for i, c in enumerate(self.columns) if not c.host and c.part == part)
        return printing.at_the_peak(self, {i for i in mine if owners is None or self.columns[i].owner in owners})

    def number_at_the_peak(self, number: Callable[[Instant], int]):
        """(Python function of the letters in their order, JavaScript of an object with them): the number of the peak's instant."""
        return printing.at_the_peak(self, number=number)

    def places(self, batch: int, sequence: int, **sizes: int) -> list[str]:
        """Of each operation of a step where in the step it is, in words."""
        operations, *_ = unrolled(self.case(batch, sequence, **sizes).course, [0] * len(self.columns))
        return [place_of(operation) for operation in operations]

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
        """The case with the widest ranges, counted in doublings."""

        def doublings(r):
            return log2(r.high / r.low) * (1 if r.multiples else 1.01)

        return max(self.cases, key=lambda c: prod(1 + doublings(r) for r in c.ranges.values()))

    @cached_property
    def conditions(self) -> list[tuple[str, object]]:
        """Under what the formula holds: (in words, as a sympy condition) each."""
        return printing.conditions(self)

    def latex(self) -> str:
        """The peak, as LaTeX."""
        return printing.latex(self)

    def javascript(self, rounding: int = 1) -> str:
        """The peak as an arrow function of an object with batch, sequence and further letters; exact below 2^53 bytes (8 PiB)."""
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

    def figure(
        self,
        sequences: Sequence[int] | None = None,
        batches: Sequence[int] | None = None,
        gpu=None,
        over: tuple[str, str] | None = None,
        **sizes: int,
    ):
        """Which instant is the peak, over two letters: matplotlib's figure, with its text as `alt`.

        Args:
            sequences, batches: what is looked at, where the map is over both. gpu: of the catalog; a line where the peak passes
                its memory. over: the two letters, across and up; by default sequence and batch, or batch and the letter there is.
            sizes: of the reader's own letters that the map is not over.
        """
        from .picture import regions

        return regions(self.fixed(**sizes), sequences, batches, gpu, over)

    def map_axes(self, over: tuple[str, str] | None = None) -> tuple[str, str]:
        """The two letters of a map, across and up, as `figure` takes them: checked, or the usual ones."""
        from .picture import axes

        return axes(self, over)

    def map_sizes(self, name: str, count: int) -> list[int]:
        """So many sizes at the most of a letter, for a map, that the formula holds for."""
        from .picture import steps

        return steps(self, name, count)

    def label(self, instant: Instant) -> str:
        """What a map calls an instant: where in the step, and in which module."""
        from .picture import label

        return label(instant)

    def as_dict(self) -> dict:
        """As JSON holds it: coefficients in whole numbers."""
        return keeping.as_dict(self)

    @classmethod
    def from_dict(cls, said: dict) -> "Derivation":
        """The derivation that `as_dict` wrote, where PyTorch need not be. Of its model it knows the name and the parameters.

        Raises:
            ValueError: where `said` is none.
        """
        try:
            model = Counted(str(said["model"]["name"]), int(said["model"]["parameters"]))
            return cls(model, *keeping.read(said))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"Derivation.from_dict: {error!r}; allowed: what Derivation.as_dict gave") from None

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
