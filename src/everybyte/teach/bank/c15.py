"""Exercises of chapter 15: where does the square come from, and where does FlashAttention put it?"""

import math
from random import Random

from ...budget import budget
from ...catalog import model
from ...formulas import SYMBOLS, formula
from ...setup import Setup
from ..exercise import Exercise
from ..program import Case, Program

D = SYMBOLS["head_width"].symbol


def _setup(precision="bf16-mixed", dropout=0.0, attention="eager"):
    return Setup(batch=8, sequence=1024, precision=precision, dropout=dropout, attention=attention)


def _scores(name):
    m, s = model(name), _setup()
    return m.layers * s.batch * m.heads * s.sequence**2


def _squares(name, **setup):
    """Bytes of the squares of all blocks, causal masks included."""
    return model(name).layers * formula("attention.scores").at(model(name), _setup(**setup))


def _masks(name):
    return model(name).layers * _setup().sequence ** 2


def _per_score(precision, dropout):
    """Bytes that a block keeps for each score."""
    return (_squares("gpt2", precision=precision, dropout=dropout) - _masks("gpt2")) // _scores("gpt2")


def _short():
    return _squares("gpt2-xl", dropout=0.1) - _masks("gpt2-xl") - 5 * _scores("gpt2-xl")


def _fall(name="gpt2-xl", **setup):
    full, mixed = (budget(model(name), _setup(precision=p, **setup)).peak for p in ("fp32", "bf16-mixed"))
    return full - mixed


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


def _attend(rescale_sum=True, rescale_out=True, shift=True, divide=True):
    """What it would be without one of its four steps."""

    def attend(tiles):
        m, total, out = -math.inf, 0.0, 0.0
        for scores, values in tiles:
            new = max(m, *scores) if shift else 0.0
            weights = [math.exp(x - new) for x in scores]
            old = math.exp(m - new) if shift else 1.0
            total = total * (old if rescale_sum else 1) + sum(weights)
            out = out * (old if rescale_out else 1) + sum(w * v for w, v in zip(weights, values, strict=True))
            m = new
        return out / total if divide else out

    return attend


EXERCISES = [
    Exercise(
        id="15.1",
        title="Bytes saved for each score: softmax alone in fp32, with dropout",
        difficulty=1,
        minutes=3,
        unit="B",
        answer=lambda: _per_score("bf16-mixed", 0.1),  # the same tensors live
        mistakes={
            "dropout's mask is missing, one byte an element": lambda: _per_score("bf16-mixed", 0.0),
            "softmax's result is fp32 here: this is with softmax in bf16 too": lambda: _per_score("bf16", 0.1),
            "the dropped weights and their mask are missing: the product reads what dropout returned": 4,
            "softmax's backward reads softmax's own result, in fp32": 3,
            "no backward reads the 16-bit cast: dropout needs only its mask": 9,
        },
        hints=(
            "Ask each of softmax, dropout and the product with the values what its backward reads.",
            "Softmax its fp32 result, dropout its mask of one byte an element, the product its left input in 16 bits.",
        ),
    ),
    Exercise(
        id="15.2",
        title="The squares of all blocks of GPT-2 large under autocast",
        difficulty=1,
        minutes=5,
        unit="GiB",
        decimals=2,
        answer=lambda: _squares("gpt2-large"),
        mistakes={
            "the causal masks are missing": lambda: _squares("gpt2-large") - _masks("gpt2-large"),
            "four bytes a score is fp32: autocast keeps a 16-bit copy too": lambda: _squares(
                "gpt2-large", precision="fp32"
            ),
            "two bytes a score: softmax's result is fp32 under autocast": lambda: _squares(
                "gpt2-large", precision="bf16"
            ),
            "this is with dropout": lambda: _squares("gpt2-large", dropout=0.1),
            "these are GPT-2 XL's": lambda: _squares("gpt2-xl"),
        },
        factors={"number of layers": 36},
        hints=(
            "Bytes a score, times batch, heads and the sequence twice; a mask of one byte for each pair; all of it for each layer.",
            "Under autocast softmax's result is fp32 and the product reads a 16-bit copy: six bytes.",
        ),
    ),
    Exercise(
        id="15.3",
        title="Where the squares overtake the rest: softmax alone in fp32, with dropout",
        difficulty=2,
        minutes=6,
        accepts="expression",
        answer=lambda: 34 * D / 7,
        mistakes={
            "the squares are those of a softmax in bf16: exercise 15.1 has seven bytes": 34 * D / 5,
            "the rest with dropout, but the squares without: each score has seven bytes now": 34 * D / 6,
            "the squares with dropout, but the rest without: the residual dropouts' masks are in the 34": 32 * D / 7,
            "this is fp32's crossover with dropout": 66 * D / 9,
            "this is autocast's": 38 * D / 7,
        },
        hints=(
            "Set the bytes a score of exercise 15.1, times the number of scores, equal to 34 BSH.",
            "Divide by B and S; what is left of H / A has a letter of its own.",
        ),
    ),
    Exercise(
        id="15.4",
        title="A published formula under autocast: what its square term lacks",
        difficulty=2,
        minutes=6,
        unit="GiB",
        decimals=2,
        answer=_short,
        mistakes={
            "causal masks are in it: leave them out": lambda: _short() + _masks("gpt2-xl"),
            "without dropout autocast keeps six; here it keeps seven": lambda: _scores("gpt2-xl"),
            "that is fp32's nine bytes against five: under autocast one copy serves": lambda: 4 * _scores("gpt2-xl"),
            "that is the whole square term; what does the formula have of it?": lambda: 7 * _scores("gpt2-xl"),
            "that is the formula's own square term": lambda: 5 * _scores("gpt2-xl"),
        },
        factors={"number of layers": 48},
        hints=(
            "The formula's five bytes a score are 2 + 1 + 2. Which of them has another width under autocast?",
            "Softmax's result is fp32: 4 + 1 + 2. Two bytes for each of 48 · 8 · 25 · 1,024² scores are missing.",
        ),
    ),
    Exercise(
        id="15.5",
        title="From fp32 to autocast with dropout: by how much GPT-2 XL's peak falls",
        difficulty=3,
        minutes=8,
        unit="GiB",
        decimals=2,
        answer=lambda: _fall(dropout=0.1),
        mistakes={
            "this is without dropout, where it rises": _fall,
            "this is with flash attention": lambda: _fall(dropout=0.1, attention="flash"),
            "this is GPT-2's": lambda: _fall("gpt2", dropout=0.1),
            "that is the squares' share alone; the rest of the block falls too, and the casts are new": lambda: (
                2 * _scores("gpt2-xl")
            ),
        },
        hints=(
            "How many bytes a score does fp32 keep with dropout, and how many autocast?",
            "Ask `eb.budget(xl, setup).peak` for both; the first less the second.",
        ),
    ),
    Program(
        id="15.6",
        title="A function: the online softmax, one row in tiles",
        difficulty=3,
        minutes=15,
        call="attend(tiles)",
        cases=_rows,
        agree=_near,
        answer=_attend,
        mistakes={
            "when the reference changes, the sum so far has to be rescaled": lambda: _attend(rescale_sum=False),
            "when the reference changes, the weighted sum of values has to be rescaled too": lambda: _attend(
                rescale_out=False
            ),
            "it is right for small scores, and e to the 1,000 is too large for a float: subtract a reference": lambda: (
                _attend(shift=False)
            ),
            "that is the weighted sum: divide by the sum of the weights at the end": lambda: _attend(divide=False),
        },
        hints=(
            "Keep three numbers: the largest score so far, the sum of exponentials, and the weighted sum of values.",
            "With a new largest n in place of m, multiply both sums by exp(m - n) before you add the tile's.",
        ),
    ),
]
