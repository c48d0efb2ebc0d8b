"""From dry runs to a derivation."""

from dataclasses import dataclass, field
from dataclasses import replace as changed
from itertools import product
from math import lcm, prod

from ..ask.choices import LIMITS
from ..ask.setup import Setup
from ..catalog import Model
from ..common import terminal
from ..derivation import Case, Derivation, Irregular, Range, partition
from ..derivation.course import Column, instants
from ..derivation.ranges import BATCHES, FURTHER_MULTIPLES, LONGEST, MORE_SIZES, SEQUENCE_MULTIPLES, SEQUENCES, SIZES
from ..derivation.result import ROUNDINGS
from ..step.amount import NAMES, ONE, USUAL, Amount
from ..step.course import MARKS, Course
from .along import Along
from .depth import Depth, Uneven, further
from .looks import SKETCH, Look, Subject
from .proofs import Order
from .solver import Solver

#: The point that others are compared with; of a further letter the first of these sizes that the model takes.
_BATCH, _SEQUENCE, _SIZES = 3, 64, (224, 64, 256, 32, 128, 16, 512, 28, 8, 1024, 4, 2, 1)
_MOST = BATCHES[-1]
#: Sequences of a range, six of which tell what grows with them from what grows with their chunks.
_LENGTHS = (64, 33, 90, 127, 256, 1000, 577, 1500, 3001, 2050)
#: Batches of a range; of a single token so many more, as one letter alone tells less.
_GROUPS = (3, 2, 5, 7, 33, 18, 100, 259)
#: So many depths are looked at, three at a time, where the first layers are not like those that follow.
_DEPTHS = 5
#: A batch and a sequence as large as these are looked at in every patch: what is padded is constant among small ones.
_FAR = (577, 16391)
#: At so many points the bytes of a tensor must be those of one that is known.
_FEW = 4
#: Where the last range of sequences begins at so few tokens, all up to twice as many are looked at.
_SMALL = 32
#: How often ranges are looked for again.
_ROUNDS = 4
#: Of ranges that differ in how a step goes, so many are followed.
_CASES = 24
#: A range of no more sizes of a further letter is taken size by size.
_SHORT = 7
#: What a step that cannot be run raises, such as a model's own checks of sizes.
_CANNOT = (ValueError, RuntimeError, IndexError, AssertionError, ArithmeticError)


@dataclass
class _Patch:
    """A range of each letter, before it is solved.

    Attributes:
        points: to look at; more: further ones, where a tensor has a form of its own. forms: of its tensors, as keys.
    """

    ranges: tuple[Range, ...]
    points: list
    more: list
    forms: dict = field(default_factory=dict)


def solve(subject: Subject, setup: Setup, rank: int = 0) -> Derivation:
    """The derivation of a subject under a setup, on one of its GPUs."""
    return _Solving(subject, setup, rank).run()


class _Solving:
    """Points are tuples of sizes: of batch, sequence and the further letters."""

    def __init__(self, subject, setup, rank):
        self.subject, self.setup, self.rank = subject, setup, rank
        self.seen: dict[tuple, Look] = {}
        self._bar = terminal.bar(desc="dry runs", unit="")
        self.period, self.letters = subject.period, USUAL + subject.further
        self.forms: dict[Amount, int] = {}
        self.columns: dict[tuple, int] = {}
        self.checked = []
        #: With as many tokens, a chunked loss has as many chunks as asked for.
        self.tokens = (setup.loss_chunks - 1) ** 2 + 1 if setup.loss == "chunked" else 1

    def run(self):
        subject, depths, why = self.subject, self._depths(), ""
        self.shallow = SKETCH if subject.sketch and len(depths) > 2 else depths[0]
        self.usual = self._first()
        self.first = self._look(*self.usual)  # what it raises, it raises here
        patches, refused = self._patches()
        solved = [self._forms(patch) for patch in patches]
        for several in zip(depths, depths[1:], depths[2:], strict=False):
            try:
                found = self._straight(solved, several, refused, depths[0])
                break
            except Uneven as error:
                why = f" All {subject.layers} layers were run, since depths do not go on in a straight line ({error})."
        else:
            parts = self._parts
            cases = [self._case(patch, self._depth(patch, subject.layers).course(parts)) for patch in solved]
            how = f"Dry runs at {len(self.seen)} points, solved in fractions.{why}"
            found = self._derivation(cases, refused, how)
            self._check(found)
        shown = [n for n, letter in enumerate(self.letters) if letter in subject.letters]
        told = ", ".join(" x ".join(f"{point[n]:,}" for n in shown) for _, *point in self.checked)
        depth = f" at {subject.layers} layers" if subject.layers else ""
        names = " x ".join(NAMES.get(self.letters[n], self.letters[n]) for n in shown)
        how = f"{found.how} Compared with further dry runs{depth} at {told} ({names}): no byte of difference."
        return changed(found, how=how, checked=tuple(self.checked))

    def _straight(self, patches, depths, refused, shallowest):
        """The derivation from three depths; Uneven where these and the model's own depth are not on a straight line."""
        times = (self.subject.layers - depths[0]) // self.period
        cases = [self._case(p, further([self._depth(p, d) for d in depths], times, self._parts)) for p in patches]
        sketched = self.shallow == SKETCH
        shallow = "one layer of each kind" if sketched else f"{shallowest} layers"
        others = ", ".join(str(d) for d in depths if sketched or d != shallowest)
        period = "layer" if self.period == 1 else f"{self.period} layers"
        how = (
            f"Dry runs of {shallow} at {len(self._seen())} points, and of {others} layers at others: each {period} "
            f"more adds the same stretches of operations, and so on in a straight line to {self.subject.layers}."
        )
        point = self._hidden(cases[0])
        look = self._look(*point, depth=self.subject.layers)
        found = self._derivation(cases, refused, how)
        try:
            self._compare(found, look, point)
        except ValueError as error:
            raise Uneven("the model at its own depth differs") from error
        return found

    def _first(self):
        """The point that others are compared with."""
        longest, count = self.subject.longest, len(self.subject.further)
        sequence = max(min(_SEQUENCE, longest), min(-(-self.tokens // _BATCH), longest))
        point = max(_BATCH, -(-self.tokens // sequence)), sequence
        if not count:
            return point
        tried, why = [(n,) * count for n in _SIZES], []
        if count > 1:  # one may have to be the other's multiple, or stand beside the sequence
            tried += [p for p in product(_SIZES[:4], repeat=count) if len(set(p)) > 1]
        for sizes in tried:
            try:
                self._look(*point, *sizes)
                return *point, *sizes
            except _CANNOT as error:
                why.append(error)
        raise why[0]

    def _at(self, point):
        """Letter -> size."""
        return dict(zip(self.letters, point, strict=True))

    def _of(self, form, point):
        """A form's bytes at a point; a fraction where the form is of another range, which the point is not in."""
        return form.value(self._at(point))

    def _said(self, point):
        return ", ".join(f"{NAMES.get(x, x)} {n}" for x, n in self._at(point).items() if x in self.subject.letters)

    def _depths(self):
        """Three depths to look at, a period apart; or the model's own alone."""
        layers, period = self.subject.layers, self.subject.period
        if layers is None:
            return [None]
        self.period = period = lcm(period, max(1, self.setup.segment), self.setup.cycle)
        first = layers % period or period
        while first < max(self.subject.least, self.setup.segment) or (self.subject.sketch and first < period):
            first += period
        found = [d for d in range(first, first + _DEPTHS * period, period) if d < layers]
        return found if len(found) > 2 else [layers]

    def _look(self, *point, depth="shallow") -> Look:
        """The look at a point, made once."""
        depth = self.shallow if depth == "shallow" else depth
        point = tuple(1 if x in USUAL and x not in self.subject.letters else n for x, n in self._at(point).items())
        if (depth, *point) not in self.seen:
            self.seen[depth, *point] = Look(self.subject.trace(self.setup, depth, self._at(point), self.rank))
            self._bar.update()
        return self.seen[depth, *point]

    def _seen(self):
        """The points at which the shallow model was looked at."""
        return [point for depth, *point in self.seen if depth == self.shallow]

    # Where which course holds.

    def _patches(self):
        """(patches, the main one first; refusals). Where a range turns out to be several, ranges are found anew."""
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
        axes = {letter: self._axis(letter, more[letter]) for letter in self.letters}
        full = {letter: Range(1, LIMITS.get(NAMES.get(letter), (1, LONGEST))[1]) for letter in self.letters}
        refused = [
            (tuple((full | {letter: r}).values()), said.why)
            for letter, ranges in axes.items()
            for r, said in ranges
            if isinstance(said, _Refusal)
        ]
        able = {letter: [r for r, said in found if not isinstance(said, _Refusal)] for letter, found in axes.items()}
        if prod(map(len, able.values())) > _CASES:
            which, ranges = max(able.items(), key=lambda x: len(x[1]))
            raise ValueError(self._irregular(which, *(r.some([], 1)[0] for r in ranges[:2])))
        batches, *others = able.values()
        found = []
        for *several, b in product(*others, batches):
            ranges = (b, *several)
            patch = self._patch(ranges)
            if isinstance(patch, _Refusal):
                refused.append((ranges, patch.why))
            else:
                found.append(patch)
        if not found:
            raise ValueError(f"derive: no batch and sequence of {self.subject.model} can be run: {refused[0][-1]}")
        return found, refused

    def _axis(self, letter, more):
        """(range, the kind of its course, or why it cannot be run) of each range of a letter, the usual one first."""
        subject, one = self.subject, (Range(1, 1), None)
        if letter not in subject.letters:
            return [one]
        if letter == "B":
            return [*self._ranges(letter, 2, _MOST, BATCHES), one]
        if letter == "S":
            low = min(max(2, self.tokens), subject.longest)
            wanted = [*SEQUENCES, *subject.sizes, *more]
            found = self._ranges(letter, low, subject.longest, wanted, (), SEQUENCE_MULTIPLES)
            begun = max((r.low for r, _ in found if low < r.low <= _SMALL), default=0)
            if begun:  # so does what is cut into a few pieces, whose last one is a single token here and there
                near = range(begun, 2 * begun + 1)
                found = self._ranges(letter, low, subject.longest, [*wanted, *near], (), SEQUENCE_MULTIPLES)
            return [*found, *([one] if low > 1 and self.tokens == 1 else [])]
        found = self._ranges(letter, 1, LONGEST, [*SIZES, *subject.sizes, *more], MORE_SIZES, FURTHER_MULTIPLES)
        usual = self._at(self.usual)[letter]
        return sorted((single for r, said in found for single in _singles(r, said)), key=lambda f: usual not in f[0])

    def _ranges(self, letter, low, high, wanted, *more):
        def kind(value):
            point = self._at(self.usual) | {letter: value}
            if letter in USUAL:
                other = "S" if letter == "B" else "B"
                point[other] = max(point[other], -(-self.tokens // value))
            try:
                return self._look(*point.values()).kind
            except _CANNOT as error:
                return _Refusal(_first_line(error))

        try:
            return partition(kind, low, high, wanted, *more)
        except Irregular as error:
            raise ValueError(self._irregular(letter, *error.args)) from None

    def _irregular(self, letter, a, b):
        one, other = (self._look(*(self._at(self.usual) | {letter: x}).values()) for x in (a, b))
        name, which = NAMES.get(letter, letter), NAMES.get(letter, f"letter {letter}")
        fixed = f"a fixed {name}" + ' in the shapes of `batch`, as ("B", 4096)' * (letter == "S")
        return (
            f"derive: the {which} decides which operations run: from {name} {a} to {b} the step goes another way, "
            f"{one.differs(other)}; allowed: loops and branches that do not depend on it, or by a few thresholds or "
            f"multiples; or {fixed}; or eb.dry_run"
        )

    def _patch(self, ranges):
        """A patch with enough points, at all of which the step runs alike; a `_Refusal` where they cannot be run."""
        b, s, *others = ranges
        rest = tuple(
            r.some([n for n in (usual, 224, 64) if n in r], 1)[0]
            for usual, r in zip(self.usual[2:], others, strict=True)
        )
        bs = [b.low] if b.single else b.some([v for v in _GROUPS if v in b][: 8 if s.single else 4], 4)
        ss = [s.low] if s.single else s.some([v for v in _LENGTHS if v in s][:6], 6)
        if b.single or s.single:
            pairs = list(product(bs, ss))
        else:
            pairs = [(bs[i % len(bs)], v) for i, v in enumerate(ss)]
            pairs += [(v, ss[(2 * i) % len(ss)]) for i, v in enumerate(bs)]
            pairs += [(bs[-1], ss[1 % len(ss)]), (bs[1 % len(bs)], ss[-1])]
        points = [(*p, *rest) for p in dict.fromkeys(pairs) if prod(p) >= self.tokens]
        few, more = points[:_FEW], points[_FEW:]
        seen = (tuple(p) for p in self._seen() if p[0] in b and p[1] in s)
        few += [p for p in seen if p[2:] == rest and p not in few]
        # the fewest tokens: what has a least size, such as a share of them, may have it there alone
        corner = (b.first(b.low), s.first(s.low), *rest)
        few += [corner] if corner not in few and prod(corner[:2]) >= self.tokens else []
        batch, sequence = (r.last(max(most, 3 * r.low)) for r, most in zip((b, s), _FAR, strict=True))
        few += [(batch, few[0][1], *rest)] if batch > max(p[0] for p in few) else []
        few += [(few[0][0], sequence, *rest)] if sequence > max(p[1] for p in few) else []
        patch = _Patch(ranges, few, more)
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
        """The patch, with the forms of its tensors."""
        rows = set(zip(*(self._look(*p).bytes for p in patch.points), strict=True))
        known = {tuple(self._of(form, p) for p in patch.points) for form in self.forms}
        wide = [letter for letter, r in zip(self.letters[2:], patch.ranges[2:], strict=True) if not r.single]
        if wide or any(len(set(row)) > 1 for row in rows - known):
            patch.points += [p for p in patch.more if p not in patch.points]
            self._same(patch)
        by = (self.setup.loss_chunks,) if self.setup.loss == "chunked" else ()
        for form in Along(self, patch, Solver([p[:2] for p in patch.points], by), wide).forms():
            self._known(patch, form)
        return patch

    def _known(self, patch, form):
        """The number of a form, which a patch has."""
        patch.forms[form] = None
        return self.forms.setdefault(form, len(self.forms))

    def _no_form(self, number, points, row):
        a = self._look(*points[0]).trace.allocations[number]
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
        for *row, (part, owner, host) in zip(*(look.bytes for look in looks), looks[0].kinds, strict=True):
            row = tuple(row)
            if row not in known:
                if len(row) == 1 and len(patch.points) > 1:
                    return None  # another point tells
                if len(set(row)) > 1:
                    raise Uneven("a deeper model has tensors of other sizes")
                known[row] = Amount.of({ONE: row[0]})
            column = part, owner, host, self._known(patch, known[row])
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
        """Points at which the bytes of a tensor tell its form; where one point does, another one at every turn."""
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

    @property
    def _parts(self):
        return tuple(self.first.trace.timeline())

    # The formula.

    def _case(self, patch, course: Course) -> Case:
        found = list(instants(course))
        marks = {"rest": 0} | {o.operation: i for i, o in enumerate(found) if o.operation in MARKS}
        ranges = self._at(patch.ranges)
        forms, counts = list(self.forms), [self._counts(instant.counts) for instant in found]
        ends = {letter: (r.low, r.high) for letter, r in ranges.items()}

        def highest(among, rounding):
            return [among[i] for i in Order(forms, [counts[i] for i in among], ends, rounding).highest()]

        within = range(marks["after_backward"], marks["after_step"] + 1)
        peak, rounded = (highest(range(len(found)), rounding) for rounding in ROUNDINGS)
        step = {i for rounding in ROUNDINGS for i in highest(within, rounding)}
        for letter, name in NAMES.items():
            if letter not in self.subject.letters:  # what the model does not have may be anything
                ranges[letter] = Range(*LIMITS[name])
        first, all_rounded, last = (tuple(found[i] for i in sorted(some)) for some in (peak, {*peak, *rounded}, step))
        return Case(ranges, first, all_rounded, last, {name: found[i] for name, i in marks.items()}, course)

    def _counts(self, live):
        """How many tensors of each form live on the GPU."""
        counts, columns = [0] * len(self.forms), list(self.columns)
        for column, n in live.items():
            _, _, host, form = columns[column]
            counts[form] += 0 if host else n
        return counts

    def _derivation(self, cases, refused, how):
        model = self.first.trace.model
        if isinstance(self.subject.model, Model) and isinstance(model, Model):
            model = self.subject.model
        elif self.subject.layers not in (None, self.shallow):
            whole = (look for (depth, *_), look in self.seen.items() if depth == self.subject.layers)
            model = next(whole).trace.model
        columns = tuple(Column(*key) for key in self.columns)
        return Derivation(
            model, self.setup, self.subject.layers, tuple(self.forms), columns, tuple(cases), self._parts,
            tuple(refused), how, tuple(self.checked), self.subject.letters, self.rank,
        )  # fmt: skip

    # What is compared.

    def _hidden(self, case):
        """A point of a case that was not used."""
        used = {key[1:] for key in self.seen} | {tuple(point) for _, *point in self.checked}
        batch, sequence, *others = case.ranges.values()
        b, s = batch.some([6, 11, 13], 3), sequence.some([321, 80, 176, 45], 4)
        if sequence.by > 64 and (long := sequence.last(2304)):  # of chunks many tell most
            s.insert(0, long)
        rest = [r.some([n for n in (171, 208, 140, 330, 98, 77, 160, 23) if n in r], 3) for r in others]
        points = [(x, y) for y in s for x in b]
        if rest:  # each time other sizes of all
            points = [
                (b[k % len(b)], s[k % len(s)], *(r[(k + n) % len(r)] for n, r in enumerate(rest))) for k in range(12)
            ]
        return next((p for p in points if p not in used and p[0] * p[1] >= self.tokens), points[0])

    def _check(self, derivation):
        """Compare with dry runs at points that were not used; ValueError where they differ."""
        for case in derivation.cases:
            for _ in range(1 + 2 * any(not case.ranges[letter].single for letter in self.letters[2:])):
                point = self._hidden(case)
                self._compare(derivation, self._look(*point, depth=self.subject.layers), point)

    def _compare(self, derivation, look, point):
        mine, trace = derivation.at(**self._at(point)), look.trace
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


@dataclass(frozen=True)
class _Refusal:
    """Why a point cannot be run. All are equal, as the text may contain a size."""

    why: str = field(compare=False)


def _singles(r, said):
    """A range; one with too few numbers for a formula is taken number by number."""
    if r.by > 1 and r.multiples:
        r = Range(r.first(r.low), r.last(r.high), r.by)
    if isinstance(said, _Refusal) or r.single:
        return [(r, said)]
    sizes = r.some([], _SHORT + 1)
    return [(r, said)] if len(sizes) > _SHORT else [(Range(n, n), said) for n in sizes]


def _first_line(error):
    return (str(error).splitlines() or [type(error).__name__])[0]


def _oddness(point):
    """Points whose sizes are least likely to be those of others."""
    b, s, *_ = point
    return (b % 2) + (s % 2) * 2 + (b > 1) + min(s, 1000) / 1000
