"""A course as a process asks for it: the weights, a first step in which the optimizer's states are made, and steady ones.

A course's pieces say which tensor is freed: what backward frees is the piece that forward took. Of what repeats, a stand-in's pieces are
one for all turns: there the last that was taken goes first, as backward frees them; and what a turn frees of its neighbor is the like of
what the stand-in frees, by the name of the operation that took it.
"""

from collections import Counter
from itertools import count, groupby
from typing import Any, NamedTuple

from ..allocator import Request, Run, Shaped, closed, named, parted
from ..catalog import Model
from ..catalog.weights import ENDS, layers, weights
from ..rules import WHOLE, broken
from ..step.course import middles

#: Phases whose first product takes cuBLAS's workspace: those of the two threads. The optimizer runs on forward's.
THREADS = ("forward", "backward")


class Made(NamedTuple):
    """Weights as they are made on the GPU, in fp32 and whole, before they are what they stay.

    Attributes:
        units: bytes of each tensor of what FSDP divides together: the embeddings, each block, what comes last. tied: bytes of the head
            that is made and given up for the embedding; 0 without. mask: (after how many of a block's tensors its causal mask is made,
            its bytes); None without. narrow: whether all become 16 bits first. becomes: `shares` of each unit, `flat` copies of all, or
            `themselves`.
    """

    units: list[list[int]]
    tied: int
    mask: tuple[int, int] | None
    narrow: bool
    becomes: str


def made(model, setup) -> Made | None:
    """How the book's own step makes a model; None where it is not told, as `WHOLE` of the rules says."""
    if not isinstance(model, Model) or broken(WHOLE, setup, model):
        return None
    standing: list[Any] = [w for w in weights(model) if w.count and layers(model)[w.group]]
    first, block, last = (
        [4 * w.numbers for w in standing for _ in range(w.count) if (w.group if w.group in ENDS else "") == group]
        for group in (ENDS[0], "", ENDS[1])
    )
    before = sum(w.count for w in standing if w.name.startswith(("norm1.", "attention.")))
    mask = (before, 4 * model.positions**2) if model.family == "gpt" and setup.attention == "eager" else None
    becomes = "shares" if setup.fsdp else "flat" if setup.sharding == "zero1" else "themselves"
    units = [first, *[block] * model.layers, last]
    return Made(units, 4 * model.vocabulary * model.width * model.tied, mask, setup.base_dtype != "fp32", becomes)


class Asked(NamedTuple):
    """What a process asks of its allocator with some values of the letters, and what says the same of others.

    Attributes:
        shaped: the requests. pieces: key -> the piece whose tensor it names. freed: (piece that was taken, piece that says so), by whose
            sizes what is freed was found. none: pieces without bytes.
    """

    shaped: Shaped
    pieces: dict
    freed: set
    none: set

    def at(self, before, amounts) -> Shaped | None:
        """The same requests with other sizes; None where other tensors might be taken or freed. before, amounts: of these sizes, of those."""
        each = amounts.each
        if any(each(one)[0] != each(other)[0] for one, other in self.freed) or any(
            each(piece)[0] for piece in self.none
        ):
            return None
        known = {piece: each(piece) for piece in set(self.pieces.values())}
        if any(not size or times != before.each(piece)[1] for piece, (size, times) in known.items()):
            return None
        sizes = {key: known[piece][0] for key, piece in self.pieces.items()}

        def sized(runs):
            return [Run(b, [Request(k, n and sizes.get(k, n), stream) for k, n, stream in part]) for b, part in runs]

        return Shaped(self.shaped.beginning, sized(self.shaped.first), sized(self.shaped.steady))


def asked(course, values, workspace: int, whole: Made | None = None) -> Asked:
    """What a process asks of its allocator.

    A step that finds what the one before it left, such as gradients, names it as the one before it did: so it can be repeated, and
    follow a step of another batch and sequence. Before the first step nothing is left.

    Args:
        course: of the step. values: of its letters. workspace: bytes of cuBLAS's, on forward's thread and on backward's, each taken
            with the first product. whole: how the weights are made; by default as they stay.
    """
    asking, early, late = _Asking(course, values), [], []
    for piece in course.rest:
        (late if piece.part == "optimizer" and piece.key[1] != "m_w" else early).append(piece)
    beginning = asking.beginning(early, whole)
    states: list[Request] = []
    asking.take(late, states)
    (step, marks, runs), standing = asking.step(), []
    own = step
    if not closed(step):
        before = set(_found(step))
        beginning, states = ([r for r in some if r.key not in before] for some in (beginning, states))
        step, marks, runs = asking.step()
        standing = _found(step)
        same = dict(zip(_found(asking.step()[0]), standing, strict=True))
        own = step
        step = [request._replace(key=same.get(request.key, request.key)) for request in step]
    steady = named(step, runs, standing)
    updated = marks.pop("updated")
    inserted = asking.made(states) if asking.moves else [(updated, states)]
    inserted += [(place, [Request(-key, workspace)]) for key, place in enumerate(marks.values(), 1)]
    first, turns = [request for run in steady for request in run.requests], list(runs)
    unfound = {mine.key for mine, request in zip(first, step, strict=True) if request.key in standing}
    for place, more in sorted(inserted, key=lambda pair: -pair[0]):
        first[place:place] = more
        turns = [(batch, start + len(more) * (start > place)) for batch, start in turns]
    begun = [Run(batch, [r for r in part if r.bytes or r.key not in unfound]) for batch, part in parted(first, turns)]
    pieces = {r.key: asking.pieces[r.key] for r in states}
    flat = (request for run in steady for request in run.requests)
    pieces |= {r.key: asking.pieces[mine.key] for mine, r in zip(own, flat, strict=True) if r.bytes}
    return Asked(Shaped(beginning, begun, steady), pieces, asking.freed, asking.none)


def _found(step):
    """Keys that a step frees and has not taken, in order."""
    taken, found = set(), []
    for request in step:
        if request.bytes:
            taken.add(request.key)
        elif request.key not in taken:
            found.append(request.key)
    return found


def _sharded(units, stay, becomes):
    """The requests by which units of whole weights become what stays of them."""
    every = [request for unit in units for request in unit]
    if becomes == "flat":
        return [*stay[:2], *(Request(request.key, 0) for request in every), *stay[2:]]  # weights and gradients; a copy
    ends, last = len(units[0]), len(every) - len(units[-1])
    shares, out = [*stay[ends:last], *stay[:ends], *stay[last : len(every)]], []
    for unit in (*units[1:-1], [*units[0], *units[-1]]):  # the root comes last
        out += [*shares[: len(unit)], *(Request(request.key, 0) for request in unit)]
        shares = shares[len(unit) :]
    return [*out, *stay[len(every) :]]


class _Asking:
    def __init__(self, course, values):
        self.reading = course.at(values)
        self.operations = [(o, turns) for o, _, turns in self.reading.unrolled() if o is not None]
        self._born = {id(piece): operation for operation, _ in self.operations for piece in operation.taken}
        self._kin = {id(piece): kin for operation, _ in self.operations for piece, kin in _kin(operation)}
        self._middle = {(*where, index) for where, index, _ in middles(course.items)}
        self._neighbors = {}
        self._held: dict = {}  # by piece, by who took it in which turn, by bytes of one tensor: keys, the last taken at the end
        self._alive: set[int] = set()
        self._sizes: dict[int, int] = {}  # of every tensor that was taken
        self._count = self._start = 0  # keys, and how many of them before this step
        #: As `Asked` has them.
        self.pieces: dict[int, Any] = {}
        self.freed: set[tuple] = set()
        self.none: set = set()
        #: Of the last step: where a weight's own optimizer is at work, its states' bytes, the stream.
        self.moves: list[tuple] = []

    def made(self, states):
        """(place, requests) of the states of each optimizer that has one weight, in the order in which backward calls them."""
        left: dict = {}
        for request in states:
            left.setdefault(request.bytes, []).append(request.key)
        asked = [(place, size, stream) for place, sizes, stream in self.moves for size in sizes]
        return [(place, [Request(left[size].pop(0), size, stream)]) for place, size, stream in reversed(asked)]

    def beginning(self, pieces, whole):
        """The weights, made and then as they stay, and what else stands before the first step."""
        stay: list[Request] = []
        masks: list[Request] = []
        apart = "buffers" if whole and whole.mask else None
        self.take([piece for piece in pieces if piece.part != apart], stay)
        self.take([piece for piece in pieces if piece.part == apart], masks)
        if whole is None:
            return stay
        numbers = count(-len(stay) - len(masks) - 3, -1)
        left = iter(stay if whole.becomes == "themselves" else [])
        out, narrowed, units = [], [], []

        def make(size, stays):
            out.append(stays if stays and not whole.narrow else Request(next(numbers), size))
            if not whole.narrow:
                return out[-1]
            narrowed.extend([stays or Request(next(numbers), size // 2), Request(out[-1].key, 0)])
            return narrowed[-2]

        for number, unit in enumerate(whole.units):
            units.append([])
            for place, size in enumerate(unit, 1):
                units[-1].append(make(size, next(left, None)))
                if masks and whole.mask[0] == place and 0 < number < len(whole.units) - 1:
                    ones = Request(next(numbers), whole.mask[1])
                    out.append(ones)
                    make(whole.mask[1], masks.pop(0))
                    out.append(Request(ones.key, 0))
        if whole.tied:
            head = Request(next(numbers), whole.tied)
            out += [head, Request(head.key, 0)]
        return [*out, *narrowed, *(left if whole.becomes == "themselves" else _sharded(units, stay, whole.becomes))]

    def take(self, pieces, out, turns=None, stream=0):
        """Ask for the tensors of some pieces; of those that stand for as many blocks, block after block."""
        each = self.reading.amounts.each
        for times, group in groupby(pieces, lambda piece: each(piece)[1]):
            sized = [(piece, each(piece)[0]) for piece in group]
            self.none.update(piece for piece, size in sized if not size)
            for piece, size in [one for one in sized if one[1]] * times:
                self._count += 1
                self._alive.add(self._count)
                self._sizes[self._count] = size
                self.pieces[self._count] = piece
                known = [] if turns is None else [(self._kin[id(piece)], *turns.values())]
                for name in (id(piece), (piece.kin, size), size, *known):
                    self._held.setdefault(name, []).append(self._count)
                out.append(Request(self._count, size, stream))

    def _steps(self, piece, operation):
        """How many turns of each loop away a piece was taken that an operation frees, where one of both stands for many turns; else
        None: then the piece itself is meant."""
        name = id(piece), id(operation)
        if name not in self._neighbors:
            self._neighbors[name] = None
            if id(piece) in self._born:
                here, there = dict(operation.place), self._born[id(piece)].place
                apart = {loop: index - here[loop] for loop, index in there if loop in here}
                ends = [
                    (*there[:i], loop, place)
                    for i, (loop, index) in enumerate(there)
                    if apart.get(loop)
                    for place in (index, here[loop])
                ]
                pairs = [set(ends[i : i + 2]) for i in range(0, len(ends), 2)]
                if pairs and len(apart) == len(there) and all(pair & self._middle for pair in pairs):
                    self._neighbors[name] = apart
        return self._neighbors[name]

    def give(self, piece, out, before, operation, turns):
        """Give back a piece's tensors; `before`: the last that was taken before this operation."""
        (size, times), said, piece = self.reading.amounts.each(piece), piece, piece.of or piece
        if not size:
            self.none.add(said)
        like = piece.kin, size
        ways = [(id(piece), self._count), (like, before), (like, self._count), (size, before), (size, self._count)]
        if id(piece) not in self._born:  # it stood before the step
            ways.insert(0, (like, self._start))
        elif (apart := self._steps(piece, operation)) is not None:
            ways.insert(0, ((self._kin[id(piece)], *(turns[loop] + by for loop, by in apart.items())), before))
        for _ in range(times if size else 0):
            if key := next((key for way in ways if (key := self._found(*way))), None):
                self._alive.remove(key)
                self.freed.add((self.pieces[key], said))
                out.append(Request(key, 0))

    def _found(self, name, last):
        """The last tensor of that name that still lives and was not taken after `last`; None for none."""
        held = self._held.get(name, [])
        for place in range(len(held) - 1, -1, -1):
            if held[place] not in self._alive:
                del held[place]
            elif held[place] <= last:
                return held.pop(place)
        return None

    def step(self):
        """(requests, {phase: place after its first product, `updated`: where the optimizer's own step begins}, runs); at its end goes what
        no operation frees and the next step does not begin with: gradients. A run, (micro-batch, where it begins), ends where another
        micro-batch's begins; what is no micro-batch's is with the one before it."""
        out, places, stood, runs = [], {}, self._standing(), [(0, 0)]
        self._start = start = self._count
        self.moves = []
        for operation, turns in self.operations:
            before = self._count
            if turns.get("batch", runs[-1][0]) != runs[-1][0]:
                runs.append((turns["batch"], len(out)))
            self.take(operation.taken, out, turns, operation.stream)
            if operation.kernel[:1] == ("product",) and operation.phase in THREADS:
                places.setdefault(operation.phase, len(out))
            if operation.kernel[:1] == ("moved",):
                sizes = [self.reading.amounts.number(size) for size in operation.kernel[1:]]
                self.moves.append((len(out), sizes, operation.stream))
            if operation.name == "after_backward" or operation.kind == "prepared":
                places["updated"] = len(out)
            for piece in operation.freed:
                self.give(piece, out, before, operation, turns)
        more, left = self._standing() - stood, []
        for key in sorted((key for key in self._alive if key > start), reverse=True):
            if more[self._sizes[key]]:
                more[self._sizes[key]] -= 1
                left.append(key)
        self._alive.difference_update(left)
        return [*out, *(Request(key, 0) for key in left)], places, runs

    def _standing(self):
        """How many tensors of each size there are."""
        return Counter(self._sizes[key] for key in self._alive)


def _kin(operation):
    """(piece, what names it in every turn) of each that an operation takes."""
    owner = tuple(part for part in operation.owner.split(".") if not part.isdigit())
    return [(piece, (operation.name, operation.phase, owner, i)) for i, piece in enumerate(operation.taken)]
