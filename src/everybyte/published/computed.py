"""The functions in expressions of claims: numbers of many steps, of the allocator, of the catalog."""

import math
from fractions import Fraction
from functools import cache
from itertools import product

from ..allocator import Allocator, OutOfMemory
from ..ask.setup import Setup
from ..catalog import gpus, model
from ..common import checks
from ..theory.budget import budget
from ..units import UNITS

_MIB = UNITS["MiB"]


@cache
def _grid():
    """Chapter 15's 48 steps: four GPT-2 sizes, three precisions, both kinds of attention, batch 1 and 8."""
    names = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
    cases = product(names, ("fp32", "bf16-mixed", "bf16"), ("eager", "flash"), (1, 8))
    return [
        budget(model(name, "reference"), Setup(precision=precision, attention=attention, batch=batch))
        for name, precision, attention, batch in cases
    ]


def _share_of_grid(place):
    """Per cent of chapter 15's steps with their peak in one of these phases."""
    return Fraction(100 * sum(step.peak_at == place for step in _grid()), len(_grid()))


def _over_forward():
    """The largest ratio of the peak to the live bytes after forward, among chapter 15's steps."""
    return max(Fraction(step.peak, step.phases["after_forward"]) for step in _grid())


def _bf16_from_ampere(vendor):
    """Per cent of a vendor's GPUs in the catalog that have bf16 if and only if their capability is 8 or more."""
    found = [card for card in gpus().values() if card.title.startswith(vendor)]

    def as_said(card):
        number = card.capability.replace(".", "", 1)
        return card.bf16 == (number.isdecimal() and float(card.capability) >= 8)

    return Fraction(100 * sum(map(as_said, found)), len(found))


@cache
def _simulated(what):
    """A number from the allocator's rules."""
    checks.one_of("simulated", "what", what, _SIMULATED)
    return Fraction(_SIMULATED[what]())


def _fragmented(largest):
    """The ratio of the largest free piece, or all free memory, to a request that fails: of 60 MiB, with 2 of 100 MiB in use."""
    allocator = Allocator(memory=100 * _MIB)
    allocator.free(allocator.malloc(60 * _MIB))
    allocator.malloc(2 * _MIB)
    try:
        allocator.malloc(60 * _MIB)
    except OutOfMemory:
        kept, left = allocator.reserved - allocator.allocated, 100 * _MIB - allocator.reserved
        return Fraction(max(kept, left) if largest else kept + left, 60 * _MIB)
    raise ValueError("simulated: the allocator did not run out of memory; allowed: a request that no piece serves")


def _half():
    """The ratio of a process's bytes when it is refused to its half of the GPU."""
    allocator = Allocator("per_process_memory_fraction:0.5", memory=100 * _MIB, total=100 * _MIB)
    try:
        while True:
            allocator.malloc(20 * _MIB)
    except OutOfMemory as error:
        return Fraction(error.reserved, 50 * _MIB)


@cache
def _autocast_step():
    from ..dryrun import dry_run

    return dry_run(model("gpt2"), Setup(precision="bf16-mixed"))


def _third_step():
    """The ratio of the reserved bytes in the third of equal steps to those in the second."""
    steps = _autocast_step().on("h200").steps
    return Fraction(steps[3], steps[2])


def _cleared():
    """The ratio of requests to the driver in three steps with the cache emptied after each, to those without."""
    plain, cleared = (_autocast_step().on("h200", clear=clear).allocator.log for clear in (False, True))
    return Fraction(len(cleared), len(plain))


_SIMULATED = {
    "largest free piece over the request": lambda: _fragmented(largest=True),
    "all that is free over the request": lambda: _fragmented(largest=False),
    "reserved over a half": _half,
    "third step over second": _third_step,
    "driver's requests, cleared over kept": _cleared,
}
#: Name of a function in expressions -> the function; its values are exact.
FUNCTIONS = {
    "bf16_from_ampere": _bf16_from_ampere, "ceil": math.ceil, "max": max, "min": min, "over_forward": _over_forward,
    "share_of_grid": _share_of_grid, "simulated": _simulated, "sqrt": lambda x: Fraction(math.sqrt(x)),
}  # fmt: skip
