"""Exercises of chapter 31: why keep N copies of the same bytes?"""

import math
from random import Random

from ...budget import budget
from ...catalog import gpu, model
from ...formulas import formula
from ...formulas.symbols import G, P
from ...setup import Setup
from ..exercise import Exercise
from ..program import Case, Program

_PAPER = Setup(precision="bf16-master")


def _states(stage, gpus, billions):
    return formula("zero.states").at(None, _PAPER.replace(sharding=stage, gpus=gpus), parameters=billions * 10**9)


def _divides(gpus):
    return 16 * gpus / (4 * gpus + 12)


def _after_backward(**changes):
    short = Setup(batch=1, sequence=128, gpus=8, **changes)
    return budget(model("gpt2-xl"), short).phases["after_backward"]


def _cards(memory):
    return math.ceil(16 * model("llama-3.1-405b").parameters / memory)


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


def _parts(up=True, by_tensor=False, local=True):
    """What it would be with shares rounded down, with whole tensors, or counted through the whole buffer."""

    def shard(sizes, gpus, rank):
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

    return shard


EXERCISES = [
    Exercise(
        id="31.1",
        title="ZeRO-2's states on each of 16 GPUs, 13 billion parameters",
        difficulty=1,
        minutes=4,
        unit="GB",
        decimals=1,
        answer=lambda: _states("zero2", 16, 13),
        mistakes={
            "that is ZeRO-1: stage 2 divides the gradients too": lambda: _states("zero1", 16, 13),
            "that is ZeRO-3: stage 2 leaves the weights whole": lambda: _states("zero3", 16, 13),
            "that is DDP, which divides nothing": lambda: _states("none", 16, 13),
            "8 times less than DDP is the limit of very many GPUs": 26_000_000_000,
        },
        hints=(
            "Which of the 2, 2 and 12 bytes are divided by 16?",
            "2 × 13 + 14 × 13 / 16.",
        ),
    ),
    Exercise(
        id="31.2",
        title="What ZeRO-2 leaves on each GPU under autocast",
        difficulty=2,
        minutes=6,
        accepts="expression",
        answer=lambda: 4 * P + 12 * P / G,
        mistakes={
            "weights and gradients are fp32 under autocast: 4 bytes each": 2 * P + 14 * P / G,
            "there is no master copy under autocast: Adam has 8 bytes": 4 * P + 16 * P / G,
            "that is ZeRO-1: stage 2 divides the gradients too": 8 * P + 8 * P / G,
            "that is ZeRO-3: stage 2 leaves the weights whole": 16 * P / G,
        },
        hints=(
            "Under autocast a parameter has 4 bytes of weight, 4 of gradient, 8 of Adam's states.",
            "Put 4, 4 and 8 in place of 2, 2 and 12, and turn on the switches of stage 2.",
        ),
    ),
    Exercise(
        id="31.3",
        title="What buckets as views save GPT-2 XL after backward",
        difficulty=2,
        minutes=5,
        unit="GiB",
        decimals=2,
        answer=lambda: _after_backward() - _after_backward(buckets="views"),
        mistakes={
            "gradients are fp32 here: 4 bytes each": lambda: 2 * model("gpt2-xl").parameters,
            "that is all that lives after backward": lambda: _after_backward(),
            "that is what is left, not what is saved": lambda: _after_backward(buckets="views"),
            "that is one bucket of the larger size: they hold every gradient": 25 * 2**20,
        },
        hints=(
            "The buckets hold every gradient once, 4 bytes each.",
            "`eb.budget(eb.model('gpt2-xl'), ...)` twice, with gpus=8 and buckets='copies' or 'views', and subtract.",
        ),
    ),
    Exercise(
        id="31.4",
        title="The fewest GPUs with which ZeRO-1 divides the states by three",
        difficulty=2,
        minutes=5,
        answer=lambda: next(n for n in range(1, 100) if _divides(n) >= 3),
        mistakes={
            "with 8 it divides by 2.91": 8,
            "that divides the optimizer by three: weights and gradients stay whole": 3,
            "ZeRO-1 divides by 4 only in the limit": 4,
        },
        hints=(
            "DDP has 16 bytes a parameter, ZeRO-1 has 4 + 12/G: what G makes their ratio 3?",
            "Multiply out: 3 × 4 + 3 × 12/G = 16, and solve for G.",
        ),
    ),
    Exercise(
        id="31.5",
        title="H100s until each can hold its share of Llama 3.1 405B's states",
        difficulty=2,
        minutes=5,
        answer=lambda: _cards(gpu("h100-80gb").memory),
        mistakes={
            "that is with the 80 GB of the box: the catalog has what a process finds": lambda: _cards(80 * 10**9),
            "round up: a GPU cannot be divided": lambda: _cards(gpu("h100-80gb").memory) - 1,
        },
        hints=(
            "Two numbers from the catalog: `eb.gpu('h100-80gb').memory` and `eb.model('llama-3.1-405b').parameters`.",
            "16 × 405,853,388,800 / 85,029,027,840, rounded up.",
        ),
    ),
    Program(
        id="31.6",
        title="A function: whose states a GPU keeps under ZeRO-1",
        difficulty=2,
        minutes=12,
        call="shard(sizes, gpus, rank)",
        cases=_divided,
        agree=lambda given, right: list(map(tuple, given)) == right,
        answer=_parts,
        mistakes={
            "an equal share is rounded up; the last GPUs have less": lambda: _parts(up=False),
            "these are whole tensors: the buffer is cut wherever a share ends": lambda: _parts(by_tensor=True),
            "first and last count within their tensor, not through the buffer": lambda: _parts(local=False),
        },
        hints=(
            "Lay all tensors one after another. GPU `rank` has the numbers from rank * share to (rank + 1) * share.",
            "With `start`, where a tensor begins in the buffer: max(start, rank * share) to min(start + size, (rank + 1) * share).",
        ),
    ),
]
