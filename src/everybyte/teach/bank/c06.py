"""Exercises of lab 6: the allocator."""

from functools import cache

from ...allocator import settings
from ...ask.setup import Setup
from ...catalog import model
from . import answers

_MIB = 2**20


@cache
def _played(configuration=""):
    from ...dryrun import dry_run

    return dry_run(model("gpt2"), Setup(precision="bf16-mixed")).on("h200", configuration)


ANSWERS = {
    "06.1": answers(
        lambda: _played().reserved - _played("expandable_segments:True").reserved,
        growing=lambda: _played("expandable_segments:True").reserved,
        cached=lambda: _played().cached,
    ),
    "06.2": answers(
        lambda: settings().segment(2 * 8 * 1024 * 50257),
        unrounded=2 * 8 * 1024 * 50257,
        fp32=lambda: settings().segment(4 * 8 * 1024 * 50257),
    ),
    "06.3": answers(
        lambda: settings().segment(3 * _MIB), block=3 * _MIB, rounded=4 * _MIB, small=lambda: settings().segment(1)
    ),
}
