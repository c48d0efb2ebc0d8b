"""What checkpointing costs: the matrix products that backward recomputes."""

from sympy import ceiling

from .compute import ATTENTION_AGAIN, BLOCK, SPARED
from .registry import register
from .symbols import K, L, segmented, selective

_segments = segmented * (L * BLOCK.expr - ceiling(L / K) * SPARED.expr)
AGAIN = register("checkpoint.flops", _segments + selective * L * ATTENTION_AGAIN.expr)
