"""A step as a value, whoever says it: its operations in order, what repeats put into `Repeat`s, and what each takes and frees.

What a piece of memory is, whoever makes the course decides; a `Reading` asks `amounts` for its size. Sizes may be whole
numbers, arrays of them, polynomials, symbols, or counts: all that adds up. What lives when, the peak, its parts, the ends
of the phases, every operation in turn: all are read here, by one walk.
"""

from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

#: What an operation that communicates makes: a unit's weights gathered, its gradients to be reduced, and this GPU's share of their sum;
#: a share of the weights copied from the memory of the CPU; a share of gradients in the type in which it goes there. And what is made of
#: the gradients before the optimizer's own step.
KINDS = ("gathered", "sent", "received", "from the host", "stored", "prepared")
#: CUDA's streams: the one on which a step runs, and those on which FSDP gathers weights and reduces gradients, and FSDP1 casts before it
#: gathers. A freed block serves requests of its own stream alone.
STREAMS = RUNS, GATHERS, REDUCES, CASTS = 0, 1, 2, 3
#: Kernels that take memory for themselves while they run, each with the numbers by which it is known how much.
KERNELS = {
    "product": "of matrices, by cuBLAS",
    "grouped product": "of each expert's rows with its matrix",
    "attention": "",
    "attention backward": "",
    "table backward": "tokens, rows of the table, numbers of each",
    "norm backward": "rows, numbers of each, of weight and bias how many",
    "row sum": "numbers of a row, rows",
    "sort": "",
    "scan": "",
    "rows backward": "rows that were taken, rows of which they were",
    "moved": "nothing; an optimizer of one weight begins its step: bytes of each of its states",
}
#: Those that skip what a causal mask hides.
_CAUSAL = (("attention",), ("attention backward",))
#: Operations that are named moments: the ends of the phases.
MARKS = ("after_forward", "after_backward", "after_step")
#: What is said of each step, in this order: between steps, at the moments, and the most in the optimizer's step.
PHASES = ("rest", "after_forward", "after_backward", "step", "after_step")
#: Where a peak may be, in the order of the step.
PEAKS = ("forward", "loss forward", "loss backward", "backward", "optimizer step")


@dataclass(slots=True)
class Operation:
    """One operation, or a named moment.

    Attributes:
        name: in words, for people. kind: one of `KINDS`, for programs; "" where none asks. phase: `forward`, `backward` or `optimizer step`, or the name of a moment. owner: the module.
        loss: whether it belongs to head or loss. place: which batch, segment, block and chunk it is in.
        taken, freed: pieces; each has a `part`. products: of matrices, each the numbers whose product is how many multiplications it takes.
        kernel: (one of `KERNELS`, its numbers); () where it takes nothing for itself.
        stream: of CUDA's, on which it takes what it takes: one of `STREAMS`.
    """

    name: str
    phase: str
    owner: str
    loss: bool
    place: tuple
    taken: list = field(default_factory=list)
    freed: list = field(default_factory=list)
    products: list = field(default_factory=list)
    kind: str = ""
    kernel: tuple = ()
    stream: int = 0


def place_of(operation: Operation) -> str:
    """Where a peak at this operation is, one of `PEAKS`."""
    return f"loss {operation.phase}" if operation.loss and operation.phase != "optimizer step" else operation.phase


@dataclass(frozen=True)
class Repeat:
    """Operations that run `times` times. loop: which."""

    times: Any
    loop: str
    items: list


def flat(items):
    """Every operation that is traced, one after another."""
    for item in items:
        if isinstance(item, Repeat):
            yield from flat(item.items)
        else:
            yield item


def middles(items):
    """(where, number of the turn, repeat) of each loop's stand-in; where: in which turns of the outer loops, and the loop."""
    for item in items:
        if isinstance(item, Repeat):
            place = next(flat(item.items)).place
            i = [loop for loop, _ in place].index(item.loop)
            yield (*place[:i], item.loop), place[i][1], item
            yield from middles(item.items)


def backwards(repeat, following):
    """Whether the turns go down: by the turn that follows."""
    mine = dict(next(flat(repeat.items)).place)[repeat.loop]
    found = (dict(operation.place).get(repeat.loop) for operation in flat(following))
    return next((index < mine for index in found if index is not None), False)


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

    @property
    def phases(self) -> dict:
        """One of `PHASES` -> live bytes then; of `step` the most within it."""
        live = {name: sum(parts.values()) for name, parts in self.moments.items()} | {"step": self.step}
        return {name: live[name] for name in PHASES}


class Course:
    """The operations of a step.

    Attributes:
        items: operations and repeats. rest: pieces that stand between steps. parts: those that pieces may have.
    """

    def __init__(self, items, parts, rest=()):
        self.items, self.parts, self.rest = items, parts, rest


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
        """(batch, phase, kind) -> bytes that forward and backward take by operations of that kind, of no kind by the owner's last name.

        Of batches that are alike one stands here for all: which, `items` say.
        """
        found = {}
        for operation, times, batch in self._batches():
            if operation.taken:
                key = batch, operation.phase, operation.kind or operation.owner.rpartition(".")[2]
                found[key] = found.get(key, 0) + times * self.bytes(operation.taken)
        return found

    def started(self) -> dict:
        """(batch, phase) -> how many operations forward and backward have; batches as `taken` has them."""
        found = {}
        for operation, times, batch in self._batches():
            found[batch, operation.phase] = found.get((batch, operation.phase), 0) + times
        return found

    def _batches(self):
        """(operation of forward or backward, how often it runs in its batch, the batch)."""
        for operation, times in self.counted(but=("batch",)):
            if operation.phase != "optimizer step" and operation.name not in MARKS:
                yield operation, times, dict(operation.place).get("batch", 0)

    def flops(self, phase=None):
        """Floating-point operations of the matrix products of the step, or of a phase: a multiplication and an addition each."""
        return sum(self.products(phase).values())

    def products(self, phase=None) -> dict:
        """The same by what multiplies: `attention` and `attention backward`, its kernels; `head`, with the loss; "", all others.

        Of a kernel of attention half of each: with a causal mask it skips what the mask hides. Dao 2023, arXiv:2307.08691, section 3.1.
        """
        found = {}
        for o, times in self.counted():
            if o.products and phase in (None, o.phase):
                causal = o.kernel[:1] in _CAUSAL
                key = o.kernel[0] if causal else "head" if o.loss else ""
                numbers = sum(prod(map(self.amounts.number, sizes)) for sizes in o.products)
                found[key] = found.get(key, 0) + (1 if causal else 2) * times * numbers
        return found


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
