"""A step as a value: its operations in order, what repeats put into `Repeat`s, and what each takes and frees, as text in letters.

A `Reading` is a course with its sizes worked out: whole numbers, arrays of them, polynomials or symbols. What lives when, the peak,
its parts, the ends of the phases, every operation in turn: all are read there, by one walk.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

from .compiled import compiled
from .letters import HELPERS, text
from .schedule import Repeat, backwards, middles
from .tape import MARKS, PEAKS, Operation, place_of

#: The parts of a step's memory, in the order in which they are stacked; and what steps on several GPUs have besides.
PARTS = ("parameters", "casts", "buffers", "gradients", "optimizer", "activations", "loss")
SHARED_PARTS = ("unsharded", "communication")
#: So many budgets of one course are read; then it is compiled, which takes as long as ten of them and makes the others ten times
#: as fast.
OFTEN = 8


@lru_cache(2**14)
def _code(source):
    return compile(source, "<size>", "eval")


@dataclass(frozen=True)
class Found:
    """What a course says of a step, in whole bytes.

    Attributes:
        moments: moment -> part -> bytes, between steps (`rest`) and after each phase. parts, peak, peak_at: at the peak.
        step: the most that lives in the optimizer's step.
    """

    moments: dict
    parts: dict
    peak: int
    peak_at: str
    step: int


class Course:
    """The operations of a step, with sizes as text.

    Attributes:
        items: operations and repeats. rest: pieces that stand between steps. host: pieces in the memory of the CPU, where
            something is offloaded. parts: those that it speaks of.
    """

    def __init__(self, items, rest, host, parts):
        self.items, self.rest, self._host, self.parts = items, rest, host, parts
        self._asked = 0

    def at(self, values, rounding=1) -> "Reading":
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
        found, amounts = (
            dict.fromkeys(("parameters", "gradients", "optimizer") if self._host else (), 0),
            Amounts(values),
        )
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


@dataclass(frozen=True)
class Moment:
    """An operation, or a mark. live: part -> bytes while it runs; after: part -> bytes once it has freed what it frees."""

    operation: Operation
    live: dict
    after: dict


class Reading:
    """A course whose sizes are worked out.

    Args:
        amounts: says of a piece its `size`, and of a repeat how many `times` it comes.
    """

    def __init__(self, course, amounts):
        self.course, self.amounts = course, amounts
        self._index, self._known = course.parts.index, {}

    def _change(self, live, pieces, sign):
        for piece in pieces:
            if (found := self._known.get(id(piece))) is None:
                found = self._known[id(piece)] = self._index(piece.part), self.amounts.size(piece)
            i, size = found
            live[i] = live[i] + sign * size

    def _start(self):
        live = [0] * len(self.course.parts)
        self._change(live, self.course.rest, 1)
        return live

    def _named(self, live):
        return dict(zip(self.course.parts, live, strict=True))

    @cached_property
    def rest(self) -> dict:
        """Part -> bytes before the step."""
        return self._named(self._start())

    # One walk: of what repeats all turns, the first and the last, or once for all.

    def _ends(self, items, live):
        """Each operation while `live` is as it runs; of what repeats the first and the last turn."""
        for item in items:
            if type(item) is Repeat:
                times, before = self.amounts.times(item), live[:]
                yield from self._ends(item.items, live)
                if type(times) is not int or times > 1:
                    live[:] = [x + (x - b) * (times - 2) for x, b in zip(live, before, strict=True)]
                    yield from self._ends(item.items, live)
                continue
            self._change(live, item.taken, 1)
            yield item
            self._change(live, item.freed, -1)

    def ends(self):
        """(operation, live bytes of each part while it runs), one list that changes; of what repeats the first and the last turn.

        From turn to turn memory changes by the same amount: what lives at most, lives in one of them.
        """
        live = self._start()
        for operation in self._ends(self.course.items, live):
            yield operation, live

    def budget(self) -> Found:
        """The peak, its parts, what lives at the ends of the phases."""
        peak, at, best, step, marks = 0, "", None, 0, {"rest": self.rest}
        for operation, live in self.ends():
            if operation.name in MARKS:
                marks[operation.name] = self._named(live)
                step = sum(live) if operation.name == "after_backward" else step
            elif operation.taken:
                now = sum(live)
                if now > peak:
                    peak, at, best = now, place_of(operation), live[:]
                if operation.phase == "optimizer step":
                    step = max(step, now)
        return Found(marks, self._named(best or [0] * len(self.course.parts)), peak, at, step)

    def peaks(self, zeros):
        """(peak, the number of its place in `PEAKS`) over numpy arrays of letters. `zeros`: an array of their shape."""
        import numpy

        peak, at = zeros, numpy.zeros(zeros.shape, "int8")
        for operation, live in self.ends():
            if operation.taken:
                now = sum(live)
                higher = now > peak
                peak[higher], at[higher] = numpy.broadcast_to(now, peak.shape)[higher], PEAKS.index(place_of(operation))
        return peak, at

    @cached_property
    def moments(self) -> list[Moment]:
        """A `Moment` for each operation that stands for itself; of what repeats, the turns that stand for many are counted alone."""
        found, live = [], self._start()
        self._moments(self.course.items, live, found)
        return found

    def _moments(self, items, live, found):
        for item in items:
            if type(item) is Repeat:
                before = live[:]
                self._moments(item.items, live, [])
                times = self.amounts.times(item)
                live[:] = [x + (x - b) * (times - 1) for x, b in zip(live, before, strict=True)]
                continue
            self._change(live, item.taken, 1)
            during = self._named(live)
            self._change(live, item.freed, -1)
            found.append(Moment(item, during, self._named(live)))

    def last(self, *names) -> Moment:
        """The last moment that has one of these names."""
        found = [moment for moment in self.moments if moment.operation.name in names]
        if not found:
            raise KeyError(f"no operation {names} in this step")
        return found[-1]

    def bytes(self, pieces):
        """Bytes of some pieces."""
        return sum(map(self.amounts.size, pieces))

    def unrolled(self):
        """Every operation of the step, one after another: (operation, part -> live bytes, place); None at first, for what stands before.

        The place says of each loop which turn it is, all of them counted.
        """
        live = self._start()
        yield None, self._named(live), {}
        stood = {}
        for where, index, repeat in middles(self.course.items):
            stood.setdefault(where, {})[index] = self.amounts.times(repeat)
        yield from self._unrolled(self.course.items, live, {}, stood)

    def _unrolled(self, items, live, shifts, stood):
        for i, item in enumerate(items):
            if type(item) is Repeat:
                times, down = self.amounts.times(item), backwards(item, items[i + 1 :])
                for turn in range(times):
                    moved = times - 1 - turn if down else turn
                    yield from self._unrolled(item.items, live, shifts | {item.loop: moved}, stood)
                continue
            self._change(live, item.taken, 1)
            yield item, self._named(live), _turns(item, shifts, stood)
            self._change(live, item.freed, -1)

    # What is added up.

    def counted(self, items=None, times=1, but=()):
        """(operation, how often it runs); of loops in `but` each turn that is traced is one."""
        for item in self.course.items if items is None else items:
            if type(item) is Repeat:
                each = 1 if item.loop in but else self.amounts.times(item)
                yield from self.counted(item.items, times * each, but)
            else:
                yield item, times

    def taken(self) -> dict:
        """(batch, kind) -> bytes that forward and backward take by operations of that kind, "" that of all others, one after another.

        Of batches that are alike one stands here for all: which, `items` say.
        """
        found = {}
        for operation, times in self.counted(but=("batch",)):
            if operation.taken and operation.phase != "optimizer step":
                key = dict(operation.place).get("batch", 0), operation.kind
                found[key] = found.get(key, 0) + times * self.bytes(operation.taken)
        return found

    def flops(self):
        """Floating-point operations of the step's matrix products: a multiplication and an addition each."""
        return 2 * sum(
            times * prod(map(self.amounts.number, sizes)) for o, times in self.counted() for sizes in o.products
        )


def _turns(operation, shifts, stood):
    """Which turn of each loop it is: a stand-in's own number and how often it has stood, what comes after it moved on."""
    found = {}
    for i, (loop, index) in enumerate(operation.place):
        times = stood.get(operation.place[:i] + (loop,), {})
        found[loop] = index + sum(n - 1 for middle, n in times.items() if middle < index)
        found[loop] += shifts.get(loop, 0) if index in times else 0
    return found


def standing(makers, others=()):
    """Pieces that operations take, and neither they nor others free: (operation's name, place among its pieces, piece)."""
    freed = {id(piece) for operation in (*makers, *others) for piece in operation.freed}
    return [(o.name, i, piece) for o in makers for i, piece in enumerate(o.taken) if id(piece) not in freed]
