"""From dry runs to a derivation."""

from dataclasses import dataclass, field
from dataclasses import replace as changed
from itertools import product
from math import prod

from ..ask.setup import LIMITS, Setup
from ..catalog import Model
from ..derivation import Case, Derivation, Form, Instant, Irregular, Range, Solver, partition
from ..derivation.course import Column, Tally, rows
from ..derivation.forms import ONE
from ..derivation.printing import NAMES
from ..derivation.ranges import BATCHES, FURTHER_MULTIPLES, LONGEST, MORE_SIZES, SEQUENCES, SIZES
from ..derivation.result import ROUNDINGS
from ..step.course import MARKS, Course
from .along import Along
from .depth import Depth, Uneven, further
from .looks import SKETCH, Look, Looks, Subject
from .proofs import Order

#: The point that others are compared with; of a further letter the first of these sizes that the model takes.
_BATCH, _SEQUENCE, _SIZES = 3, 64, (224, 64, 256, 32, 128, 16, 512, 28, 8, 1024, 4, 2, 1)
_MOST = BATCHES[-1]
#: So many depths are looked at, three at a time, where the first layers are not like those that follow.
_DEPTHS = 5
#: At so many points the bytes of a tensor must be those of one that is known.
_FEW = 4
#: How often ranges are looked for again.
_ROUNDS = 4
#: Of ranges that differ in how a step goes, so many are followed.
_CASES = 24
#: A range of no more sizes of a further letter is taken size by size.
_SHORT = 7
#: What a step that cannot be run raises; a model's own checks of sizes among them.
_CANNOT = (ValueError, RuntimeError, IndexError, AssertionError, ArithmeticError)


@dataclass
class _Patch:
    """A range of batches, one of sequences and of each further letter, before it is solved."""

    ranges: tuple[Range, ...]
    points: list
    more: list  # points that are looked at where a tensor has bytes that no other case's has
    forms: dict = field(default_factory=dict)  # as keys: those of its tensors

    def __contains__(self, point):
        return all(value in r for value, r in zip(point, self.ranges, strict=True))


def solve(subject: Subject, setup: Setup, rank: int = 0) -> Derivation:
    """The derivation of a subject under a setup, on one of its GPUs."""
    return _Solving(subject, setup, rank).run()


class _Solving:
    def __init__(self, subject, setup, rank):
        self.subject, self.setup, self.rank = subject, setup, rank
        self.looks = Looks(subject, setup, rank)
        self.period, self.letters = subject.period, ["B", "S", *subject.further]
        self.forms: dict[Form, int] = {}
        self.columns: dict[tuple, int] = {}
        self.checked = []
        #: Of so many tokens a loss in chunks always has as many chunks as asked for.
        self.tokens = (setup.loss_chunks - 1) ** 2 + 1 if setup.loss == "chunked" else 1

    def run(self):
        subject = self.subject
        depths = self._depths()
        self.shallow = SKETCH if subject.sketch and len(depths) > 2 else depths[0]
        self.usual = self._first()
        self.first = self._look(*self.usual)  # what it raises, it raises here
        patches, refused = self._patches()
        solved = [self._forms(patch) for patch in patches]
        cases, way = None, ""
        for start in range(len(depths) - 2):
            several = depths[start : start + 3]
            try:
                cases = [self._case(p, self._further(p, several)) for p in solved]
                sketched = self.shallow == SKETCH
                shallow = "one layer of each kind" if sketched else f"{depths[0]} layers"
                way = (
                    f"Dry runs of {shallow} at {len(self._seen(self.shallow))} points, and of "
                    f"{', '.join(map(str, several[start == 0 and not sketched :]))} layers at others: each {_periods(self.period)} more adds "
                    f"the same stretches of operations, and so on in a straight line to {subject.layers}"
                )
                cases = self._try(cases, way)
                break
            except Uneven as error:
                cases = None
                way = f" All {subject.layers} layers were run, since depths do not go on in a straight line ({error})."
        if cases is None:
            cases = [self._case(p, self._direct(p)) for p in solved]
            way = f"Dry runs at {len(self.looks.seen)} points, solved in fractions.{way}"
            derivation = self._derivation(cases, refused, way)
            self._check(derivation)
        else:
            derivation = self._derivation(cases, refused, way + ".")
        shown = [n for n, letter in enumerate(self.letters) if letter in subject.letters or not subject.further]
        told = ", ".join(" x ".join(f"{point[n]:,}" for n in shown) for _, *point in self.checked)
        depth = f" at {subject.layers} layers" if subject.layers else ""
        names = " x ".join(NAMES.get(self.letters[n], self.letters[n]) for n in shown)
        how = f"{derivation.how} Compared with further dry runs{depth} at {told} ({names}): no byte of difference."
        return changed(derivation, how=how, checked=tuple(self.checked))

    def _first(self):
        """The point that others are compared with."""
        longest = self.subject.longest
        sequence = max(min(_SEQUENCE, longest), min(-(-self.tokens // _BATCH), longest))
        point = max(_BATCH, -(-self.tokens // sequence)), sequence
        if not self.subject.further:
            return point
        first, count = None, len(self.subject.further)
        tried = [(n,) * count for n in _SIZES]
        if count > 1:  # one may have to be the other's multiple, or stand beside the sequence
            tried += [p for p in product(_SIZES[:4], repeat=count) if len(set(p)) > 1]
        for sizes in tried:
            try:
                self._look(*point, *sizes)
            except _CANNOT as error:
                first = first or error
            else:
                return *point, *sizes
        assert first
        raise first

    def _sizes(self, point):
        """The sizes of the further letters of a point, by letter."""
        return dict(zip(self.letters[2:], point[2:], strict=True))

    def _of(self, form, point):
        """A form's bytes at a point."""
        return form.at(*point[:2], **self._sizes(point))

    def _said(self, point):
        return ", ".join(
            f"{NAMES.get(x, x)} {n}" for x, n in zip(self.letters, point, strict=True) if x in self.subject.letters
        )

    def _depths(self):
        """Three depths to look at, a period apart; or the model's own alone."""
        layers, period = self.subject.layers, self.subject.period
        if layers is None:
            return [None]
        if self.setup.segment > 1:
            period = _common(period, self.setup.segment)
        first = layers % period or period
        while first < max(self.subject.least, self.setup.segment) or (self.subject.sketch and first < period):
            first += period
        self.period = period
        found = [d for d in range(first, first + _DEPTHS * period, period) if d < layers]
        return found if len(found) > 2 else [layers]

    def _look(self, *point, depth="shallow") -> Look:
        return self.looks.at(self.shallow if depth == "shallow" else depth, *point)

    def _seen(self, depth):
        return [key[1:] for key in self.looks.seen if key[0] == depth]

    # Where which course holds.

    def _patches(self):
        """The patches, the main one first, and what is refused. Where a range turns out to be several, it is looked at again."""
        more = {letter: [] for letter in self.letters}
        for _ in range(_ROUNDS):
            try:
                return self._patches_by(more)
            except _Mixed as error:
                mixed = error
                for letter, values in list(zip(self.letters, zip(*error.points, strict=True), strict=True))[1:]:
                    more[letter] += [n + d for n in values for d in (-1, 0, 1)]
        raise ValueError(str(mixed))

    def _patches_by(self, more):
        subject, refused = self.subject, []
        usual = dict(zip(self.letters, self.usual, strict=True))

        def kind(letter):
            def of(value):
                point = usual | {letter: value}
                if letter in "BS":
                    other = "S" if letter == "B" else "B"
                    point[other] = max(point[other], -(-self.tokens // value))
                try:
                    return self._look(*point.values()).kind
                except _CANNOT as error:
                    return _Refusal(_first_line(error))

            return of

        one = Range(1, 1)
        axes = {"B": [(one, None)], "S": [(one, None)]}
        if "B" in subject.letters:
            axes["B"] = self._ranges("B", kind("B"), 2, _MOST, BATCHES) + axes["B"]
        if "S" in subject.letters:
            low = min(2, subject.longest)
            if self.tokens > 1:
                low = min(self.tokens, subject.longest)
            wanted = [*SEQUENCES, *subject.sizes, *more["S"]]
            axes["S"] = self._ranges("S", kind("S"), low, subject.longest, wanted)
            if low > 1 and self.tokens == 1:
                axes["S"].append((one, None))
        for letter in subject.further:
            wanted = [*SIZES, *subject.sizes, *more[letter]]
            found = self._ranges(letter, kind(letter), 1, LONGEST, wanted, MORE_SIZES, FURTHER_MULTIPLES)
            found = [single for r, said in found for single in _singles(r, said)]
            axes[letter] = sorted(found, key=lambda f: usual[letter] not in f[0])  # the usual one first
        found, full = [], {letter: Range(1, LIMITS.get(NAMES.get(letter), (1, LONGEST))[1]) for letter in self.letters}
        for letter, ranges in axes.items():
            for r, said in ranges:
                if isinstance(said, _Refusal):
                    refused.append((tuple((full | {letter: r}).values()), str(said)))
        axes = {letter: [f for f in ranges if not isinstance(f[1], _Refusal)] for letter, ranges in axes.items()}
        if prod(map(len, axes.values())) > _CASES:
            which, ranges = max(axes.items(), key=lambda x: len(x[1]))
            raise ValueError(self._irregular(which, *(r.some([], 1)[0] for r, _ in ranges[:2])))
        for several in product(axes["S"], *(axes[letter] for letter in subject.further), axes["B"]):
            *several, batches = several
            ranges = (batches[0], *(r for r, _ in several))
            patch = self._patch(ranges)
            if isinstance(patch, _Refusal):
                refused.append((ranges, str(patch)))
            else:
                found.append(patch)
        if not found:
            raise ValueError(f"derive: no batch and sequence of {subject.model} can be run: {refused[0][-1]}")
        return found, refused

    def _ranges(self, letter, kind, low, high, wanted, *more):
        try:
            return partition(kind, low, high, wanted, *more)
        except Irregular as error:
            raise ValueError(self._irregular(letter, *error.args)) from None

    def _irregular(self, letter, a, b):
        usual = dict(zip(self.letters, self.usual, strict=True))
        one, other = (self._look(*(usual | {letter: x}).values()) for x in (a, b))
        which = NAMES.get(letter, f"letter {letter}")
        return (
            f"derive: the {which} decides which operations run: from {NAMES.get(letter, letter)} {a} to {b} the step goes another way, "
            f"{one.differs(other)}; allowed: loops and branches that do not depend on it, or by a few thresholds or "
            f"multiples; or a fixed {NAMES.get(letter, letter)}; or eb.dry_run"
        )

    def _patch(self, ranges):
        """A patch with enough points, all of one course."""
        b, s, *others = ranges
        rest = tuple(
            r.some([n for n in (usual, 224, 64) if n in r], 1)[0]
            for usual, r in zip(self.usual[2:], others, strict=True)
        )
        wide_b, wide_s = not b.single, not s.single
        bs = b.some([v for v in (3, 2, 5, 7) if v in b], 4) if wide_b else [b.low]
        ss = s.some([v for v in (64, 33, 90, 127, 256, 1000) if v in s], 6) if wide_s else [s.low]
        if wide_b and wide_s:
            pairs = [(bs[i % len(bs)], v) for i, v in enumerate(ss)] + [
                (v, ss[(2 * i) % len(ss)]) for i, v in enumerate(bs)
            ]
            pairs += [(bs[-1], ss[1 % len(ss)]), (bs[1 % len(bs)], ss[-1])]
        else:
            pairs = [(x, y) for x in bs for y in ss]
        points = [(*p, *rest) for p in dict.fromkeys(p for p in pairs if p[0] * p[1] >= self.tokens)]
        seen = [
            p for p in self._seen(self.shallow)
            if p[0] in b and p[1] in s and p[2:] == rest and p not in points[:_FEW]
        ]  # fmt: skip
        patch = _Patch(tuple(ranges), [*points[:_FEW], *seen], points[_FEW:])
        try:
            self._same(patch)
        except _CANNOT as error:
            if not isinstance(error, _Mixed) and any(r.single for r in ranges):
                return _Refusal(_first_line(error))
            raise
        return patch

    def _same(self, patch):
        """Raise where the courses at a patch's points are not the same."""
        first = patch.points[0]
        usual = self._look(*first)
        for point in patch.points:
            look = self._look(*point)
            if look.kind != usual.kind:
                raise _Mixed(
                    f"derive: at {self._said(point)} the step goes another way than at {self._said(first)}: "
                    f"{look.differs(usual)}; allowed: control flow that depends on each letter by itself, or a fixed size for "
                    "one of the letters, or eb.dry_run",
                    [first, point],
                )

    # The bytes of each tensor.

    def _forms(self, patch):
        looks = [self._look(*p) for p in patch.points]
        rows = set(zip(*(look.bytes for look in looks), strict=True))
        wide = [letter for letter, r in zip(self.letters[2:], patch.ranges[2:], strict=True) if not r.single]
        if wide or any(
            len(set(r)) > 1 for r in rows - {tuple(self._of(f, p) for p in patch.points) for f in self.forms}
        ):
            patch.points += [p for p in patch.more if p not in patch.points]
            self._same(patch)
        by = (self.setup.loss_chunks,) if self.setup.loss == "chunked" else ()
        solver = Solver([p[:2] for p in patch.points], by)
        if wide:
            forms = Along(self, patch, solver, wide).forms()
            looks = [self._look(*p) for p in patch.points]
        else:
            looks = [self._look(*p) for p in patch.points]
            forms, known = [], {}
            for form in self.forms:
                known.setdefault(tuple(self._of(form, p) for p in patch.points), form)
            for number, row in enumerate(zip(*(look.bytes for look in looks), strict=True)):
                if row not in known:
                    known[row] = solver.solve(row)
                if known[row] is None:
                    raise ValueError(self._no_form(looks[0], number, patch.points, row))
                forms.append(known[row])
        for form in forms:
            patch.forms[form] = None
            self.forms.setdefault(form, len(self.forms))
        return patch

    def _no_form(self, look, number, points, row):
        a = look.trace.allocations[number]
        some = list(dict(zip(row, points, strict=True)).items())[:4]
        seen = ", ".join(f"{v:,} at {' x '.join(map(str, point))}" for v, point in some)
        names = ", ".join(["batch", *self.subject.further]) + " and sequence"
        return (
            f"derive: the bytes of what {a.operation} makes in module {a.owner or 'the model'!r} are no polynomial in {names} "
            f"({seen}); allowed: a fixed size for one of the letters, or eb.dry_run"
        )

    def _columns(self, patch, looks, points):
        """The column of each allocation, by its bytes at some points; None where two forms have the same there."""
        known = {}
        for form in patch.forms:
            key = tuple(self._of(form, p) for p in points)
            if known.setdefault(key, form) is not form:
                return None
        found = []
        rows = zip(*(look.bytes for look in looks), looks[0].kinds, strict=True)
        for *row, kind in rows:
            row = tuple(row)
            if row not in known:
                if len(row) == 1 and len(patch.points) > 1:
                    return None  # another point tells
                if len(set(row)) > 1:
                    raise Uneven("a deeper model has tensors of other sizes")
                known[row] = Form.of({ONE: row[0]})
                patch.forms[known[row]] = None
                self.forms.setdefault(known[row], len(self.forms))
            part, owner, host = kind
            column = part, owner, host, self.forms[known[row]]
            found.append(self.columns.setdefault(column, len(self.columns)))
        return found

    def _depth(self, patch, depth):
        """The step of a depth, from as few points as tell the forms apart."""
        if depth == self.shallow:
            looks = [self._look(*p) for p in patch.points]
            return Depth(looks[0], self._columns(patch, looks, patch.points))
        points, looks = self._telling(patch, (depth or 0) // self.period), []
        for n, point in enumerate(points, 1):
            looks.append(self._look(*point, depth=depth))
            if looks[-1].kind != looks[0].kind:
                raise Uneven("the course of a deeper model differs between batches and sequences")
            columns = self._columns(patch, looks, points[:n])
            if columns is not None:
                return Depth(looks[0], columns)
        raise Uneven("two tensors of a deeper model cannot be told apart")

    def _telling(self, patch, turn):
        """Points at which the bytes of a tensor tell its form: one where there is one, at every turn another."""
        b, s, *others = patch.ranges
        new = [
            (x, y, *rest)
            for rest in product(*(r.some((211, 150, 208), 1) for r in others))
            for x in b.some((3, 5, 7), 2)
            for y in s.some((577, 331, 592, 336, 1153), 4)
        ]
        points = sorted({*patch.points, *(p for p in new if p[0] * p[1] >= self.tokens)}, key=lambda p: -_oddness(p))
        told = {p: len({self._of(f, p) for f in patch.forms}) for p in points}
        alone = [p for p in points if told[p] == len(patch.forms)]
        first = alone[turn % len(alone)] if alone else max(points, key=told.get)
        return [first, *(p for p in points if p != first)]

    def _further(self, patch, depths):
        found = [self._depth(patch, d) for d in depths]
        return further(found, (self.subject.layers - depths[0]) // self.period, self._parts)

    def _direct(self, patch):
        return self._depth(patch, self.subject.layers).course(self._parts)

    @property
    def _parts(self):
        return tuple(self.first.trace.timeline())

    # The formula.

    def _case(self, patch, course: Course) -> Case:
        found = list(rows(course))
        marks = {"rest": 0} | {o.name: i for i, (o, *_) in enumerate(found) if o.name in MARKS}
        forms, counts = list(self.forms), self._counts(found)
        ends = {letter: (r.low, r.high) for letter, r in zip(self.letters, patch.ranges, strict=True)}
        sizes = {letter: ends[letter] for letter in self.letters[2:]}

        def highest(among, rounding):
            order = Order(forms, [counts[i] for i in among], ends["B"], ends["S"], rounding, sizes)
            return [among[i] for i in order.highest()]

        within = range(marks["after_backward"], marks["after_step"] + 1)
        by_rounding = {rounding: highest(range(len(found)), rounding) for rounding in ROUNDINGS}
        peak, rounded = by_rounding[1], sorted({i for chosen in by_rounding.values() for i in chosen})
        step = sorted({i for rounding in ROUNDINGS for i in highest(within, rounding)})
        kept = sorted({*rounded, *step, *marks.values()})
        number = {i: n for n, i in enumerate(kept)}
        batch, sequence = (
            r
            if letter in self.subject.letters
            else Range(*LIMITS[name])  # what the model does not have may be anything
            for r, letter, name in zip(patch.ranges, "BS", ("batch", "sequence"), strict=False)
        )
        return Case(
            batch, sequence, tuple(Instant.of(*found[i]) for i in kept), _numbers(peak, number),
            _numbers(rounded, number), _numbers(step, number), {m: number[i] for m, i in marks.items()},
            course, tuple(zip(self.letters[2:], patch.ranges[2:], strict=True)),
        )  # fmt: skip

    def _counts(self, found):
        """Of each row how many tensors of each form live on the GPU."""
        forms = [None if host else form for _, _, host, form in self.columns]
        counts, line, before = [], [0] * len(self.forms), Tally()
        for *_, live in found:  # each from the one before: of thousands of columns few change
            line = list(line)
            for column, n in (live - before).items():
                if forms[column] is not None:
                    line[forms[column]] += n
            counts.append(line)
            before = live
        return counts

    def _derivation(self, cases, refused, how):
        columns = tuple(Column(*key) for key in self.columns)
        trace = self.first.trace
        model = trace.model
        if isinstance(self.subject.model, Model) and isinstance(model, Model):
            model = self.subject.model
        elif self.subject.layers not in (None, self.shallow):
            model = self._whole().model
        return Derivation(
            model, self.setup, self.subject.layers, tuple(self.forms), columns, tuple(cases), self._parts,
            tuple(refused), how, tuple(self.checked), self.subject.letters, self.rank,
        )  # fmt: skip

    # What is compared.

    def _whole(self):
        """A dry run at the model's own depth."""
        return next(look.trace for (depth, *_), look in self.looks.seen.items() if depth == self.subject.layers)

    def _try(self, cases, how):
        """The cases, compared with the model itself at its own depth; Uneven where they differ."""
        point = self._hidden(cases[0])
        look = self._look(*point, depth=self.subject.layers)
        try:
            self._compare(self._derivation(cases, (), how), look, *point)
        except ValueError as error:
            raise Uneven("the model at its own depth differs") from error
        return cases

    def _hidden(self, case):
        """A point of a case that was not used."""
        used = {key[1:] for key in self.looks.seen} | {tuple(point) for _, *point in self.checked}
        b = case.batch.some([6, 11, 13], 3)
        s = case.sequence.some([321, 80, 176, 45], 4)
        rest = [r.some([n for n in (171, 208, 140, 330, 98, 77, 160, 23) if n in r], 3) for _, r in case.further]
        points = [(x, y) for y in s for x in b]
        if rest:  # each time other sizes of all
            points = [
                (b[k % len(b)], s[k % len(s)], *(r[(k + n) % len(r)] for n, r in enumerate(rest))) for k in range(12)
            ]
        return next((p for p in points if p not in used and p[0] * p[1] >= self.tokens), points[0])

    def _check(self, derivation):
        """Compare with dry runs at points that were not used; ValueError where they differ."""
        for case in derivation.cases:
            for _ in range(1 + 2 * any(not r.single for _, r in case.further)):
                point = self._hidden(case)
                self._compare(derivation, self._look(*point, depth=self.subject.layers), *point)

    def _compare(self, derivation, look, *point):
        mine, trace = derivation.at(*point[:2], **self._sizes(point)), look.trace
        for name in ("peak", "peak_at", "parts", "phases"):
            if getattr(mine, name) != getattr(trace, name):
                raise ValueError(
                    f"derive: {name} at {self._said(point)} is {getattr(mine, name)!r} by the formula, and "
                    f"{getattr(trace, name)!r} in a dry run; allowed: eb.dry_run for this model"
                )
        self.checked.append((self.subject.layers, *point))


class _Mixed(ValueError):
    """Points of one range whose courses are not the same."""

    def __init__(self, message, points):
        super().__init__(message)
        self.points = points


class _Refusal(str):
    """Why a point cannot be run. One is as good as another: a size may stand in it."""

    __slots__ = ()

    def __eq__(self, other):
        return isinstance(other, _Refusal)

    def __hash__(self):
        return 0


def _singles(r, said):
    """A range, from a number of its own to another; one too short for a formula in its letter size by size."""
    if r.by > 1 and r.multiples:
        r = Range(-(-r.low // r.by) * r.by, r.high // r.by * r.by, r.by)
    if isinstance(said, _Refusal) or r.single:
        return [(r, said)]
    sizes = r.some([], _SHORT + 1)
    return [(r, said)] if len(sizes) > _SHORT else [(Range(n, n), said) for n in sizes]


def _first_line(error):
    return (str(error).splitlines() or [type(error).__name__])[0]


def _numbers(found, number):
    return tuple(sorted(number[i] for i in found))


def _oddness(point):
    """Points whose sizes are least likely to be those of others."""
    b, s, *_ = point
    return (b % 2) + (s % 2) * 2 + (b > 1) + min(s, 1000) / 1000


def _common(a, b):
    from math import lcm

    return lcm(a, b)


def _periods(period):
    return "layer" if period == 1 else f"{period} layers"
