"""What `derive` returns: peak, parts and phases of a step as functions of batch and sequence."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import log2, prod
from typing import Any, NamedTuple

from .. import units
from ..ask.choices import LIMITS, OWNED
from ..ask.setup import Setup
from ..catalog import Described
from ..common import checks
from ..common.tables import Shown, Table, sized
from ..step.amount import NAMES, USUAL, Amount
from ..step.course import PHASES, Found
from ..step.witness import Alive, Counted, Followed
from . import keeping, printing
from .course import Case, Column, Instant, unrolled
from .ranges import LONGEST, Range


def _symbolic():
    """The formulas in sympy, loaded when they are first asked for."""
    from . import symbolic

    return symbolic


#: What a tensor may be rounded up to a multiple of: nothing, or blocks as CUDA's allocator has them.
ROUNDINGS = (1, 512)


class Region(NamedTuple):
    """One instant that is the peak somewhere; its live bytes as a sympy expression."""

    instant: Instant
    peak: Any


@dataclass(frozen=True, eq=False, repr=False)
class Point(Followed):
    """A derivation's bytes at one batch, sequence, and size of each further letter, as any witness says them.

    Attributes:
        model, setup, rounding: of the step. sizes: of the reader's own letters. rank: the GPU, where there are several.
        unsaid: of batch and sequence those that the model's arguments do not have: any is as good as another.
    """

    witness = "derive"

    model: Described
    setup: Setup
    rounding: int
    sizes: dict[str, int]
    rank: int
    unsaid: tuple[str, ...]
    case: Case = field(repr=False)
    derivation: "Derivation" = field(repr=False)

    @cached_property
    def _sizes(self):
        """Whether on the host -> the bytes of each form; on the GPU they are rounded up."""
        sizes = self.derivation.sizes(self.setup.batch, self.setup.sequence, *self.sizes.values())
        return {True: sizes, False: [-(-size // self.rounding) * self.rounding for size in sizes]}

    def _there(self, instant, host=False):
        """(column, how many tensors, their bytes) of what lives at an instant on the GPU, or on the host."""
        return [(c, n, n * self._sizes[host][c.form]) for c, n in self.derivation.there(instant, host)]

    def _total(self, instant):
        return sum(size for *_, size in self._there(instant))

    def _parts(self, instant, parts=None, host=False):
        found = dict.fromkeys(parts or self.derivation.part_names, 0)
        for column, _, size in self._there(instant, host):
            if column.part in found:
                found[column.part] += size
        return found

    @cached_property
    def instant(self) -> Instant:
        """The first instant at which the most bytes live."""
        return max(self.case.rounded, key=self._total)

    @cached_property
    def _found(self) -> Found:
        parts = self._parts(self.instant)
        moments = {name: self._parts(instant) for name, instant in self.case.moments.items()}
        return Found(moments, parts, sum(parts.values()), self.instant.at, max(map(self._total, self.case.step)))

    @property
    def marks(self) -> dict[str, int]:
        """The end of a phase, or rest -> its place in the timeline."""
        return {name: instant.place for name, instant in self.case.moments.items()}

    @property
    def host(self) -> dict[str, int]:
        """Bytes of each part in the memory of the CPU after backward; empty without offload."""
        instant = self.case.moments["after_backward"]
        there = any(self._there(instant, host=True))
        return self._parts(instant, ("parameters", "gradients", "optimizer"), host=True) if there else {}

    @cached_property
    def _whole(self):
        return unrolled(
            self.case.course, [0 if c.host else self._sizes[False][c.form] for c in self.derivation.columns]
        )

    @property
    def operations(self) -> list[tuple[str, str, str]]:
        """(name, phase, owner) of each operation that allocates, and of each mark."""
        operations, owners, _ = self._whole
        return [(o.name, o.phase, owner) for o, owner in zip(operations, owners, strict=True)]

    def timeline(self) -> dict[str, list[int]]:
        """Live bytes while each operation runs, by part."""
        return self._whole[-1]

    def figure(self):
        """Live bytes over the operations of the step: matplotlib's figure, with its text as `alt`."""
        from .. import draw

        s = self.setup
        title = f"{self.model.name}, {s.precision}, batch {s.batch:,}, sequence {s.sequence:,}: derived"
        return draw.timeline(self, title, units.largest(self.peak))

    @cached_property
    def counted(self):
        """The dry run of the same step; None where the derivation does not know its model.

        A formula says how many bytes live at an instant, but not in which order tensors come and go.
        """
        again = self.derivation.again
        return again and again(self.setup, **self.sizes)

    def on(self, gpu, configuration="", memory: int | None = None, **options):
        """What PyTorch's allocator makes of the step on a GPU: a `Reserved`. Arguments as for a dry run's `on`, which is run for it.

        Raises:
            ValueError: where the derivation does not know its model.
        """
        if self.counted is None:
            raise ValueError(
                f"derive.on: {self.model.name} is known by its formula alone; allowed: eb.dry_run(model, setup).on(gpu)"
            )
        return self.counted.on(gpu, configuration, memory, **options)

    def alive(self) -> list[Alive]:
        """Each tensor that lives at the peak, by kind: a formula knows no order."""
        there = self._there(self.instant)
        return [Alive(size // n, c.part, c.owner, "") for c, n, size in there if n and size for _ in range(n)]

    def by_owner(self) -> list[tuple[str, str, int, int]]:
        """What lives at the peak: (owner, part, tensors, bytes), most bytes first, all blocks' gathered as `blocks.*`."""
        found = {}
        for column, n, more in self._there(self.instant):
            count, size = found.get((column.owner, column.part), (0, 0))
            found[column.owner, column.part] = count + n, size + more
        return sorted(((*key, *row) for key, row in found.items()), key=lambda row: -row[3])

    def table(self) -> Table:
        """Parts at the peak, phases, and the peak."""
        parts = {name: size for name, size in self.parts.items() if size}
        rows = [sized(*row) for row in (parts | self.phases | {f"peak, in {self.peak_at}": self.peak}).items()]
        title = f"{self.model.name}, batch {self.setup.batch:,}, sequence {self.setup.sequence:,}"
        return Table((title, "bytes", ""), rows, self.derivation.setup.owned())

    def __repr__(self):
        s = self.setup
        return f"<{self.model.name}, batch {s.batch}, sequence {s.sequence}: peak {units.exact(self.peak)}, in {self.peak_at}>"


@dataclass(frozen=True, eq=False)
class Derivation(Shown):
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
    forms: tuple[Amount, ...]
    columns: tuple[Column, ...]
    cases: tuple[Case, ...]
    part_names: tuple[str, ...]
    refused: tuple[tuple[tuple[Range, ...], str], ...]
    how: str
    checked: tuple[tuple[int | None, ...], ...]
    letters: str = USUAL
    rank: int = 0
    again: Callable[..., Any] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def parameters(self) -> int:
        return int(self.model.parameters)

    @property
    def own(self) -> dict[str, Any]:
        """What a setup has that leaves it unsaid: what was derived with."""
        return {name: getattr(self.setup, name) for name in OWNED}

    @property
    def further(self) -> str:
        """The reader's own letters."""
        return "".join(letter for letter in self.letters if letter not in USUAL)

    @property
    def every(self) -> str:
        """B, S and the reader's own letters, as points and ranges have them."""
        return USUAL + self.further

    # Numbers.

    def at(self, batch: int | None = None, sequence: int | None = None, rounding: int = 1, **sizes: int) -> Point:
        """The bytes of one step.

        Args:
            batch, sequence: by default the setup's. rounding: 1, or 512: each tensor rounded up as CUDA's allocator does.
            sizes: of the reader's own letters, such as R=224, all of them; B and S are the batch and the sequence.

        Raises:
            ValueError: a letter that is not there, or is missing; where a condition is violated, naming it.
        """
        point = self._point(batch, sequence, sizes)
        self._check_rounding(rounding)
        case, setup = self.case(point), self.setup.replace(batch=point["B"], sequence=point["S"])
        unsaid = tuple(name for letter, name in NAMES.items() if letter not in self.letters)
        own = {letter: point[letter] for letter in self.further}
        return Point(self.model, setup, rounding, own, self.rank, unsaid, case, self)

    def _point(self, batch, sequence, sizes):
        """Letter -> size, in the order of `every`; the setup's batch and sequence, where they are not said."""
        said = {"B": batch, "S": sequence}
        if strange := sorted(set(sizes) - {*self.every}):
            allowed = ", ".join(["batch", "sequence", *self.every])
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
        return said | {letter: sizes[letter] for letter in self.further}

    def fixed(self, **sizes: int) -> "Derivation":
        """The same with sizes for some of the reader's own letters: a formula in those that are left.

        Args:
            sizes: as R=224.

        Raises:
            ValueError: a letter that is none of them, or a size for which no case holds.
        """
        if not sizes:
            return self
        for letter, value in sizes.items():
            checks.one_of("derive", "letter", letter, [*self.further])
            checks.whole("derive", letter, value, *self.range(letter))

        def left(values):
            """The values of the letters that stay, from one value for each letter."""
            return {letter: x for letter, x in zip(self.every, values, strict=True) if letter not in sizes}

        def inside(ranges):
            return all(sizes[letter] in r for letter, r in zip(self.every, ranges, strict=True) if letter in sizes)

        def at(point):
            return all(sizes.get(letter, x) == x for letter, x in zip(self.every, point, strict=True))

        cases = [replace(c, ranges=left(c.ranges.values())) for c in self.cases if inside(c.ranges.values())]
        if not cases:
            said = ", ".join(f"{letter} {value:,}" for letter, value in sizes.items())
            why = next((why for ranges, why in self.refused if inside(ranges)), "no case holds there")
            raise ValueError(f"derive: {said} of {self.name}: {why}")
        forms: dict[Amount, int] = {}
        numbers = [forms.setdefault(form.fixed(sizes), len(forms)) for form in self.forms]
        refused = [(tuple(left(ranges).values()), why) for ranges, why in self.refused if inside(ranges)]
        where = ", ".join(f"{letter} = {value:,}" for letter, value in sizes.items())
        return replace(
            self, forms=tuple(forms), columns=tuple(replace(c, form=numbers[c.form]) for c in self.columns),
            cases=tuple(cases), refused=tuple(refused), how=f"{self.how} Here {where}.",
            checked=tuple((layers, *left(point).values()) for layers, *point in self.checked if at(point)),
            letters="".join(letter for letter in self.letters if letter not in sizes),
            again=self.again and partial(self.again, **sizes),
        )  # fmt: skip

    def _check_rounding(self, rounding):
        if rounding not in ROUNDINGS:
            raise ValueError(f"derive.rounding: {rounding!r}; allowed: 1, or 512 as CUDA's allocator rounds")

    def case(self, point: dict[str, int]) -> Case:
        """The case that holds at a size of each letter; ValueError, naming the violated condition, where none does."""
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
        letters = {NAMES.get(letter, letter): letter for letter in self.every if letter in self.letters}
        checks.one_of("derive", "vary", vary, letters)
        ranges = [c.ranges[letters[vary]] for c in self.cases]
        return min(r.low for r in ranges), max(r.high for r in ranges)

    def ranges(self, vary: str, setup: Setup) -> list[Range]:
        """The ranges of `batch`, `sequence`, or a further letter for which a case holds at the setup's other sizes."""
        letter = next((x for x, name in NAMES.items() if name == vary), vary)
        at = {"B": setup.batch, "S": setup.sequence}
        return [
            c.ranges[letter]
            for c in self.cases
            if all(x not in at or at[x] in r for x, r in c.ranges.items() if x != letter)
        ]

    def there(self, instant: Instant, host: bool = False) -> list[tuple[Column, int]]:
        """(column, how many tensors) of what lives at an instant on the GPU, or on the host."""
        return [(column, n) for c, n in instant.counts.items() if (column := self.columns[c]).host == host]

    def used(self, case: Case) -> list[int]:
        """The numbers of the forms of a case's instants that can be the peak."""
        return sorted({self.columns[c].form for i in case.rounded for c in i.counts})

    def peaks(self, batch, sequence, rounding: int = 1, **sizes):
        """The peaks of many steps at once, over arrays of batches, sequences and sizes of further letters, which broadcast.

        Returns:
            (peak, where): arrays of their common shape: bytes, exact whatever their size, and the number of the instant
            in `instants`.

        Raises:
            ValueError: where a condition is violated at one of the points.
        """
        import numpy

        self._check_rounding(rounding)
        given = self._point(batch, sequence, sizes)
        arrays = [checks.whole_numbers("derive", NAMES.get(x, x), values) for x, values in given.items()]
        try:
            peak, where = numpy.frompyfunc(printing.highest(self, rounding), len(arrays), 2)(*arrays)
        except ValueError:
            for point in numpy.broadcast(*arrays):
                self.case(dict(zip(given, map(int, point), strict=True)))
            raise
        peak, where = numpy.asarray(peak, object), numpy.asarray(where, "int64")
        return (peak.astype("int64") if peak.max(initial=0) < 2**63 else peak), where

    @property
    def instants(self) -> list[Instant]:
        """All instants that can be the peak, case by case, as `peaks` numbers them."""
        return [instant for case in self.cases for instant in case.rounded]

    @cached_property
    def sizes(self) -> Callable[..., list]:
        """A function of the letters in the order of `every`: the bytes of each form."""
        return printing.sizes(self)

    def compiled(self, rounding: int = 1):
        """The peak as a Python function of batch, sequence and further letters in their order: a few microseconds a call.

        It raises ValueError where no case holds.
        """
        self._check_rounding(rounding)
        return printing.peak(self, rounding)[0]

    def javascript(self, rounding: int = 1) -> str:
        """The peak as an arrow function of an object with batch, sequence and further letters; exact below 8 PiB."""
        self._check_rounding(rounding)
        return printing.peak(self, rounding)[1]

    # Formulas.

    def live(self, instant: Instant, part: str | None = None) -> Amount:
        """The live bytes of an instant, or of one part."""
        return Amount.total(
            (self.forms[column.form], n) for column, n in self.there(instant) if part in (None, column.part)
        )

    def expression(self, instant: Instant, part: str | None = None):
        """The same as a sympy expression in B, S and the reader's own letters."""
        return _symbolic().expression(self.live(instant, part))

    def _most(self, instants):
        return _symbolic().maximum(map(self.expression, instants))

    @cached_property
    def peak(self):
        """The peak as a sympy expression in B, S and the reader's own letters."""
        return _symbolic().cases(self, lambda case: self._most(case.peak))

    @cached_property
    def parts(self) -> dict:
        """The parts at the peak as sympy expressions: where several instants can be the peak, by pieces."""

        def piece(case, part):
            return _symbolic().by_highest([(self.expression(i), self.expression(i, part)) for i in case.peak])

        return {part: _symbolic().cases(self, partial(piece, part=part)) for part in self.part_names}

    @cached_property
    def phases(self) -> dict:
        """Live bytes at the end of each phase as sympy expressions."""

        def phase(case, name):
            return self._most(case.step if name == "step" else [case.moments[name]])

        return {name: _symbolic().cases(self, partial(phase, name=name)) for name in PHASES}

    @cached_property
    def regions(self) -> list[Region]:
        """The instants of the widest case that are the peak somewhere, in the order of the step."""
        return [Region(instant, self.expression(instant)) for instant in printing.winners(self, self.main)]

    @property
    def main(self) -> Case:
        """The case with the widest ranges, counted in doublings."""

        def doublings(r):
            return log2(r.high / r.low) * (1 if r.multiples else 1.01)

        return max(self.cases, key=lambda c: prod(1 + doublings(r) for r in c.ranges.values()))

    @cached_property
    def conditions(self) -> list[tuple[str, object]]:
        """Under what the formula holds: (in words, as a sympy condition) each."""
        return _symbolic().conditions(self)

    def latex(self) -> str:
        """The peak, as LaTeX."""
        from sympy import latex

        return latex(self.peak)

    # What is shown.

    def table(self) -> Table:
        """The instants that can be the peak, with their formulas."""
        rows = [
            (r.instant.at, r.instant.owner or "the whole model", r.instant.operation, self.live(r.instant).readable())
            for r in self.regions
        ]
        depth = f", {self.layers} layers" if self.layers else ""
        title = (
            f"{self.name}{depth}, {units.number(self.parameters)} parameters, {self.setup.precision}: the highest of"
        )
        return Table(("peak in", "module", "operation", "bytes"), rows, title)

    def said(self) -> list[str]:
        """The lines under the table: the conditions, and how the formula was obtained."""
        lines = [f"{owned}."] if (owned := self.setup.owned()) else []
        lines.append(f"Holds for {'; '.join(words for words, _ in self.conditions)}.")
        if others := [_symbolic().place(self, case.ranges.values()) for case in _symbolic().unlike(self)]:
            lines.append(f"Cases of their own, with their own formulas: {'; '.join(others)}.")
        return [*lines, self.how]

    def figure(self, gpu=None, over: tuple[str, str] | None = None, **sizes: int):
        """Which instant is the peak, over two letters: matplotlib's figure, with its text as `alt`.

        Args:
            gpu: of the catalog; a line where tensors alone would fill it. sizes: of the reader's other letters.
            over: the two letters, across and up; by default sequence and batch, or batch and the letter there is.
        """
        from .picture import regions

        return regions(self.fixed(**sizes), gpu, over)

    def as_dict(self) -> dict:
        """As JSON holds it: coefficients in whole numbers."""
        return keeping.as_dict(self)

    @classmethod
    def from_dict(cls, said: dict) -> "Derivation":
        """The derivation that `as_dict` wrote; PyTorch is not needed. Of its model it has the name and the parameters.

        Raises:
            ValueError: where `said` is none.
        """
        try:
            model = Counted(str(said["model"]["name"]), int(said["model"]["parameters"]))
            return cls(model, *keeping.read(said))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"Derivation.from_dict: {error!r}; allowed: what Derivation.as_dict gave") from None

    def __repr__(self):
        instants, cases = (
            f"{len(x)} {word}{'s' * (len(x) != 1)}" for x, word in ((self.regions, "instant"), (self.cases, "case"))
        )
        return f"<Derivation of {self.name}: {instants} can be the peak; {cases}>"

    __str__ = Shown.__repr__
