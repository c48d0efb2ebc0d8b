"""Exercises of chapter 18: where does the square come from, and where does FlashAttention put it?"""

import math
from random import Random

from ...formulas.symbols import D
from . import Case, answers, program, run

SMALL, LARGE, XL = (run(name, precision="bf16-mixed", attention="eager") for name in ("gpt2", "gpt2-large", "gpt2-xl"))


def scores(some):
    """Numbers in the scores of all blocks."""
    return masks(some) * 8 * some.model.heads


def masks(some):
    return some.model.layers * 1024**2


def squares(precision="bf16-mixed", dropout=0.0, some=LARGE):
    """Bytes of the squares of all blocks, causal masks included."""
    return some.model.layers * some.at("attention.scores", precision=precision, dropout=dropout)


def per_score(precision="bf16-mixed", dropout=0.1):
    """Bytes that a block keeps for each score."""
    return (squares(precision, dropout, SMALL) - masks(SMALL)) // scores(SMALL)


SCORES = scores(XL)
SHORT = squares(dropout=0.1, some=XL) - masks(XL) - 5 * SCORES


def fall(some=XL, **changes):
    changes = {"dropout": 0.1} | changes
    return some.peak(precision="fp32", **changes) - some.peak(**changes)


class Tiles:
    """Pairs of scores and values, tile by tile, that can be read once."""

    def __init__(self, scores, values, size):
        self.scores, self.values, self.size, self.read = scores, values, size, False

    def __iter__(self):
        if self.read:
            raise ValueError("the tiles were read before: a kernel sees each tile once")
        self.read = True
        for start in range(0, len(self.scores), self.size):
            yield self.scores[start : start + self.size], self.values[start : start + self.size]


def rows():
    """Rows of scores, small and near 1,000 and -1,000, the largest anywhere, in tiles of several sizes."""
    draw = Random(15)
    for i, (center, size) in enumerate(((0, 4), (0, 1), (1000, 8), (-1000, 8), (1000, 3), (0, 64)), 1):
        scores = [center + draw.uniform(-30, 30) for _ in range(50)]
        values = [draw.uniform(-1, 1) for _ in scores]
        largest = max(scores)
        weights = [math.exp(x - largest) for x in scores]
        right = math.fsum(w * v for w, v in zip(weights, values, strict=True)) / math.fsum(weights)
        yield Case(f"row {i}, scores near {center:,}, tiles of {size}", (Tiles(scores, values, size),), right)


def near(given, right):
    """Within rounding: the sums of 50 doubles in another order are not 1e-9 apart."""
    return abs(given - right) <= 1e-9


def attend(tiles, *, rescale_sum=True, rescale_out=True, shift=True, divide=True):
    m, total, out = -math.inf, 0.0, 0.0
    for scores, values in tiles:
        new = max(m, *scores) if shift else 0.0
        weights = [math.exp(x - new) for x in scores]
        old = math.exp(m - new) if shift else 1.0
        total = total * (old if rescale_sum else 1) + sum(weights)
        out = out * (old if rescale_out else 1) + sum(w * v for w, v in zip(weights, values, strict=True))
        m = new
    return out / total if divide else out


ANSWERS = {
    "18.1": answers(per_score(), mask=per_score(dropout=0.0), bf16=per_score("bf16"), product=4, softmax=3, cast=9),
    "18.2": answers(
        squares, masks=squares() - masks(LARGE), fp32=squares("fp32"), precision="bf16", dropout=0.1, some=XL
    ),
    "18.3": answers(
        34 * D / 7, bf16=34 * D / 5, squares=34 * D / 6, rest=32 * D / 7, fp32=66 * D / 9, autocast=38 * D / 7
    ),
    "18.4": answers(
        SHORT, masks=SHORT + masks(XL), no_dropout=SCORES, fp32=4 * SCORES, whole=7 * SCORES, formula=5 * SCORES
    ),
    "18.5": answers(
        fall(), no_dropout=fall(dropout=0.0), flash=fall(attention="flash"), small=fall(SMALL), squares=2 * SCORES
    ),
    "18.6": program(attend, rows, near, rescale_sum=False, rescale_out=False, shift=False, divide=False),
}
