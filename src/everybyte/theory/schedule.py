"""A step of any length from one that was run short: what repeats is run a few times and counted as often as it is.

Blocks are alike, and so are batches and chunks: three blocks are traced, and the second stands for all between the first
and the last. From turn to turn memory changes by the same amount, so the most that lives is reached in the first or in the
last of them. `tests/theory` holds short traces against whole ones.
"""

from dataclasses import dataclass, replace
from itertools import groupby

from ..step.course import Repeat
from .tape import LOOPS, Piece


@dataclass(frozen=True)
class Loop:
    """What repeats: `turns` of it are traced, of which `middle` stands for as many as `times` says.

    `together`: whether an operation of another turn may free what several turns took, as autocast's copies go at the end.
    """

    turns: int
    times: object
    middle: int
    together: bool = True

    @classmethod
    def of(cls, number, most, middle):
        """For so many turns, of which at most `most` are traced."""
        if number <= most:
            return cls(int(number), 1, -1)
        return cls(most, number - (most - 1), middle)


def one_after_another(name, loops):
    """Loops that follow each other, as `nested` takes them: turns are counted through all of them, each has its own stand-in."""
    found, start = {}, 0
    for loop in loops:
        shifted = replace(loop, middle=start + loop.middle) if loop.middle >= 0 else loop
        found.update(dict.fromkeys(range(start, start + loop.turns), shifted))
        start += loop.turns
    return lambda place: found.get(place.get(name))


def nested(operations, loops, names=LOOPS):
    """The operations with what repeats put into `Repeat`s.

    Args:
        loops: loop -> `Loop`, or a function of the place.
    """
    if not names:
        return list(operations)
    name, rest = names[0], names[1:]
    found = []
    for index, group in groupby(operations, lambda o: dict(o.place).get(name)):
        group = list(group)
        loop = _loop(loops, name, dict(group[0].place))
        inner = nested(group, loops, rest)
        if index is not None and loop is not None and index == loop.middle:
            found.append(Repeat(loop.times, name, inner))
        else:
            found += inner
    return found


def _loop(loops, name, place):
    loop = loops.get(name)
    return loop(place) if callable(loop) else loop


def left(operations, loops):
    """What these operations take, and none of them frees, as often as it is taken."""
    freed, found = {id(piece) for operation in operations for piece in operation.freed}, []
    for operation in operations:
        times, place = 1, dict(operation.place)
        for name, index in operation.place:
            loop = _loop(loops, name, place)
            times = loop.times * times if loop is not None and index == loop.middle else times
        found += [Piece(p.numbers, p.width, p.part, times * p.count) for p in operation.taken if id(p) not in freed]
    return found


def stretched(operations, loops):
    """Have what a stand-in took be freed as often as it was taken, where turns are freed together.

    Usually a turn's tensors are freed in a turn, its own or a neighbor's, which stands as often. But autocast's copies, say,
    go together as forward ends, or as a segment has been recomputed.
    """
    born = {id(piece): operation.place for operation in operations for piece in operation.taken}
    for operation in operations:
        places = [born.get(id(piece), operation.place) for piece in operation.freed]
        if all(place == operation.place for place in places):
            continue
        here, freed = dict(operation.place), list(zip(operation.freed, places, strict=True))
        turns = {(piece.key, piece.kin, tuple(sorted(place))) for piece, place in freed}
        for i, (piece, where) in enumerate(freed):
            count, place = piece.count, dict(where)
            for name, index in where:
                loop = _loop(loops, name, place)
                if loop is not None and index == loop.middle and here.get(name) != index:
                    before = tuple(sorted((place | {name: index - 1}).items()))
                    if name not in here or (loop.together and (piece.key, piece.kin, before) in turns):
                        count = loop.times * count
            if count is not piece.count:
                operation.freed[i] = Piece(piece.numbers, piece.width, piece.part, count, of=piece)
    return operations
