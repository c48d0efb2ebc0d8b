"""Arithmetic of a training step: floating-point operations of its matrix products, a multiplication and an addition each.

Norms, activation functions, softmax and the optimizer are left out: they are limited by memory's bandwidth, not by
arithmetic. The causal mask's half of attention counts as done, as it does in the counters that are used for comparison.
"""

from ..rules import formulas as rows
from .registry import register
from .symbols import A, A_kv, B, D, F, H, L, S, V, chunked, dropped, eager, gated

_CHAPTER = "45_planning"
_COUNTER = "Kaplan et al. 2020, arXiv:2001.08361, table 1; PyTorch, torch/utils/flop_counter.py"
_DENSE = (
    "no experts, no latent attention, token table as wide as the stream",
    "heads that are a multiple of eight wide",
)


def _register(item, title, expr, *assumptions, source=_COUNTER):
    return register(
        f"flops.{item}",
        title,
        expr,
        "",
        source=source,
        chapter=_CHAPTER,
        assumptions=(*_DENSE, *assumptions),
        refuses=rows.DENSE,
    )


#: One product of queries and keys, or of weights and values: a square.
_square = 2 * B * A * S**2 * D
_head = 2 * B * S * H * V
_matrices = 2 * A * D * H + 2 * A_kv * D * H + (2 + gated) * H * F

BLOCK = _register("block", "forward of one block", 2 * B * S * _matrices + 2 * _square)
FORWARD = _register("forward", "forward of one batch", L * BLOCK.expr + _head)
BACKWARD = _register(
    "backward", "backward of one batch", 2 * FORWARD.expr + (1 - eager) * L * _square,
    "the flash kernel makes the scores again: five squares for forward's two",
    source=_COUNTER + "; Dao et al. 2022, arXiv:2205.14135, algorithm 4",
)  # fmt: skip
LOSS_AGAIN = _register("again.loss", "the head, recomputed in the chunked loss's backward", chunked * _head)
ATTENTION_AGAIN = _register(
    "again.attention", "attention of one block, recomputed in backward", (2 - eager) * _square, "selective checkpointing",
    "recomputation stops at the last tensor that backward reads: in eager attention the softmax",
    source="Korthikanti et al. 2022, arXiv:2205.05198, section 5; PyTorch, torch/utils/checkpoint.py",
)  # fmt: skip
SPARED = _register(
    "again.spared", "what recomputing a segment of blocks spares: its last product", (1 - dropped) * 2 * B * S * H * F,
    "recomputation stops at the last tensor that backward reads", source="PyTorch, torch/utils/checkpoint.py, early stop",
)  # fmt: skip
