"""Exercises of chapter 15: where does the square come from, and where does FlashAttention put it?"""

import math
from random import Random

from ...ask.setup import Setup
from ...catalog import model
from ...formulas.symbols import D
from ..asking import at, peak
from ..program import Case
from . import answers, program


def _setup(precision="bf16-mixed", dropout=0.0, attention="eager"):
    return Setup(batch=8, sequence=1024, precision=precision, dropout=dropout, attention=attention)


def _scores(name):
    m, s = model(name), _setup()
    return m.layers * s.batch * m.heads * s.sequence**2


def _squares(name, **setup):
    """Bytes of the squares of all blocks, causal masks included."""
    return model(name).layers * at("attention.scores", name, _setup(**setup))


def _masks(name):
    return model(name).layers * _setup().sequence ** 2


def _per_score(precision, dropout):
    """Bytes that a block keeps for each score."""
    return (_squares("gpt2", precision=precision, dropout=dropout) - _masks("gpt2")) // _scores("gpt2")


def _short():
    return _squares("gpt2-xl", dropout=0.1) - _masks("gpt2-xl") - 5 * _scores("gpt2-xl")


def _fall(name="gpt2-xl", **setup):
    return peak(name, _setup("fp32", **setup)) - peak(name, _setup(**setup))


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


def _rows():
    """Rows of scores, small and near 1,000 and -1,000, the largest anywhere, in tiles of several sizes."""
    draw = Random(15)
    for i, (center, size) in enumerate(((0, 4), (0, 1), (1000, 8), (-1000, 8), (1000, 3), (0, 64)), 1):
        scores = [center + draw.uniform(-30, 30) for _ in range(50)]
        values = [draw.uniform(-1, 1) for _ in scores]
        largest = max(scores)
        weights = [math.exp(x - largest) for x in scores]
        right = math.fsum(w * v for w, v in zip(weights, values, strict=True)) / math.fsum(weights)
        yield Case(f"row {i}, scores near {center:,}, tiles of {size}", (Tiles(scores, values, size),), right)


def _near(given, right):
    """Within rounding: the sums of 50 doubles in another order are not 1e-9 apart."""
    return abs(given - right) <= 1e-9


def _attend(tiles, *, rescale_sum=True, rescale_out=True, shift=True, divide=True):
    """The answer, or what it would be without one of its four steps."""
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
    "15.1": answers(
        lambda: _per_score("bf16-mixed", 0.1),
        mask=lambda: _per_score("bf16-mixed", 0.0),
        bf16=lambda: _per_score("bf16", 0.1),
        product=4,
        softmax=3,
        cast=9,
    ),
    "15.2": answers(
        lambda: _squares("gpt2-large"),
        masks=lambda: _squares("gpt2-large") - _masks("gpt2-large"),
        fp32=lambda: _squares("gpt2-large", precision="fp32"),
        bf16=lambda: _squares("gpt2-large", precision="bf16"),
        dropout=lambda: _squares("gpt2-large", dropout=0.1),
        xl=lambda: _squares("gpt2-xl"),
    ),
    "15.3": answers(
        34 * D / 7, bf16=34 * D / 5, squares=34 * D / 6, rest=32 * D / 7, fp32=66 * D / 9, autocast=38 * D / 7
    ),
    "15.4": answers(
        _short,
        masks=lambda: _short() + _masks("gpt2-xl"),
        no_dropout=lambda: _scores("gpt2-xl"),
        fp32=lambda: 4 * _scores("gpt2-xl"),
        whole=lambda: 7 * _scores("gpt2-xl"),
        formula=lambda: 5 * _scores("gpt2-xl"),
    ),
    "15.5": answers(
        lambda: _fall(dropout=0.1),
        no_dropout=_fall,
        flash=lambda: _fall(dropout=0.1, attention="flash"),
        small=lambda: _fall("gpt2", dropout=0.1),
        squares=lambda: 2 * _scores("gpt2-xl"),
    ),
    "15.6": program(_attend, _rows, _near, rescale_sum=False, rescale_out=False, shift=False, divide=False),
}
