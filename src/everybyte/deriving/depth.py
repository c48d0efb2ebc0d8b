"""Any depth from a few: a deeper model's step is a shallow one's with the same stretches once more.

The step of a model with one layer more has all operations of the shallower one's and, in forward, in backward and where
else layers are gone through, one more stretch. If a third depth has exactly these stretches once more, with the same
tensors born and freed, the step of any depth is known: each tensor count between them lies on a straight line, in the
depth and in the number of the layer. So of each stretch the first and the last time are enough: what is highest in
between is highest there.
"""

from collections import Counter
from dataclasses import dataclass
from difflib import SequenceMatcher


class Uneven(Exception):
    """The depths looked at do not go on in a straight line."""


@dataclass
class Course:
    """A step as changes: what each operation makes, and what is freed after it, counted by column.

    Attributes:
        operations: (name, phase). owners: (path with *, its numbers). born, gone: Counters of columns. marks: as in a trace.
    """

    operations: list[tuple[str, str]]
    owners: list[tuple[str, tuple[int, ...]]]
    born: list[Counter]
    gone: list[Counter]
    marks: dict[str, int]

    @classmethod
    def of(cls, look, columns) -> "Course":
        """Of a `Look`; `columns`: of each of its allocations."""
        size = len(look.operations)
        born, gone = [Counter() for _ in range(size)], [Counter() for _ in range(size)]
        for birth, death, column in zip(look.births, look.deaths, columns, strict=True):
            born[birth][column] += 1
            if death < size:
                gone[death][column] += 1
        return cls(look.operations, look.owners, born, gone, look.trace.marks)

    def keys(self):
        return [
            (*operation, owner[0], frozenset(b.items()), frozenset(g.items()))
            for operation, owner, b, g in zip(self.operations, self.owners, self.born, self.gone, strict=True)
        ]


@dataclass
class Instant:
    """One operation of the step: what lives while it runs, counted by column, its place in the step, and whose it is."""

    operation: str
    phase: str
    owner: str
    place: int
    counts: Counter


def instants(course: Course) -> tuple[list[Instant], dict[str, int], list]:
    """(every instant of a step, marks by name, nothing that repeats)."""
    found, live = [], Counter()
    for i, (name, phase) in enumerate(course.operations):
        live = _plus(live, course.born[i])
        found.append(Instant(name, phase, _path(course.owners[i][0], course.owners[i][1]), i, live))
        live = _plus(live, course.gone[i], -1)
    return found, dict(course.marks), []


def further(courses: list[Course], times: int) -> tuple[list[Instant], dict[str, int], list[tuple[int, int, int]]]:
    """(instants, marks, repeats) of a step `times` periods deeper than the first of three courses, a period apart each.

    Of a stretch that comes `times` times, the first and the last are there; repeats: (number of its first instant, how
    many instants it has, how often it comes).

    Raises:
        Uneven: where the three do not lie on a straight line.
    """
    stretches = _stretches(*courses)
    first, second, third = courses
    live, found, repeats, place, moved = Counter(), [], [], 0, {}
    for i in range(len(first.operations) + 1):
        for j, s in enumerate(stretches):
            if s.start == i:
                before = sum(t.length for t in stretches[:j])
                one = range(i + before, i + before + s.length)
                last = range(i + 2 * before, i + 2 * before + 2 * s.length)
                net = Counter()
                for k in one:
                    net = _plus(_plus(net, second.born[k]), second.gone[k], -1)
                repeats.append((len(found), s.length, times))
                for t in sorted({0, times - 1}):
                    now = _plus(live, net, t)
                    for o, k in enumerate(one):
                        now = _plus(now, second.born[k])
                        numbers = _line(
                            second.owners[k][1],
                            third.owners[last[o]][1],
                            third.owners[last[o + s.length]][1],
                            t,
                            times,
                        )
                        name, phase = second.operations[k]
                        owner = _path(second.owners[k][0], numbers)
                        found.append(Instant(name, phase, owner, place + t * s.length + o, now))
                        now = _plus(now, second.gone[k], -1)
                live = _plus(live, net, times)
                place += times * s.length
        if i == len(first.operations):
            break
        k = i + sum(s.length for s in stretches if s.start <= i)
        live = _plus(live, _plus(first.born[i], _less(second.born[k], first.born[i]), times))
        numbers = tuple(a + times * (b - a) for a, b in zip(first.owners[i][1], second.owners[k][1], strict=True))
        name, phase = first.operations[i]
        moved[i] = place
        found.append(Instant(name, phase, _path(first.owners[i][0], numbers), place, live))
        live = _plus(live, _plus(first.gone[i], _less(second.gone[k], first.gone[i]), times), -1)
        place += 1
    return found, {phase: moved[i] for phase, i in first.marks.items()}, repeats


@dataclass
class _Stretch:
    start: int
    length: int


def _stretches(first, second, third):
    """Where the second course has one stretch more than the first, checked against the third."""
    keys = [c.keys() for c in (first, second, third)]
    one, two = _insertions(keys[0], keys[1]), _insertions(keys[1], keys[2])
    if len(one) != len(two):
        raise Uneven("one more layer adds stretches at other places")
    before = 0
    for a, b in zip(one, two, strict=True):
        here = slice(a.start + before, a.start + before + a.length)
        if b.length != a.length or b.start != a.start + before:
            raise Uneven("one more layer adds another stretch")
        start = b.start + before
        for copy in (start, start + a.length):
            again = slice(copy, copy + a.length)
            if second.born[here] != third.born[again] or second.gone[here] != third.gone[again]:
                raise Uneven("one more layer makes other tensors")
        before += a.length
    _check_base(first, second, third, one)
    return one


def _check_base(first, second, third, stretches):
    for i in range(len(first.operations)):
        more = sum(s.length for s in stretches if s.start <= i)
        for field in ("born", "gone"):
            a, b, c = (getattr(x, field)[i + n * more] for n, x in enumerate((first, second, third)))
            if _less(b, a) != _less(c, b):
                raise Uneven("the counts of tensors are not on a straight line")
    for phase, i in first.marks.items():
        more = sum(s.length for s in stretches if s.start <= i)
        if (second.marks.get(phase), third.marks.get(phase)) != (i + more, i + 2 * more):
            raise Uneven(f"{phase} is within a layer")


def _insertions(short, long):
    """What the longer one has besides the shorter one, each as far to the start as it can stand.

    First operations are matched that make and free the same; what is left, such as those whose counts depend on the
    depth, by their names.
    """
    found = []
    for i1, j1, j2 in _added(short, long):
        while j1 > 0 and i1 > 0 and long[j1 - 1] == long[j2 - 1]:
            i1, j1, j2 = i1 - 1, j1 - 1, j2 - 1
        found.append(_Stretch(i1, j2 - j1))
    if any(a.start >= b.start for a, b in zip(found, found[1:], strict=False)):
        raise Uneven("two stretches at one place")
    left = [key[:3] for key in long]
    for s in found:
        del left[s.start : s.start + s.length]
    if left != [key[:3] for key in short]:
        raise Uneven("the shallower model's step is no part of the deeper one's")
    return found


def _added(short, long):
    """(place in the shorter one, from, to in the longer one) of each stretch that the longer one has besides."""
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, short, long, autojunk=False).get_opcodes():
        if tag == "insert":
            yield i1, j1, j2
        elif tag != "equal":
            names = [[key[:3] for key in part] for part in (short[i1:i2], long[j1:j2])]
            for within, a1, a2, b1, b2 in SequenceMatcher(None, *names, autojunk=False).get_opcodes():
                if within == "insert":
                    yield i1 + a1, j1 + b1, j1 + b2
                elif within != "equal" or a2 - a1 != b2 - b1:
                    raise Uneven("the shallower model's step is no part of the deeper one's")


def _less(one, other):
    return {c: n for c in one.keys() | other.keys() if (n := one[c] - other[c])}


def _plus(one, other, times=1):
    if not other or not times:
        return one  # nobody changes a count that is there
    found = Counter(one)
    for column, count in other.items():
        if total := found[column] + times * count:
            found[column] = total
        else:
            del found[column]
    return found


def _line(one, first, last, t, times):
    """A number of the t-th of `times`, from that of one of one, and those of two of two."""
    return tuple(a + t * (c - b) + (times - 1) * (b - a) for a, b, c in zip(one, first, last, strict=True))


def _path(owner, numbers):
    for n in numbers:
        owner = owner.replace("*", str(n), 1)
    return owner
