"""Exercises of chapter 41: allocated, reserved, nvidia-smi."""

from ...allocator import Allocator, settings
from ..exercise import Exercise

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
]
