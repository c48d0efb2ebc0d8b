"""States of optimizers that keep less than two numbers a parameter: factored, of some matrices alone, in 8 bits."""

from sympy import Add, Piecewise, ceiling

from ..rules import formulas as rows
from ..theory.optimizers import BLOCK, QUANTIZED, TABLE, factors, is_hidden
from .parameters import TIMES
from .parameters import WEIGHTS as TENSORS
from .registry import register
from .states import vector
from .symbols import s_b

_CHAPTER = "24_small_optimizers"


def blocks(numbers):
    """(exact, rounded) bytes of one 8-bit state: a code a number and a scale a block; in fp32 below `QUANTIZED` numbers."""
    codes, scales, small = vector(numbers, 1), vector(ceiling(numbers / BLOCK), 4), vector(numbers, 4)
    return tuple(
        Piecewise((plain, numbers < QUANTIZED), (code + scale, True))
        for code, scale, plain in zip(codes, scales, small, strict=True)
    )


def _states(name, title, each, *shared, assumptions=(), source):
    """The sum of (exact, rounded) bytes of a tensor's states over all weights, and of what they share."""
    pairs = [
        (TIMES[t.group] * t.count * part[0], TIMES[t.group] * t.count * part[1]) for t in TENSORS for part in each(t)
    ]
    exact, rounded = (Add(*(pair[i] for pair in [*pairs, *shared])) for i in (0, 1))
    return register(
        f"states.{name}", title, exact, "B", source=source, chapter=_CHAPTER, assumptions=assumptions, rounded=rounded,
        refuses=rows.ONE_GPU,
    )  # fmt: skip


LION = _states(
    "lion",
    "Lion's momentum",
    lambda t: [vector(t.numbers, s_b)],
    source="Chen et al. 2023, arXiv:2302.06675, algorithm 2",
)
ADAFACTOR = _states(
    "adafactor", "Adafactor's factors of the variance", lambda t: [vector(n, s_b) for n in factors(t.shape)],
    assumptions=("without momentum, as PyTorch's",),
    source="Shazeer and Stern 2018, arXiv:1804.04235, algorithm 4; PyTorch, torch/optim/_adafactor.py",
)  # fmt: skip
MUON = _states(
    "muon", "Muon's momentum, and AdamW's states for the rest",
    lambda t: [vector(t.numbers, s_b)] * (1 if is_hidden(t) else 2),
    assumptions=("Muon has the blocks' matrices, AdamW all else", "that AdamW is not fused"),
    source="Liu et al. 2025, arXiv:2502.16982; PyTorch, torch/optim/_muon.py",
)  # fmt: skip
ADAMW8BIT = _states(
    "adamw8bit", "AdamW's states in 8 bits", lambda t: [blocks(t.numbers)] * 2, vector(TABLE, 4, 2),
    assumptions=(
        f"codes in blocks of {BLOCK}, each with an fp32 scale", f"tensors of fewer than {QUANTIZED:,} numbers keep fp32",
        "some tensor is larger, so that the two tables of codes exist",
    ),
    source="Dettmers et al. 2022, arXiv:2110.02861; bitsandbytes, optim/optimizer.py",
)  # fmt: skip
