"""Exercises of chapter 41: allocated, reserved, nvidia-smi."""

from itertools import count
from random import Random

from ...allocator import Allocator, settings
from . import MIB, Case, answers, program

USED = round(100 * 8.03 / (9.51 + 616 / 1024))


def story(*sizes):
    """Calls, ("malloc", number, bytes) or ("free", number, 0), of sizes in MiB, and -n for the free of the n-th."""
    numbers = count()
    return [("malloc", next(numbers), int(s * MIB)) if s > 0 else ("free", -s - 1, 0) for s in sizes]


def reserved(calls, configuration=""):
    allocator, addresses = Allocator(configuration), {}
    for call, number, size in calls:
        if call == "malloc":
            addresses[number] = allocator.malloc(size)
        else:
            allocator.free(addresses.pop(number))
    return allocator.reserved


USUAL, GROWING = (reserved(story(60, -1, 2, 60), how) for how in ("", "expandable_segments:True"))


def requests():
    # A block that fits better than the first; a rest that is not split.
    for sizes in ((30, 14, -1, -2, 12, 28), (6, 5, 9, -1, 5.5, -2, 5.4)):
        yield Case(f"{sizes} in MiB", (story(*sizes),), reserved(story(*sizes)))
    draw = Random(41)
    for case in range(6):
        calls, live = [], []
        for number in range(10 + 6 * case):
            if live and draw.random() < 0.45:
                name = draw.choice(live)
                live.remove(name)
                calls.append(("free", name, 0))
            else:
                live.append(number)
                size = draw.choice((draw.randint(MIB + 1, 6 * MIB), draw.randint(6 * MIB, 45 * MIB)))
                calls.append(("malloc", number, size))
        yield Case(f"{len(calls)} calls", (calls,), reserved(calls))


def simulated(calls, *, best=True, merges=True, rest=MIB, shared=20 * MIB, page=2 * MIB):
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
            segment = shared if size < 10 * MIB and shared else -(-size // page) * page
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
        reserved(story(3, 9, 15)),
        apart=reserved(story(3)) + reserved(story(9, 15)),
        requested=27 * MIB,
        unrounded=reserved(story(3, 9)) + 15 * MIB,
        twenty=40 * MIB,
    ),
    "41.2": answers(
        settings("roundup_power2_divisions:4").rounded(1100 * MIB), power=2048 * MIB, unset=1100 * MIB, below=1024 * MIB
    ),
    "41.3": answers(USUAL - GROWING, pages=(120 - 62) * MIB, growing=GROWING, defaults=USUAL),
    "41.4": answers(USED, context=round(100 * 8.03 / 9.51), rest=100 - USED),
    "41.5": program(simulated, requests, best=False, merges=False, rest=0, shared=0, page=512),
}
