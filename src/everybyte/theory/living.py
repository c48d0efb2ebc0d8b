"""Which tensors live at a step's peak: the course of the step walked turn by turn, tensor by tensor."""

from ..step.course import MARKS, Reading
from ..step.witness import Alive


def at_peak(reading: Reading, owner) -> list[Alive]:
    """What lives at the first peak, in the order in which it was taken; the bytes sum to the peak.

    A turn may free what stands for a piece of another turn: then the last one of its part and size goes.

    Args:
        reading: of a theory's course. owner: from an operation and its turns to the module's path.
    """
    best, peak = sum(reading.rest.values()), 0
    for place, (operation, live, _) in enumerate(reading.unrolled()):
        if operation is not None and operation.taken and operation.name not in MARKS and sum(live.values()) > best:
            best, peak = sum(live.values()), place
    found, standing = [], {}

    def take(piece, alive):
        size, count = reading.amounts.each(piece)
        for _ in range(count if size else 0):
            standing.setdefault(size, []).append(len(found))
            found.append(Alive(size, piece.part, *alive))

    def give(piece):
        size, count = reading.amounts.each(piece)
        for _ in range(count if size else 0):
            places = standing[size]
            places.remove(next((p for p in reversed(places) if found[p].part == piece.part), places[-1]))

    for piece in reading.course.rest:
        take(piece, ("", ""))
    for place, (operation, _, turns) in enumerate(reading.unrolled()):
        for piece in operation.taken if operation else ():
            take(piece, (owner(operation, turns), operation.name))
        if place == peak:
            break
        for piece in operation.freed if operation else ():
            give(piece)
    return [found[place] for place in sorted(place for places in standing.values() for place in places)]
