"""What a course says at each operation, in whatever its letters stand for: numbers, polynomials, symbols."""

from dataclasses import dataclass
from functools import cached_property

from .schedule import Repeat


@dataclass(frozen=True)
class Moment:
    """An operation, or a mark. live: part -> bytes while it runs; after: part -> bytes once it has freed what it frees."""

    operation: object
    live: dict
    after: dict


class Reading:
    """A course with its sizes worked out.

    Args:
        size: a piece -> bytes of one of its tensors, and how many of them. times: a text -> how often what it counts repeats.
    """

    def __init__(self, course, size, times):
        self.course, self._size, self._times = course, size, times

    @cached_property
    def rest(self):
        """Part -> bytes before the step."""
        live = dict.fromkeys(self.course.parts, 0)
        for piece in self.course.rest:
            live[piece.part] += self._size(piece)
        return live

    @cached_property
    def moments(self):
        """A `Moment` for each operation that is shown."""
        found: list[Moment] = []
        self._walk(self.course.items, dict(self.rest), found)
        return found

    def _walk(self, items, live, moments):
        """Go through operations; of what repeats, the turns that stand for many are counted and not shown."""
        for item in items:
            if isinstance(item, Repeat):
                before = dict(live)
                self._walk(item.items, live, [])
                for part in live:
                    live[part] += (live[part] - before[part]) * (self._times(item.times) - 1)
                continue
            for piece in item.taken:
                live[piece.part] += self._size(piece)
            during = dict(live)
            for piece in item.freed:
                live[piece.part] -= self._size(piece)
            moments.append(Moment(item, during, dict(live)))

    def at(self, *names):
        """The last moment that has one of these names."""
        found = [moment for moment in self.moments if moment.operation.name in names]
        if not found:
            raise KeyError(f"no operation {names} in this step")
        return found[-1]

    def bytes(self, pieces):
        """Bytes of some pieces."""
        return sum(self._size(piece) for piece in pieces)


def standing(makers, others=()):
    """Pieces that operations take, and neither they nor others free: (operation's name, place among its pieces, piece)."""
    freed = {id(piece) for operation in (*makers, *others) for piece in operation.freed}
    return [(o.name, i, piece) for o in makers for i, piece in enumerate(o.taken) if id(piece) not in freed]
