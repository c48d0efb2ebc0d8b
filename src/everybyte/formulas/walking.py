"""A step added up from its ledger: the extremes for the peak, or operation by operation for the timeline."""

from dataclasses import dataclass
from itertools import groupby

from sympy import sympify

from .ledger import Ledger, rounded
from .registry import compile_expressions

#: The parts that the ledger speaks of, in the order in which they are stacked; and the moments between the phases.
PARTS = ("parameters", "casts", "buffers", "gradients", "optimizer", "activations", "loss")
#: What steps on several GPUs have besides.
SHARED_PARTS = ("unsharded", "communication")
MARKS = ("after_forward", "after_backward", "after_step")
#: The sections in which a block's own operations run.
BLOCKS = {
    "block_forward", "first_block_passed", "block_passed", "segment_entered", "block_again", "last_block_again",
    "last_block_backward", "block_backward", "first_block_backward",
}  # fmt: skip
#: What stands before a section's name for the batches that find gradients there.
LATER = "later "
#: The same for the last of them, where it is unlike the others.
LAST = "last "


@dataclass(frozen=True)
class Shape:
    """How often each section of the ledger runs.

    Attributes:
        layers: how many blocks. chunks: into how many chunks the tokens are cut for the loss; None for the plain loss.
        segment: blocks that forward forgets together; 0 for none. accumulation: batches whose gradients add up.
        units: `zero2` or `zero3` where FSDP gathers blocks, and reduces their gradients. views: whether gradients are views
            of DDP's buckets.
        rotary: whether positions turn queries and keys: what all blocks share of it goes in the first one's backward.
    """

    layers: int
    chunks: int | None = None
    segment: int = 0
    accumulation: int = 1
    units: str = ""
    views: bool = False
    rotary: bool = False

    @classmethod
    def of(cls, model, setup):
        """The shape of a step."""
        tokens = setup.batch * setup.sequence
        chunks = -(-tokens // -(-tokens // setup.loss_chunks)) if setup.loss == "chunked" else None
        units = setup.sharding if setup.fsdp and setup.sharding_units == "block" else ""
        views = setup.ddp and setup.buckets == "views"
        rotary = model.unlike_gpt() is not None
        return cls(model.layers, chunks, setup.segment, setup.accumulation, units, views, rotary)

    def plan(self, whole):
        """The step's order: (section or mark, whether it is worth seeing, how many times it runs), one batch after another.

        `whole`: every section one by one. Else those that change the live bytes by the same each time stand together, and
        the extremes alone are worth seeing.
        """
        if self.accumulation == 1:
            yield from self._batch(whole)
        else:
            batch = list(self._batch(whole))
            yield from batch if whole else _unseen(batch, 1)
            later = [(LATER + section, seen, times) for section, seen, times in batch]
            passed = self.accumulation - 2
            yield from later * passed if whole else _unseen(later, passed)
            yield from [(LAST + section, seen, times) for section, seen, times in batch] if self.views else later
        yield "optimizer", True, 1
        yield "after_step", True, 1

    def _batch(self, whole):
        yield "start", True, 1
        yield from self._blocks_forward(whole)
        yield from self._loss_forward()
        yield "after_forward", True, 1
        yield from self._loss_backward()
        yield from self._blocks_backward(whole)
        yield "end", True, 1
        yield "after_backward", True, 1

    def _blocks_forward(self, whole):
        if self.units:
            yield from _grouped(self._units_forward(), whole)
            return
        if not self.segment:
            yield "block_forward", False, self.layers - 1
            yield "block_forward", True, 1
            return

        def segment(blocks):
            yield "first_block_passed", True, 1
            yield from _repeat([("block_passed", True, 1)], blocks - 1, whole)

        yield from _repeat(list(segment(self.segment)), self._full_segments, whole)
        yield from segment(self._last_segment)

    def _blocks_backward(self, whole):
        if self.units:
            yield from _grouped(self._units_backward(), whole)
            return
        if not self.segment:
            if self.rotary:
                yield from _repeat([("block_backward", True, 1)], self.layers - 1, whole)
                yield "first_block_backward", True, 1
                return
            yield "block_backward", True, 1
            if self.layers > 1:
                yield "block_backward", False, self.layers - 2
                yield "block_backward", True, 1
            return

        def segment(blocks):
            yield "segment_entered", True, 1
            yield from _repeat([("block_again", True, 1)], blocks - 1, whole)
            yield "last_block_again", True, 1
            yield "casts_dropped", True, blocks
            yield "last_block_backward", True, 1
            yield from _repeat([("block_backward", True, 1)], blocks - 1, whole)

        yield from segment(self._last_segment)
        yield from _repeat(list(segment(self.segment)), self._full_segments, whole)

    def _units_forward(self):
        """The sections of each block, gathered for it."""
        for block in range(self.layers):
            first = self.segment and block % self.segment == 0
            forward = ("first_block_passed" if first else "block_passed") if self.segment else "block_forward"
            let_go = ("unit_let_go",) if self.units == "zero3" else ()
            yield "next_unit" if block else "first_unit", forward, *let_go

    def _units_backward(self):
        """The sections of each block, last block first: gathered again under `zero3`, and the next to come prefetched."""
        again, size = self.units == "zero3", self.segment or 1
        for block in reversed(range(self.layers)):
            first = block % size  # in its segment, from 0
            enters = first == size - 1 or block == self.layers - 1
            body = ["unit_again"] * (again and enters)
            body += ["unit_prefetched"] * (again and block > 0 and (enters or not first))
            if enters and self.segment:
                body.append("segment_entered")
                for other in range(first):  # the last of them has been prefetched
                    body += ["unit_prefetched"] * (again and other < first - 1) + ["unit_whole"] * again
                    body += ["block_again"] + ["flat_let_go"] * again
                body += ["last_block_again", *["casts_dropped"] * (first + 1), "last_block_backward"]
            else:
                body.append("block_backward")
            body += ["block_ends"] * (block < self.layers - 1) + ["block_reduced"]
            yield tuple(body)

    @property
    def _full_segments(self):
        """All but the last, which has what is left."""
        return (self.layers - 1) // self.segment

    @property
    def _last_segment(self):
        return self.layers - self._full_segments * self.segment

    def _loss_forward(self):
        if self.chunks is None:
            yield "loss", True, 1
            return
        yield "chunked_loss", True, 1
        if self.chunks > 1:
            yield "chunk_forward", False, self.chunks - 2
            yield "chunk_forward", True, 1
        yield "last_chunk_forward", True, 1
        yield "chunks_added", True, 1

    def _loss_backward(self):
        if self.chunks is None:
            yield "loss_backward", True, 1
            return
        yield "chunks_scaled", True, 1
        yield "lone_chunk" if self.chunks == 1 else "last_chunk", True, 1
        if self.chunks == 2:
            yield "first_chunk_of_two", True, 1
        elif self.chunks > 2:
            yield "second_chunk", True, 1
            yield "middle_chunk", False, self.chunks - 3
            yield "first_chunk", True, 1
        yield "chunks_joined", True, 1


def _repeat(sections, times, whole):
    """The sections so many times; of more than two, the first and the last are worth seeing."""
    if whole or times <= 2:
        yield from sections * times
        return
    yield from sections
    yield from _unseen(sections, times - 2)
    yield from sections


def _grouped(bodies, whole):
    """What stands for each block; of equal neighbors the first and the last are worth seeing."""
    for body, equals in groupby(bodies):
        yield from _repeat([(section, True, 1) for section in body], len(list(equals)), whole)


def _unseen(sections, times):
    return ((section, False, times * each) for section, _, each in sections)


def walk(sections, shape, rest, see):
    """Add up a step from its ledger.

    Args:
        sections: section -> [(moment, name, [(part, bytes taken)], [(part, bytes gone)])]; numbers, arrays or expressions.
        shape: the step's `Shape`.
        rest: part -> bytes between steps.
        see: called as see(moment, name, live) while each operation runs and, with name None, after each section;
            `live` is part -> bytes, changed in place afterwards. Of what repeats it sees the extremes, of the batches
            whose gradients add up the last one.
    """
    live = dict(rest)
    for section, seen, times in shape.plan(whole=False):
        if (mark := _plain(section)) in MARKS:
            if seen:
                see(mark, None, live)
            continue
        for moment, name, taken, gone in sections[section]:
            for part, size in taken:
                live[part] = live.get(part, 0) + times * size
            if seen:
                see(moment, name, live)
            for part, size in gone:
                live[part] = live.get(part, 0) - times * size


def unroll(sections, shape, rest):
    """The whole step from its ledger, every block's operations one after another; whole numbers alone.

    Returns:
        (operations, lines, marks). operations: (name, moment, owner) of rest, of each operation that takes something, of
        each mark, and of rest again; the owner is the block, "blocks.0" the first, or "". lines: part -> live bytes while
        each runs. marks: a mark's name -> its last number among them. What the optimizer takes tensor by tensor stands as
        one operation that takes the most of it.
    """
    live, operations, course, marks = dict(rest), [("rest", "rest", "")], [dict(rest)], {"rest": 0}
    owners = _owners(shape)
    for section, _, times in shape.plan(whole=True):
        if (mark := _plain(section)) in MARKS:
            marks[mark] = len(course)
            operations.append((mark, mark, ""))
            course.append(dict(live))
            continue
        for _ in range(times):
            owner = next(owners) if _plain(section) in BLOCKS else ""
            for moment, name, taken, gone in sections[section]:
                for part, size in taken:
                    live[part] = live.get(part, 0) + size
                if any(size for _, size in taken):
                    operations.append((name, moment, owner))
                    course.append(dict(live))
                for part, size in gone:
                    live[part] = live.get(part, 0) - size
    operations.append(("rest", "rest", ""))
    course.append(dict(rest))
    named = PARTS + tuple(part for part in SHARED_PARTS if part in rest)
    return operations, {part: [parts.get(part, 0) for parts in course] for part in named}, marks


def _plain(section):
    return section.removeprefix(LATER).removeprefix(LAST)


def _owners(shape):
    """The block of each section of blocks, in the order of the step."""
    blocks = range(shape.layers)
    segments = [blocks[i : i + shape.segment] for i in range(0, shape.layers, shape.segment)] if shape.segment else []
    for _ in range(shape.accumulation):
        order = list(blocks)
        for s in reversed(segments):  # entered at its last block, made again forwards, then walked backwards
            order += [s[-1], *s, *reversed(s)]
        for block in order if segments else [*order, *reversed(order)]:
            yield f"blocks.{block}"


def compile_ledgers(chunked=False, checkpointing="none", accumulated=False, arrays=False, kind=Ledger):
    """The sections of a step's ledgers, of that kind, for `walk`, as a fast function, which `compile_expressions` describes."""
    places: dict[object, int] = {}

    def place(pairs):
        return [(part, places.setdefault(sympify(size), len(places))) for part, size in pairs]

    batches = (
        [("", "first"), (LATER, "later"), *[(LAST, "last")] * kind.last_differs] if accumulated else [("", "only")]
    )
    script = {
        prefix + section: [(moment, name, place(taken), place(gone)) for moment, name, taken, gone in lines]
        for prefix, which in batches
        for section, lines in kind(rounded, chunked, checkpointing, which).amounts().items()
    }
    program = compile_expressions(places, arrays)

    def sections(model, setup, block, **named):
        values = program(model, setup, block, **named)
        return {
            section: [
                (moment, name, [(part, values[i]) for part, i in taken], [(part, values[i]) for part, i in gone])
                for moment, name, taken, gone in lines
            ]
            for section, lines in script.items()
        }

    return sections
