"""Exercises of chapter 31: why keep N copies of the same bytes?"""

import math
from random import Random

from ...ask.setup import Setup
from ...catalog import gpu
from ...formulas import formula
from ...formulas.symbols import G, P
from ..asking import parameters, step
from ..program import Case
from . import answers, program

_PAPER = Setup(precision="bf16-master")


def _states(stage, gpus, billions):
    return formula("zero.states").at(None, _PAPER.replace(sharding=stage, gpus=gpus), parameters=billions * 10**9)


def _divides(gpus):
    return 16 * gpus / (4 * gpus + 12)


def _after_backward(**changes):
    return step("gpt2-xl", batch=1, sequence=128, gpus=8, **changes).phases["after_backward"]


def _cards(memory):
    return math.ceil(16 * parameters("llama-3.1-405b") / memory)


def _divided():
    draw = Random(31)
    for case in range(7):
        gpus = (1, 2, 3, 4, 5, 8, 16)[case]
        sizes = [draw.randint(1, 40) for _ in range(draw.randint(3, 7))]
        whole = [(i, n) for i, size in enumerate(sizes) for n in range(size)]
        each = -(-len(whole) // gpus)
        rank = draw.randrange(gpus)
        share = whole[rank * each : (rank + 1) * each]
        right = [(i, min(ns), max(ns) + 1) for i in range(len(sizes)) if (ns := [n for k, n in share if k == i])]
        yield Case(f"{sizes} on GPU {rank} of {gpus}", (sizes, gpus, rank), right)


def _parts(sizes, gpus, rank, *, up=True, by_tensor=False, local=True):
    """The answer, or what it would be with shares rounded down, with whole tensors, or counted through the whole buffer."""
    total, found, start = sum(sizes), [], 0
    each = -(-total // gpus) if up else total // gpus
    for i, size in enumerate(sizes):
        first, last = max(start, rank * each), min(start + size, (rank + 1) * each)
        if by_tensor:
            first, last = (start, start + size) if i % gpus == rank else (start, start)
        if first < last:
            found.append((i, first - start * local, last - start * local))
        start += size
    return found


ANSWERS = {
    "31.1": answers(
        lambda: _states("zero2", 16, 13),
        zero1=lambda: _states("zero1", 16, 13),
        zero3=lambda: _states("zero3", 16, 13),
        ddp=lambda: _states("none", 16, 13),
        limit=26_000_000_000,
    ),
    "31.2": answers(
        4 * P + 12 * P / G,
        bf16=2 * P + 14 * P / G,
        master=4 * P + 16 * P / G,
        zero1=8 * P + 8 * P / G,
        zero3=16 * P / G,
    ),
    "31.3": answers(
        lambda: _after_backward() - _after_backward(buckets="views"),
        bf16=lambda: 2 * parameters("gpt2-xl"),
        everything=_after_backward,
        left=lambda: _after_backward(buckets="views"),
        bucket=25 * 2**20,
    ),
    "31.4": answers(lambda: next(n for n in range(1, 100) if _divides(n) >= 3), eight=8, optimizer=3, limit=4),
    "31.5": answers(
        lambda: _cards(gpu("h100-80gb").memory),
        box=lambda: _cards(80 * 10**9),
        rounded_down=lambda: _cards(gpu("h100-80gb").memory) - 1,
    ),
    "31.6": program(
        _parts, _divided, lambda given, right: list(map(tuple, given)) == right, up=False, by_tensor=True, local=False
    ),
}
