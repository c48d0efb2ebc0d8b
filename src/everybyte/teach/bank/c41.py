"""Exercises of chapter 41: allocated, reserved, nvidia-smi."""

from random import Random

from ...allocator import Allocator, settings
from ..program import Case
from . import answers, program

_MIB = 2**20


def _reserved(*sizes):
    allocator = Allocator()
    for size in sizes:
        allocator.malloc(size * _MIB)
    return allocator.reserved


def _story(configuration=""):
    allocator = Allocator(configuration)
    allocator.free(allocator.malloc(60 * _MIB))
    allocator.malloc(2 * _MIB)
    allocator.malloc(60 * _MIB)
    return allocator.reserved


def _rounded(size):
    return settings("roundup_power2_divisions:4").rounded(size * _MIB)


#: Sizes in MiB, and -n for the free of the n-th: a block that fits better than the first, a rest that is not split.
_STORIES = ((30, 14, -1, -2, 12, 28), (6, 5, 9, -1, 5.5, -2, 5.4))


def _requests():
    for story in _STORIES:
        allocator, calls, addresses = Allocator(), [], []
        for size in story:
            if size < 0:
                allocator.free(addresses[-size - 1])
                calls.append(("free", -size - 1, 0))
            else:
                calls.append(("malloc", len(addresses), int(size * _MIB)))
                addresses.append(allocator.malloc(int(size * _MIB)))
        yield Case(f"{story} in MiB", (calls,), allocator.reserved)
    draw = Random(41)
    for case in range(6):
        allocator, calls, addresses = Allocator(), [], {}
        for number in range(10 + 6 * case):
            if addresses and draw.random() < 0.45:
                name = draw.choice(list(addresses))
                allocator.free(addresses.pop(name))
                calls.append(("free", name, 0))
            else:
                size = draw.choice((draw.randint(_MIB + 1, 6 * _MIB), draw.randint(6 * _MIB, 45 * _MIB)))
                addresses[number] = allocator.malloc(size)
                calls.append(("malloc", number, size))
        yield Case(f"{len(calls)} calls", (calls,), allocator.reserved)


def _simulated(calls, *, best=True, merges=True, rest=_MIB, shared=20 * _MIB, page=2 * _MIB):
    """The answer, or what it would be with the first block that is large enough, without merging, or with other sizes."""
    total, blocks, live = 0, [], {}  # a block: segment, start, size, free
    for call, name, size in calls:
        if call == "free":
            block = live.pop(name)
            block[3] = True
            for other in [b for b in blocks if b[3] and b[0] == block[0] and b is not block] if merges else []:
                if other[1] + other[2] == block[1] or block[1] + block[2] == other[1]:
                    block[1], block[2] = min(block[1], other[1]), block[2] + other[2]
                    blocks.remove(other)
            continue
        size = -(-size // 512) * 512
        free = [b for b in blocks if b[3] and b[2] >= size]
        block = min(free, key=lambda b: (b[2] if best else 0, b[0], b[1]), default=None)
        if block is None:
            segment = shared if size < 10 * _MIB and shared else -(-size // page) * page
            block = [len(blocks) + total, 0, segment, True]
            blocks.append(block)
            total += segment
        if block[2] - size > rest:
            blocks.append([block[0], block[1] + size, block[2] - size, True])
            block[2] = size
        block[3] = False
        live[name] = block
    return total


ANSWERS = {
    "41.1": answers(
        lambda: _reserved(3, 9, 15),
        apart=lambda: _reserved(3) + _reserved(9, 15),
        requested=(3 + 9 + 15) * _MIB,
        unrounded=lambda: _reserved(3, 9) + 15 * _MIB,
        twenty=40 * _MIB,
    ),
    "41.2": answers(lambda: _rounded(1100), power=2048 * _MIB, unset=1100 * _MIB, below=1024 * _MIB),
    "41.3": answers(
        lambda: _story() - _story("expandable_segments:True"),
        pages=(120 - 62) * _MIB,
        growing=lambda: _story("expandable_segments:True"),
        defaults=_story,
    ),
    "41.4": answers(
        lambda: round(100 * 8.03 / (9.51 + 616 / 1024)),
        context=lambda: round(100 * 8.03 / 9.51),
        rest=lambda: 100 - round(100 * 8.03 / (9.51 + 616 / 1024)),
    ),
    "41.5": program(_simulated, _requests, best=False, merges=False, rest=0, shared=0, page=512),
}
