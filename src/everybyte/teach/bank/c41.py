"""Exercises of chapter 41: allocated, reserved, nvidia-smi."""

from random import Random

from ...allocator import Allocator, settings
from ..exercise import Exercise
from ..program import Case, Program

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


def _simulated(best=True, merges=True, rest=_MIB, shared=20 * _MIB, page=2 * _MIB):
    """What it would be with the first block that is large enough, without merging, or with other sizes."""

    def reserved(calls):
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

    return reserved


EXERCISES = [
    Exercise(
        id="41.1",
        title="What three tensors of 3, 9 and 15 MiB reserve on an empty GPU",
        difficulty=1,
        minutes=4,
        unit="MiB",
        answer=lambda: _reserved(3, 9, 15),
        mistakes={
            "the second one fits into the rest of the first one's segment": lambda: _reserved(3) + _reserved(9, 15),
            "that is what they request": lambda: (3 + 9 + 15) * _MIB,
            "from 10 MiB on a segment is rounded up to a multiple of 2 MiB": lambda: _reserved(3, 9) + 15 * _MIB,
            "from 10 MiB on a request has a segment of its own size, not one of 20 MiB": lambda: 40 * _MIB,
        },
        hints=(
            "A request of 1 to 10 MiB gets a segment of 20 MiB, which it may share.",
            "3 and 9 share one of 20 MiB. 15 is above 10: its own, rounded up to a multiple of 2.",
        ),
    ),
    Exercise(
        id="41.2",
        title="The block for 1,100 MiB with roundup_power2_divisions:4",
        difficulty=1,
        minutes=3,
        unit="MiB",
        answer=lambda: _rounded(1100),
        mistakes={
            "four steps are between 1,024 and 2,048; that is the next power of two": lambda: 2048 * _MIB,
            "without the setting a block is a multiple of 512 bytes": lambda: 1100 * _MIB,
            "that is one step below the request": lambda: 1024 * _MIB,
        },
        hints=("Between which powers of two does it lie?", "The steps are 1,024, 1,280, 1,536 and 1,792 MiB."),
    ),
    Exercise(
        id="41.3",
        title="What segments that grow reserve less in the chapter's story",
        difficulty=2,
        minutes=5,
        unit="MiB",
        answer=lambda: _story() - _story("expandable_segments:True"),
        mistakes={
            "pages of the large pool have 20 MiB, so 62 MiB take four": lambda: (120 - 62) * _MIB,
            "that is what the growing segment reserves": lambda: _story("expandable_segments:True"),
            "that is what the defaults reserve": _story,
        },
        hints=(
            "The defaults take a second segment of 60 MiB, since the first has 2 MiB in use.",
            "The growing segment has 2 and 60 MiB one after the other, in pages of 20 MiB.",
        ),
    ),
    Exercise(
        id="41.4",
        title="The share of tensors in what nvidia-smi shows",
        difficulty=2,
        minutes=4,
        unit="%",
        answer=lambda: round(100 * 8.03 / (9.51 + 616 / 1024)),
        mistakes={
            "the context is missing: nvidia-smi counts it": lambda: round(100 * 8.03 / 9.51),
            "that is what is no tensor": lambda: 100 - round(100 * 8.03 / (9.51 + 616 / 1024)),
        },
        hints=("It shows reserved and the context.", "8.03 of 9.51 + 0.60 GiB."),
    ),
    Program(
        id="41.5",
        title="A function: the large pool of PyTorch's allocator",
        difficulty=3,
        minutes=25,
        call="reserved(calls)",
        cases=_requests,
        answer=_simulated,
        mistakes={
            "it takes the smallest free block that is large enough, not the first": lambda: _simulated(best=False),
            "a block that is freed becomes one with free neighbors of its segment": lambda: _simulated(merges=False),
            "a rest of up to 1 MiB stays with its block": lambda: _simulated(rest=0),
            "a request below 10 MiB takes a segment of 20 MiB, and shares it": lambda: _simulated(shared=0),
            "from 10 MiB on a segment is a multiple of 2 MiB": lambda: _simulated(page=512),
        },
        hints=(
            "Keep a list of blocks: segment, start, size, whether free. Round each request up to 512 bytes.",
            "malloc: the smallest free block that fits, else a new segment; split if more than 1 MiB is left. free: merge with free neighbors.",
        ),
    ),
]
