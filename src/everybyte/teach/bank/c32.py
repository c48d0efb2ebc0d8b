"""Exercises of chapter 32: when are the sharded weights whole?"""

from ...formulas.symbols import H
from . import Case, alike, answers, program, run

XL = run("gpt2-xl", gpus=8, sharding="zero3")
MIXED, SHORT = XL.having(precision="bf16-mixed"), XL.having(batch=1, sequence=64)
ROWS = -(-50257 // 64)
ZERO2 = {"sharding": "zero2"}
GPUS = [2**i for i in range(13)]


def over(**changes):
    """Bytes of a peak above two bytes per parameter."""
    return SHORT.peak(**changes) - 2 * XL.parameters


def best(name):
    some = run(name, MIXED.setup)
    return min(GPUS, key=lambda n: some.peak(gpus=n))


def cut():
    import torch

    cuts = ((10, 4, 4, 3), (9, 2, 8, 5), (9, 2, 8, 4), (50, 8, 4, 0), (3, 5, 8, 2), (3, 5, 8, 3), (64, 1, 8, 7))
    for rows, columns, gpus, rank in cuts:
        pieces = torch.arange(rows).chunk(gpus)
        own = pieces[rank].tolist() if rank < len(pieces) else []
        first, last = (own[0], own[-1] + 1) if own else (rows, rows)
        stored = columns * len(pieces[0])
        yield Case(f"{rows} × {columns} on GPU {rank} of {gpus}", (rows, columns, gpus, rank), (first, last, stored))


def share(rows, columns, gpus, rank, *, up=True, padded=True, clipped=True):
    each = -(-rows // gpus) if up else rows // gpus
    first, last = rank * each, (rank + 1) * each
    if clipped:
        first, last = min(first, rows), min(last, rows)
    return first, last, columns * (each if padded else last - first)


ANSWERS = {
    "32.1": answers(
        4 * 768 * ROWS, rounded_down=4 * 768 * (50257 // 64), bf16=2 * 768 * ROWS, gathered=4 * 768 * 64 * ROWS
    ),
    "32.2": answers(
        120 * H**2, weights=24 * H**2, gradients=48 * H**2, sent=72 * H**2, bf16_sent=96 * H**2, fp32=192 * H**2
    ),
    "32.3": answers(-MIXED.falls(ZERO2), buffer=MIXED.having(**ZERO2).step().parts["unsharded"], fp32=-XL.falls(ZERO2)),
    "32.4": answers(over(), peak=SHORT.peak(), mixed=over(precision="bf16-mixed")),
    "32.5": answers(best("gpt2"), xl=best("gpt2-xl"), most=max(GPUS)),
    "32.6": program(share, cut, alike, up=False, padded=False, clipped=False),
}
