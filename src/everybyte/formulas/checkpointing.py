"""What checkpointing costs: the matrix products that backward makes a second time."""

from sympy import ceiling

from ..rules import formulas as rows
from .compute import ATTENTION_AGAIN, BLOCK, SPARED
from .registry import register
from .symbols import K, L, segmented, selective

AGAIN = register(
    "checkpoint.flops", "floating-point operations of the products that backward recomputes, one batch",
    segmented * (L * BLOCK.expr - ceiling(L / K) * SPARED.expr) + selective * L * ATTENTION_AGAIN.expr, "",
    source="Chen et al. 2016, arXiv:1604.06174; PyTorch, torch/utils/checkpoint.py, early stop",
    chapter="22_checkpointing", assumptions=BLOCK.assumptions, refuses=rows.DENSE,
)  # fmt: skip
