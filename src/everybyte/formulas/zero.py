"""ZeRO: what each of many GPUs holds of a model's states, and what it sends in a step; one formula with three switches.

This is the paper's count, of numbers divided evenly. What PyTorch's FSDP holds, which divides each tensor by rows and
gathers unit by unit, is in `sharding`.
"""

from sympy import Add, ceiling

from .registry import register
from .symbols import G, P, c, g, g_m, m_w, n_s, r, s_b, sharded_gradients, sharded_optimizer, sharded_weights, w_s

_CHAPTER = "31_data_parallel_and_zero"
_PAPER = "Rajbhandari et al. 2020 (ZeRO), arXiv:1910.02054"

#: Numbers of the one G-th that a GPU holds of what is divided, the last GPU's padded.
SHARE = ceiling(P / G)


def held(divided):
    """Numbers that one GPU holds: all P, or its share where `divided` is 1."""
    return (1 - divided) * P + divided * SHARE


def _register(name, title, expr, unit="B", *assumptions, section="section 5"):
    return register(
        f"zero.{name}", title, expr, unit, source=f"{_PAPER}, {section}", chapter=_CHAPTER, assumptions=assumptions
    )


WEIGHTS = _register("weights", "weights that one GPU holds between steps", w_s * held(sharded_weights))
GRADIENTS = _register("gradients", "gradients that one GPU holds after backward", (g + g_m) * held(sharded_gradients))
OPTIMIZER = _register(
    "optimizer",
    "what one GPU's optimizer keeps: master weights and states",
    (m_w + n_s * s_b) * held(sharded_optimizer),
)
STATES = _register(
    "states", "model states on one GPU: weights, gradients, optimizer", Add(WEIGHTS.expr, GRADIENTS.expr, OPTIMIZER.expr), "B",
    "no activations, no buffers of communication, no weights gathered for use",
)  # fmt: skip

#: Numbers that one GPU sends, and as many that it receives, when shares go round a ring: the half of an all-reduce.
ROUND = (G - 1) * SHARE
_RING = ("collectives go round a ring", "one batch a step")
#: ZeRO-2 and 3 gather weights in the type in which they compute.
_gathered = sharded_gradients * c + (1 - sharded_gradients) * w_s
SENT_NUMBERS = _register(
    "sent.numbers",
    "numbers that one GPU sends in a step",
    (2 + sharded_weights) * ROUND,
    "",
    *_RING,
    section="section 7",
)
SENT = _register(
    "sent", "bytes that one GPU sends in a step",
    ((2 - sharded_optimizer) * r + (sharded_optimizer + sharded_weights) * _gathered) * ROUND, "B", *_RING,
    section="section 7",
)  # fmt: skip
