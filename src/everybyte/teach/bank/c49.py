"""Exercises of chapter 49: a whole run."""

from random import Random

from ...allocator import Allocator
from . import MIB, Case, answers, program


def one_by_one(sizes):
    """What PyTorch's allocator reserves for requests of which each is freed before the next comes."""
    allocator = Allocator()
    for size in sizes:
        allocator.free(allocator.malloc(size))
    return allocator.reserved


def orders():
    draw = Random(49)
    for number in range(6):
        sizes = [draw.randrange(11 * MIB, 400 * MIB) for _ in range(draw.randint(1, 12))]
        yield Case(f"sizes {number}", (sizes,), one_by_one(sizes))
    rising = sorted(draw.randrange(11 * MIB, 400 * MIB) for _ in range(8))
    yield Case("rising", (rising,), one_by_one(rising))
    yield Case("falling", (rising[::-1],), one_by_one(rising[::-1]))


def records(sizes, *, segment=2 * MIB, keep=True):
    """A segment for each size above all before it."""
    total, most = 0, 0
    for size in sizes:
        whole = -(-size // segment) * segment
        if whole > most:
            total, most = (total if keep else 0) + whole, whole
    return total


def logits(sequences=500, sequence=1024, vocabulary=128_256, width=4, copies=2):
    return copies * sequences * sequence * vocabulary * width


def resumed(parameters=8_030_261_248, weights=4, states=8, copies=2):
    """Bytes of weights and states on the GPU while a checkpoint lies beside the model."""
    return copies * parameters * (weights + states)


ANSWERS = {
    "49.1": answers(sum(range(100, 1100, 100)) * MIB, largest=1000 * MIB, mean=550 * MIB),
    "49.2": answers(logits, copies=1, sequence=1, vocabulary=1),
    "49.3": answers(resumed, copies=1, states=0),
    "49.4": program(records, orders, segment=1, keep=False),
}
