"""Exercises of lab 6: the allocator."""

from functools import cache

from ...allocator import settings
from . import MIB, Setup, answers, model

SEGMENT = settings().segment


@cache
def played(configuration=""):
    from ...dryrun import dry_run

    return dry_run(model("gpt2"), Setup(precision="bf16-mixed")).on("h200", configuration)


ANSWERS = {
    "06.1": answers(
        lambda: played().reserved - played("expandable_segments:True").reserved,
        growing=lambda: played("expandable_segments:True").reserved,
        cached=lambda: played().cached,
    ),
    "06.2": answers(SEGMENT(2 * 8 * 1024 * 50257), unrounded=2 * 8 * 1024 * 50257, fp32=SEGMENT(4 * 8 * 1024 * 50257)),
    "06.3": answers(SEGMENT(3 * MIB), block=3 * MIB, rounded=4 * MIB, small=SEGMENT(1)),
}
