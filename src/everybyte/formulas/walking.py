"""A step added up from its ledger: the extremes for the peak, or operation by operation for the timeline."""

from sympy import sympify

from .ledger import Ledger, rounded
from .registry import compile_expressions

#: The parts that the ledger speaks of, in the order in which they are stacked; and the moments between the phases.
PARTS = ("parameters", "casts", "buffers", "gradients", "optimizer", "activations", "loss")
MARKS = ("after_forward", "after_backward", "after_step")


def walk(sections, layers, rest, see, chunks=None):
    """Add up a step from its ledger.

    Args:
        sections: section -> [(moment, name, [(part, bytes taken)], [(part, bytes gone)])]; numbers, arrays or expressions.
        layers: how many blocks.
        rest: part -> bytes between steps.
        see: called as see(moment, name, live) while each operation runs and, with name None, after each section;
            `live` is part -> bytes, changed in place afterwards. Of the blocks it sees the first and the last.
        chunks: into how many chunks the tokens are cut for the loss; None for the plain loss. Of those between the
            second and the last it sees none: forward leaves a little more at each, backward a gradient at each.
    """
    live = dict(rest)
    for section, seen, times in _plan(layers, chunks):
        if section in MARKS:
            see(section, None, live)
            continue
        for moment, name, taken, gone in sections[section]:
            for part, size in taken:
                live[part] = live.get(part, 0) + times * size
            if seen:
                see(moment, name, live)
            for part, size in gone:
                live[part] = live.get(part, 0) - times * size


def _plan(layers, chunks=None):
    """The step's order: (section or mark, whether `walk` sees it, how many times it runs)."""
    yield "start", True, 1
    yield "block_forward", False, layers - 1
    yield "block_forward", True, 1
    if chunks is None:
        yield "loss", True, 1
    else:
        yield "chunked_loss", True, 1
        if chunks > 1:
            yield "chunk_forward", False, chunks - 2
            yield "chunk_forward", True, 1
        yield "last_chunk_forward", True, 1
        yield "chunks_added", True, 1
    yield "after_forward", True, 1
    if chunks is None:
        yield "loss_backward", True, 1
    else:
        yield "chunks_scaled", True, 1
        yield "lone_chunk" if chunks == 1 else "last_chunk", True, 1
        if chunks == 2:
            yield "first_chunk_of_two", True, 1
        elif chunks > 2:
            yield "second_chunk", True, 1
            yield "middle_chunk", False, chunks - 3
            yield "first_chunk", True, 1
        yield "chunks_joined", True, 1
    yield "block_backward", True, 1
    if layers > 1:
        yield "block_backward", False, layers - 2
        yield "block_backward", True, 1
    yield "end", True, 1
    yield "after_backward", True, 1
    yield "optimizer", True, 1
    yield "after_step", True, 1


def unroll(sections, layers, rest, chunks=None):
    """The whole step from its ledger, every block's operations one after another; whole numbers alone.

    Returns:
        (operations, lines, marks). operations: (name, moment, owner) of rest, of each operation that takes something, of
        each mark, and of rest again; the owner is the block, "blocks.0" the first, or "". lines: part -> live bytes while
        each runs. marks: a mark's name -> its number among them. What the optimizer takes tensor by tensor stands as one
        operation that takes the most of it.
    """
    live, operations, course, marks = dict(rest), [("rest", "rest", "")], [dict(rest)], {"rest": 0}
    owners = {"block_forward": iter(range(layers)), "block_backward": iter(reversed(range(layers)))}
    for section, _, times in _plan(layers, chunks):
        if section in MARKS:
            marks[section] = len(course)
            operations.append((section, section, ""))
            course.append(dict(live))
            continue
        for _ in range(times):
            owner = f"blocks.{next(owners[section])}" if section in owners else ""
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
    return operations, {part: [parts.get(part, 0) for parts in course] for part in PARTS}, marks


def compile_ledger(chunked=False, arrays=False):
    """The ledger's sections, for `walk`, as a fast function, which `compile_expressions` describes."""
    places: dict[object, int] = {}

    def place(pairs):
        return [(part, places.setdefault(sympify(size), len(places))) for part, size in pairs]

    script = {
        section: [(moment, name, place(taken), place(gone)) for moment, name, taken, gone in lines]
        for section, lines in Ledger(rounded, chunked).amounts().items()
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
