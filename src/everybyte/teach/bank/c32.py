"""Exercises of chapter 32: when are the sharded weights whole?"""

from ...ask.setup import Setup
from ...formulas.symbols import H
from ..asking import parameters, peak, step
from ..program import Case
from . import answers, program

_EIGHT = Setup(gpus=8, sharding="zero3", precision="bf16-mixed")
_SHORT = Setup(gpus=8, sharding="zero3", batch=1, sequence=64)
_GPUS = [2**i for i in range(13)]


def _kept_whole(**changes):
    run = _EIGHT.replace(**changes)
    return peak("gpt2-xl", run, sharding="zero2") - peak("gpt2-xl", run)


def _over(setup):
    """How far a peak is above two bytes a parameter."""
    return peak("gpt2-xl", setup) - 2 * parameters("gpt2-xl")


def _best(name):
    return min(_GPUS, key=lambda n: peak(name, _EIGHT, gpus=n))


def _cut():
    import torch

    for rows, columns, gpus, rank in (
        (10, 4, 4, 3),
        (9, 2, 8, 5),
        (9, 2, 8, 4),
        (50, 8, 4, 0),
        (3, 5, 8, 2),
        (3, 5, 8, 3),
        (64, 1, 8, 7),
    ):
        pieces = torch.arange(rows).chunk(gpus)
        own = pieces[rank].tolist() if rank < len(pieces) else []
        first, last = (own[0], own[-1] + 1) if own else (rows, rows)
        stored = columns * len(pieces[0])
        yield Case(f"{rows} × {columns} on GPU {rank} of {gpus}", (rows, columns, gpus, rank), (first, last, stored))


def _share(rows, columns, gpus, rank, *, up=True, padded=True, clipped=True):
    """The answer, or what it would be rounded down, without padding, or beyond the last row."""
    each = -(-rows // gpus) if up else rows // gpus
    first, last = rank * each, (rank + 1) * each
    if clipped:
        first, last = min(first, rows), min(last, rows)
    return first, last, columns * (each if padded else last - first)


ANSWERS = {
    "32.1": answers(
        4 * 768 * -(-50257 // 64),
        rounded_down=4 * 768 * (50257 // 64),
        bf16=2 * 768 * -(-50257 // 64),
        gathered=4 * 768 * 64 * -(-50257 // 64),
    ),
    "32.2": answers(
        120 * H**2, weights=24 * H**2, gradients=48 * H**2, sent=72 * H**2, bf16_sent=96 * H**2, fp32=192 * H**2
    ),
    "32.3": answers(
        _kept_whole,
        buffer=lambda: step("gpt2-xl", _EIGHT, sharding="zero2").parts["unsharded"],
        fp32=lambda: _kept_whole(precision="fp32"),
    ),
    "32.4": answers(
        lambda: _over(_SHORT),
        peak=lambda: peak("gpt2-xl", _SHORT),
        mixed=lambda: _over(_SHORT.replace(precision="bf16-mixed")),
    ),
    "32.5": answers(lambda: _best("gpt2"), xl=lambda: _best("gpt2-xl"), most=max(_GPUS)),
    "32.6": program(_share, _cut, lambda given, right: tuple(given) == right, up=False, padded=False, clipped=False),
}
