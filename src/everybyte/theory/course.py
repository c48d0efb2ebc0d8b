"""The theory's course of a step: sizes are text in letters, evaluated on whole numbers or arrays of them."""

from functools import cached_property, lru_cache

from ..step import course
from ..step.course import PEAKS, Found, Reading
from .compiled import compiled
from .letters import HELPERS, text

#: The parts of a step's memory, in the order in which they are stacked; and what steps on several GPUs have besides.
PARTS = ("parameters", "casts", "buffers", "gradients", "optimizer", "activations", "transient", "loss")
SHARED_PARTS = ("unsharded", "communication")
#: So many budgets of one course are read; then it is compiled, which takes as long as ten of them and makes the others ten times
#: as fast.
OFTEN = 8


@lru_cache(2**14)
def _code(source):
    return compile(source, "<size>", "eval")


class Course(course.Course):
    """The operations of a step, with sizes as text.

    Args:
        host: pieces in the memory of the CPU, where something is offloaded.
    """

    def __init__(self, items, rest, host, parts):
        super().__init__(items, parts, rest)
        self._host, self._asked = host, 0

    def at(self, values, rounding=1) -> Reading:
        """The course for the values of its letters, each tensor rounded up to a multiple of so many bytes."""
        return Reading(self, Amounts(values, rounding))

    @cached_property
    def _budget(self):
        return compiled(self)

    def budget(self, values, rounding=1) -> Found:
        """The step, added up."""
        self._asked += 1
        if self._asked <= OFTEN:
            return self.at(values, rounding).budget()
        peak, at, parts, marks, step = self._budget(k=rounding, **values)
        moments = {name: dict(zip(self.parts, live, strict=True)) for name, live in marks.items()}
        return Found(moments, dict(zip(self.parts, parts, strict=True)), peak, PEAKS[at], step)

    def host(self, values) -> dict:
        """Part -> bytes in the memory of the CPU; empty where nothing is offloaded."""
        found = dict.fromkeys(("parameters", "gradients", "optimizer") if self._host else (), 0)
        amounts = Amounts(values)
        for piece in self._host:
            found[piece.part] += amounts.size(piece)
        return found


class Amounts:
    """Sizes as numbers, or arrays of them: text for the values of its letters, each tensor rounded up."""

    def __init__(self, values, rounding=1):
        self._names, self._rounding, self._known = HELPERS | values, rounding, {}

    def number(self, number):
        """What a number's text says."""
        return eval(_code(text(number)), {"__builtins__": {}}, self._names)  # noqa: S307  text that `letters` wrote

    def each(self, piece):
        """(bytes of one of a piece's tensors, how many there are)."""
        if (found := self._known.get(piece.key)) is None:
            numbers, width, count = piece.key
            size = eval(_code(f"({numbers})*({width})"), {"__builtins__": {}}, self._names)  # noqa: S307  as above
            found = self._known[piece.key] = -(-size // self._rounding) * self._rounding, self.number(piece.count)
        return found

    def size(self, piece):
        """Bytes of a piece."""
        size, count = self.each(piece)
        return size * count

    def times(self, repeat):
        """How often it repeats."""
        return self.number(repeat.times)
