"""Exercises of chapter 31: why keep N copies of the same bytes?"""

import math
from random import Random

from ...formulas.symbols import G, P
from . import Case, Run, Setup, alike, answers, gpu, model, program, run

PAPER = Run(None, Setup(precision="bf16-master", gpus=16))
XL = run("gpt2-xl", batch=1, sequence=128, gpus=8)
COPIES, VIEWS = (XL.phase("after_backward", buckets=kind) for kind in ("copies", "views"))
LLAMA, H100 = 16 * model("llama-3.1-405b", code="reference").parameters, gpu("h100-80gb").memory
PART = P / G


def states(sharding="zero2"):
    return PAPER.at("zero.states", {"parameters": 13 * 10**9}, sharding=sharding)


def divided():
    draw = Random(31)
    for gpus in (1, 2, 3, 4, 5, 8, 16):
        sizes = [draw.randint(1, 40) for _ in range(draw.randint(3, 7))]
        whole = [(i, n) for i, size in enumerate(sizes) for n in range(size)]
        each = -(-len(whole) // gpus)
        rank = draw.randrange(gpus)
        share = whole[rank * each : (rank + 1) * each]
        right = [(i, min(ns), max(ns) + 1) for i in range(len(sizes)) if (ns := [n for k, n in share if k == i])]
        yield Case(f"{sizes} on GPU {rank} of {gpus}", (sizes, gpus, rank), right)


def parts(sizes, gpus, rank, *, up=True, by_tensor=False, local=True):
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
    "31.1": answers(states(), zero1=states("zero1"), zero3=states("zero3"), ddp=states("none"), limit=26 * 10**9),
    "31.2": answers(
        4 * P + 12 * PART, bf16=2 * P + 14 * PART, master=4 * P + 16 * PART, zero1=8 * P + 8 * PART, zero3=16 * PART
    ),
    "31.3": answers(COPIES - VIEWS, bf16=2 * XL.parameters, everything=COPIES, left=VIEWS, bucket=25 * 2**20),
    "31.4": answers(next(n for n in range(1, 100) if 16 * n >= 3 * (4 * n + 12)), eight=8, optimizer=3, limit=4),
    "31.5": answers(math.ceil(LLAMA / H100), box=math.ceil(LLAMA / (80 * 10**9)), rounded_down=LLAMA // H100),
    "31.6": program(parts, divided, alike, up=False, by_tensor=True, local=False),
}
