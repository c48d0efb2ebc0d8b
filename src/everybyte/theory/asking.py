"""A course as a process asks for it: the weights, a first step in which the optimizer's states are made, and steady ones.

A course knows what each operation takes and frees; of tensors of one size it does not say which is freed. Here the one that was
taken last goes first, as backward frees what forward saved. So the bytes asked for are the course's at each moment, and the blocks
that an allocator finds for them are nearly those of a real step: a dry run, which follows each tensor, knows them better.
"""

from ..allocator import Request, Requests

#: Phases whose first product takes cuBLAS's workspace: those of the two threads. The optimizer runs on forward's.
THREADS = ("forward", "backward")


def requests(course, values, workspace: int) -> Requests:
    """What a process asks of its allocator.

    Args:
        course: of the step. values: of its letters. workspace: bytes of cuBLAS's, on forward's thread and on backward's, each taken
            with the first product.
    """
    asking = _Asking(course, values)
    beginning, states = [], []
    for piece in course.rest:
        asking.take(piece, states if piece.part == "optimizer" else beginning)
    step, marks = asking.step()
    updated = marks.pop("after_backward")
    first = [*step[:updated], *states, *step[updated:]]
    for key, place in sorted(enumerate(marks.values(), 1), key=lambda pair: -pair[1]):
        first.insert(place, Request(-key, workspace))
    return Requests(beginning, first, asking.step()[0])


class _Asking:
    def __init__(self, course, values):
        self.reading = course.at(values)
        self.operations = [operation for operation, *_ in self.reading.unrolled() if operation is not None]
        self._held: dict[int, list[int]] = {}  # by bytes of one tensor: keys, the last taken at the end
        self._count = 0

    def take(self, piece, out):
        size, count = self.reading.amounts.each(piece)
        for _ in range(count if size else 0):
            self._count += 1
            self._held.setdefault(size, []).append(self._count)
            out.append(Request(self._count, size))

    def give(self, piece, out):
        size, count = self.reading.amounts.each(piece)
        held = self._held.get(size, [])
        out += [Request(held.pop(), 0) for _ in range(min(count if size else 0, len(held)))]

    def step(self):
        """(requests, {phase: place after its first product, `after_backward`: place}); at its end goes what no operation frees and the
        next step does not begin with: gradients."""
        out, places, before = [], {}, {size: len(held) for size, held in self._held.items()}
        for operation in self.operations:
            for piece in operation.taken:
                self.take(piece, out)
            if operation.kernel[:1] == ("product",) and operation.phase in THREADS:
                places.setdefault(operation.phase, len(out))
            if operation.name == "after_backward":
                places["after_backward"] = len(out)
            for piece in operation.freed:
                self.give(piece, out)
        for size, held in self._held.items():
            while len(held) > before.get(size, 0):
                out.append(Request(held.pop(), 0))
        return out, places
