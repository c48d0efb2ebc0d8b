"""Any depth from a few: a deeper model's step is a shallow one's with the same stretches once more.

The step of a model with one layer more has all operations of the shallower one's and, in forward, in backward and where
else layers are gone through, one more stretch. If a third depth has exactly these stretches once more, with the same
tensors born and freed, the step of any depth is known: each tensor count between them lies on a straight line, in the
depth and in the number of the layer. So of each stretch the first and the last time are enough: what is highest in
between is highest there.
"""

from dataclasses import dataclass
from difflib import SequenceMatcher

from ..derivation.course import IN_LAYER, LAYER, Layered, Tally, Tensors
from ..step.course import Course, Repeat


class Uneven(Exception):
    """The depths looked at do not go on in a straight line."""


class Depth:
    """The step of one depth, by what its operations make and free.

    Args:
        look: the `Look` at it. columns: of each of its allocations.

    Attributes:
        operations, owners, marks: as the look has them. born, gone: of each operation how many tensors of each column it
            makes, and how many are freed after it.
    """

    def __init__(self, look, columns):
        size = len(look.operations)
        self.operations, self.owners, self.marks = look.operations, look.owners, look.trace.marks
        self.born, self.gone = [Tally() for _ in range(size)], [Tally() for _ in range(size)]
        for birth, death, column in zip(look.births, look.deaths, columns, strict=True):
            for where, i in ((self.born, birth), (self.gone, death)):
                if i < size:
                    where[i][column] = where[i].get(column, 0) + 1
        self._losses = look.losses
        self._parts = dict(zip(columns, (part for part, *_ in look.kinds), strict=True))

    @property
    def keys(self):
        """Of each operation what the same one of another depth has, too."""
        rows = zip(self.operations, self.owners, self.born, self.gone, strict=True)
        return [(*operation, path, frozenset(b.items()), frozenset(g.items())) for operation, (path, _), b, g in rows]

    def operation(self, i, born=None, gone=None, numbers=None, place=(), moves=()) -> Layered:
        """An operation of a course: the i-th, or the same with other tensors and other numbers in its owner."""
        taken, freed = (
            [Tensors(self._parts[c], c, n) for c, n in tally.items()]
            for tally in (self.born[i] if born is None else born, self.gone[i] if gone is None else gone)
        )
        (name, phase), (owner, own) = self.operations[i], self.owners[i]
        for n in own if numbers is None else numbers:
            owner = owner.replace("*", str(n), 1)
        return Layered(name, phase, owner, self._losses[i], place, taken, freed, moves=moves)

    def course(self, parts) -> Course:
        """Its course."""
        return Course([self.operation(i) for i in range(len(self.operations))], parts)


def further(depths: list[Depth], times: int, parts) -> Course:
    """The course of a step `times` periods deeper than the first of three depths, a period apart each.

    Raises:
        Uneven: where the three do not lie on a straight line.
    """
    first, second, third = depths
    stretches = {stretch.start: stretch.length for stretch in _stretches(first, second, third)}
    items: list = []
    before = 0
    for i in range(len(first.operations) + 1):
        if length := stretches.get(i, 0):
            inside = []
            for k in range(i + before, i + before + length):
                ends = (third.owners[place][1] for place in (k + before, k + before + length))
                lines = list(zip(second.owners[k][1], *ends, strict=True))
                numbers = [one + (times - 1) * (start - one) for one, start, _ in lines]
                moves = tuple(end - start for _, start, end in lines)
                inside.append(second.operation(k, numbers=numbers, place=IN_LAYER, moves=moves))
            items.append(Repeat(times, LAYER, inside))
            before += length
        if i < len(first.operations):
            k = i + before
            born, gone = (
                one[i] + (two[k] - one[i]) * times
                for one, two in ((first.born, second.born), (first.gone, second.gone))
            )
            numbers = [a + times * (b - a) for a, b in zip(first.owners[i][1], second.owners[k][1], strict=True)]
            items.append(second.operation(k, born, gone, numbers))
    return Course(items, parts)


@dataclass
class _Stretch:
    start: int
    length: int


def _stretches(first, second, third):
    """Where the second course has one stretch more than the first, checked against the third."""
    keys = [depth.keys for depth in (first, second, third)]
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
            if b - a != c - b:
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
