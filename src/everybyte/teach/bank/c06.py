"""Exercises of lab 6: the allocator."""

from functools import cache

from ...allocator import settings
from ...catalog import model
from ...setup import Setup
from ..exercise import Exercise

_MIB = 2**20


@cache
def _played(configuration=""):
    from ...dryrun import dry_run

    return dry_run(model("gpt2"), Setup(precision="bf16-mixed")).on("h200", configuration)


EXERCISES = [
    Exercise(
        id="06.1",
        title="What segments that grow reserve less for GPT-2 under autocast",
        difficulty=1,
        minutes=3,
        unit="MiB",
        decimals=0,
        answer=lambda: _played().reserved - _played("expandable_segments:True").reserved,
        mistakes={
            "that is what they reserve": lambda: _played("expandable_segments:True").reserved,
            "that is what the defaults keep free at the peak": lambda: _played().cached,
        },
        hints=("The two rows stand in the lab's table.", "Take one reserved number from the other, in MiB."),
    ),
    Exercise(
        id="06.2",
        title="The segment of the logits, 8 × 1,024 × 50,257 in bf16",
        difficulty=2,
        minutes=4,
        unit="MiB",
        answer=lambda: settings().segment(2 * 8 * 1024 * 50257),
        mistakes={
            "a segment is rounded up to 2 MiB": lambda: 2 * 8 * 1024 * 50257,
            "bf16 has two bytes": lambda: settings().segment(4 * 8 * 1024 * 50257),
        },
        hints=("2 · 8 · 1,024 · 50,257 bytes are 785.27 MiB.", "From 10 MiB on: the next multiple of 2 MiB."),
    ),
    Exercise(
        id="06.3",
        title="What a tensor of 3 MiB reserves when the cache is empty",
        difficulty=1,
        minutes=2,
        unit="MiB",
        answer=lambda: settings().segment(3 * _MIB),
        mistakes={
            "that is the block, and a block is cut from a segment": lambda: 3 * _MIB,
            "segments of whole 2 MiB are for requests from 10 MiB on": lambda: 4 * _MIB,
            "that is the segment of tensors up to 1 MiB": lambda: settings().segment(1),
        },
        hints=("Chapter 41 has three sizes of segments.", "Which requests share one of 20 MiB?"),
    ),
]
