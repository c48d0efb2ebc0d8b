"""Any depth from a few: a deeper model's step is a shallow one's with the same stretches once more.

The step of a model with one layer more has all operations of the shallower one's and, in forward, in backward and where
else layers are gone through, one more stretch. If a third depth has exactly these stretches once more, with the same
tensors born and freed, the step of any depth is known: each tensor count between them lies on a straight line, in the
depth and in the number of the layer. So of each stretch the first and the last time are enough: what is highest in
between is highest there.
"""

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
        operations, owners, marks: as the look has them. tensors: of each operation how many of each column it makes, and how
            many are freed after it.
    """

    def __init__(self, look, columns):
        self.operations, self.owners, self.marks = look.operations, look.owners, look.trace.marks
        self.tensors = [(Tally(), Tally()) for _ in look.operations]
        for *life, column in zip(look.births, look.deaths, columns, strict=True):
            for which, i in enumerate(life):
                if i < len(self.tensors):
                    tally = self.tensors[i][which]
                    tally[column] = tally.get(column, 0) + 1
        self._losses = look.losses
        self._parts = dict(zip(columns, (part for part, *_ in look.kinds), strict=True))

    @property
    def keys(self):
        """Of each operation what the same one of another depth has, too."""
        rows = zip(self.operations, self.owners, self.tensors, strict=True)
        return [(*operation, path, *(frozenset(t.items()) for t in pair)) for operation, (path, _), pair in rows]

    def operation(self, i, tensors=None, numbers=None, place=(), moves=()) -> Layered:
        """An operation of a course: the i-th, or the same with other tensors and other numbers in its owner."""
        taken, freed = (
            [Tensors(self._parts[c], c, n) for c, n in tally.items()] for tally in tensors or self.tensors[i]
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
    turns, base = _aligned(depths)
    for k, *copies in (row for rows in turns.values() for row in rows):
        if any(second.tensors[k] != third.tensors[copy] for copy in copies):
            raise Uneven("one more layer makes other tensors")
    for i, j, k in base:
        if any(b - a != c - b for a, b, c in zip(first.tensors[i], second.tensors[j], third.tensors[k], strict=True)):
            raise Uneven("the counts of tensors are not on a straight line")
    for phase, i in first.marks.items():
        if (second.marks.get(phase), third.marks.get(phase)) != base[i][1:]:
            raise Uneven(f"{phase} is within a layer")

    def turned(k, *copies):
        lines = list(zip(second.owners[k][1], *(third.owners[copy][1] for copy in copies), strict=True))
        numbers = [one + (times - 1) * (start - one) for one, start, _ in lines]
        return second.operation(k, None, numbers, IN_LAYER, tuple(end - start for _, start, end in lines))

    def straight(i, j):
        tensors = [a + (b - a) * times for a, b in zip(first.tensors[i], second.tensors[j], strict=True)]
        numbers = [a + times * (b - a) for a, b in zip(first.owners[i][1], second.owners[j][1], strict=True)]
        return second.operation(j, tensors, numbers)

    items: list = []
    for i in range(len(base) + 1):
        items += [Repeat(times, LAYER, [turned(*row) for row in turns[i]])] if i in turns else []
        items += [straight(*base[i][:2])] if i < len(base) else []
    return Course(items, parts)


def _aligned(depths):
    """Where the second course has stretches that the first has not, and the third has again.

    Returns:
        ({number in the first: (number in the second, both in the third) of each operation of the stretch before it},
        numbers in all three of each operation that is in no stretch).
    """
    keys = [depth.keys for depth in depths]
    one, two = _insertions(keys[0], keys[1]), _insertions(keys[1], keys[2])
    if len(one) != len(two):
        raise Uneven("one more layer adds stretches at other places")
    turns, base, before = {}, [], 0
    for i in range(len(keys[0]) + 1):
        if length := one.get(i, 0):
            start = i + before
            if two.get(start) != length:
                raise Uneven("one more layer adds another stretch")
            turns[i] = [(k, k + before, k + before + length) for k in range(start, start + length)]
            before += length
        base.append((i, i + before, i + 2 * before))
    return turns, base[:-1]


def _insertions(short, long):
    """Place in the shorter one -> how many operations the longer one has there besides; as early as it can stand.

    First operations are matched that make and free the same; what is left, such as those whose counts depend on the
    depth, by their names.
    """
    found: dict[int, int] = {}
    for i1, j1, j2 in _added(short, long):
        while j1 > 0 and i1 > 0 and long[j1 - 1] == long[j2 - 1]:
            i1, j1, j2 = i1 - 1, j1 - 1, j2 - 1
        if found and i1 <= max(found):
            raise Uneven("two stretches at one place")
        found[i1] = j2 - j1
    left = [key[:3] for key in long]
    for start, length in found.items():
        del left[start : start + length]
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
