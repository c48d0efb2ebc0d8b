"""The course of a derived step: what its operations take and free are tensors, counted by column."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..step.course import Course, Operation, Reading, Repeat, place_of
from ..step.witness import NUMBER
from .ranges import Range

#: What repeats in a derived step.
LAYER = "layer"
#: Where all its operations are.
IN_LAYER = ((LAYER, 0),)


@dataclass(frozen=True)
class Column:
    """Tensors of one kind: their `part`, their `owner` with * for its numbers, whether on the `host`, their `form`'s number."""

    part: str
    owner: str
    host: bool
    form: int


class Tensors(NamedTuple):
    """So `many` tensors of a column, which has that part."""

    part: str
    column: int
    many: int


@dataclass(slots=True)
class Layered(Operation):
    """An operation of a derived step. moves: within a `Repeat`, how much each number of the owner grows from turn to turn."""

    moves: tuple[int, ...] = ()

    def owner_at(self, turn: int) -> str:
        """Its owner in a turn."""
        moves = iter(self.moves)
        return NUMBER.sub(lambda found: str(int(found[0]) + turn * next(moves)), self.owner) if turn else self.owner


class Tally(dict):
    """How many tensors of each column. It can be added and multiplied, so that a `Reading` takes it for a size."""

    def __add__(self, other):
        found = Tally(self)
        for key, n in (other or {}).items():
            found[key] = found.get(key, 0) + n
            if not found[key]:
                del found[key]
        return found

    def __radd__(self, _):
        return self  # of nothing

    def __sub__(self, other):
        return self + (other or Tally()) * -1

    def __mul__(self, times):
        return Tally({key: n * times for key, n in self.items()} if times else {})

    __rmul__ = __mul__


class _Amounts:
    """What a `Reading` asks about tensors: their bytes, where `sizes` has each column's; else a `Tally` of them."""

    def __init__(self, sizes: Sequence[int] | None = None):
        self._sizes = sizes

    def size(self, piece):
        return Tally({piece.column: piece.many}) if self._sizes is None else piece.many * self._sizes[piece.column]

    def times(self, repeat):
        return repeat.times


@dataclass(frozen=True)
class Instant:
    """One operation of the step.

    Attributes:
        operation, phase, owner: its name, its phase, its module. at: where in the step, in words. place: its number.
        counts: what lives while it runs, column's number -> how many.
    """

    operation: str
    phase: str
    owner: str
    at: str
    place: int
    counts: Tally


def instants(course: Course) -> Iterator[Instant]:
    """Each operation; of a repeat the first and the last turn."""
    ends = Reading(course, _Amounts()).ends()
    place = 0
    for item in course.items:
        inside, times = (item.items, item.times) if isinstance(item, Repeat) else ([item], 1)
        for turn in sorted({0, times - 1}):
            for number, o in enumerate(inside, place + turn * len(inside)):
                live = Tally(sorted(sum(next(ends)[1], Tally()).items()))
                yield Instant(o.name, o.phase, o.owner_at(turn), place_of(o), number, live)
        place += times * len(inside)


def unrolled(course: Course, sizes: Sequence[int]) -> tuple[list[Operation], list[str], dict[str, list[int]]]:
    """(operations, their owners, part -> live bytes while each runs) of the whole step; `sizes`: bytes of a tensor of each column."""
    _, *found = Reading(course, _Amounts(sizes)).unrolled()
    owners = [operation.owner_at(turns.get(LAYER, 0)) for operation, _, turns in found]
    lines = {part: [parts[part] for _, parts, _ in found] for part in course.parts}
    return [operation for operation, _, _ in found], owners, lines


def differing(rows: Sequence[tuple], repeats: Iterable[tuple[int, int, int]], columns, parts) -> Course:
    """The course of `instants`.

    Args:
        rows: (name, where in the step, phase, owner, what lives more than at the row before) each. repeats: (number of the
            first row of a turn, how many a turn has, how often it comes).

    Only differences are known, so an operation takes them, whichever their sign. The first operation of the first turn
    takes more than that of the other turns; the last one of each turn frees that difference: so all turns start alike.
    """
    taken, freed, moves, items, done = [more for *_, more in rows], {}, {}, [], 0
    for start, length, times in repeats:
        if times > 1:
            last, following = start + length, start + 2 * length
            within = sum(taken[start + 1 : last], Tally())
            turns = taken[last] + within  # of all but the first
            freed[last - 1] = taken[start] + within - Tally({c: n // (times - 1) for c, n in turns.items()})
            if following < len(rows):
                taken[following] = taken[following] + freed[last - 1]
            for i, j in zip(range(start, last), range(last, following), strict=True):
                ends = zip(NUMBER.findall(rows[i][3]), NUMBER.findall(rows[j][3]), strict=True)
                moves[i] = tuple((int(b) - int(a)) // (times - 1) for a, b in ends)

    def made(i, place=()):
        name, where, phase, owner, _ = rows[i]
        given, back = ([Tensors(columns[c].part, c, n) for c, n in x.items()] for x in (taken[i], freed.get(i, {})))
        return Layered(name, phase, owner, where != phase, place, given, back, moves=moves.get(i, ()))

    for start, length, times in repeats:
        items += map(made, range(done, start))
        items.append(Repeat(times, LAYER, [made(i, IN_LAYER) for i in range(start, start + length)]))
        done = start + (1 + (times > 1)) * length
    return Course([*items, *map(made, range(done, len(rows)))], parts)


@dataclass(frozen=True)
class Case:
    """The ranges in which a step runs the same operations, those operations, and the instants that matter.

    Attributes:
        ranges: of each letter, B and S first. course: all operations.
        peak: the instants that can have the most bytes; rounded: these, and those that can once tensors are rounded up;
        step: those of the optimizer's step. moments: the end of a phase, or rest -> its instant.
    """

    ranges: dict[str, Range]
    peak: tuple[Instant, ...]
    rounded: tuple[Instant, ...]
    step: tuple[Instant, ...]
    moments: dict[str, Instant]
    course: Course

    @property
    def instants(self) -> list[Instant]:
        """All named instants, in the order of the step."""
        found = {i.place: i for i in (*self.rounded, *self.step, *self.moments.values())}
        return [found[place] for place in sorted(found)]

    def __contains__(self, point: tuple[int, ...]) -> bool:
        return all(value in r for value, r in zip(point, self.ranges.values(), strict=True))
