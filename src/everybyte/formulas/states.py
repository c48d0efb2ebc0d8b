"""What stands between steps and after one: weights, gradients, the optimizer's states."""

from sympy import Add, ceiling

from ..rules import formulas as rows
from .parameters import TIMES
from .parameters import WEIGHTS as TENSORS
from .registry import register
from .symbols import (
    B,
    L,
    N_max,
    P,
    S,
    accumulated,
    eager,
    fused_adam,
    g,
    g_m,
    m_w,
    mask_buffers,
    n_s,
    rounding,
    s_b,
    scaled,
    w,
    w_s,
)  # fmt: skip

_CHAPTER = "13_gradients_and_optimizers"
_ZERO = "Rajbhandari et al. 2020 (ZeRO), arXiv:1910.02054, section 3.1"


def vector(numbers, width, count=1):
    """Bytes of so many tensors of so many numbers: exact, and each rounded up."""
    return count * numbers * width, count * rounding * ceiling(numbers * width / rounding)


def per_weight(width):
    """Bytes of `width` for each number of the weights, each tensor rounded up."""
    return Add(*(vector(t.numbers, width, TIMES[t.group] * t.count)[1] for t in TENSORS))


def _bytes(name, title, expr, rounded, *assumptions, source=_ZERO):
    refuses = rows.ONE_GPU if name.startswith("phase.") else ()
    return register(
        name,
        title,
        expr,
        "B",
        source=source,
        chapter=_CHAPTER,
        assumptions=assumptions,
        rounded=rounded,
        refuses=refuses,
    )


def _sum(name, title, *terms, assumptions=(), source="the sum of the named terms"):
    """A formula that is the sum of others, or of (exact, rounded) pairs."""
    pairs = [t if isinstance(t, tuple) else (t.expr, t.rounded) for t in terms]
    return _bytes(name, title, Add(*(p[0] for p in pairs)), Add(*(p[1] for p in pairs)), *assumptions, source=source)


WEIGHTS = _bytes("weights", "weights", w * P, per_weight(w))
GRADIENT_BUFFER = _bytes(
    "gradients.buffer",
    "gradients kept in a buffer from step to step",
    g_m * P,
    per_weight(g_m),
    source="Megatron-LM, accumulate_allreduce_grads_in_fp32",
)
FRESH = _bytes("gradients.fresh", "gradients that backward leaves", g * P, per_weight(g), "every parameter is trained")
GRADIENTS = _sum("gradients", "gradients after backward", FRESH, GRADIENT_BUFFER)
MASTER = _bytes(
    "optimizer.master",
    "master weights",
    m_w * P,
    per_weight(m_w),
    source="Micikevicius et al. 2018, arXiv:1710.03740, section 3.1",
)
STATES = _bytes(
    "optimizer.states",
    "momentum and variance",
    n_s * s_b * P,
    n_s * per_weight(s_b),
    source="Kingma and Ba 2015, arXiv:1412.6980, algorithm 1; PyTorch, torch/optim",
)
_tensors = Add(*(TIMES[t.group] * t.count for t in TENSORS))
COUNTERS = _bytes(
    "optimizer.counters",
    "step counters of a fused Adam, one a tensor",
    *vector(1, 4, fused_adam * _tensors),
    "the foreach and loop implementations keep them on the CPU; SGD has none",
    source="PyTorch, torch/optim/adam.py, _init_group",
)
SCALER = _bytes(
    "optimizer.scaler",
    "the loss scaler's scale and growth counter",
    *vector(1, 4, 2 * scaled),
    source="PyTorch, torch/amp/grad_scaler.py",
)
OPTIMIZER = _sum("optimizer", "all that the optimizer keeps from step to step", MASTER, STATES, COUNTERS, SCALER)
BUFFERS = _bytes(
    "buffers",
    "causal masks of eager attention, one a block",
    *vector(N_max**2, w_s, eager * mask_buffers * L),
    "a Llama makes its mask in each forward",
    source="nanoGPT, model.py, the buffer `bias`",
)
REST = _sum("phase.rest", "live bytes between steps", WEIGHTS, BUFFERS, GRADIENT_BUFFER, OPTIMIZER)
_IDS = {"source": "PyTorch's embedding and cross-entropy take int64"}
TOKENS = _bytes("batch.tokens", "tokens, 64-bit whole numbers", *vector(B * S, 8), **_IDS)
TARGETS = _bytes("batch.targets", "targets, 64-bit whole numbers", *vector(B * S, 8), **_IDS)
LOSS_VALUE = _bytes(
    "loss.value", "the loss, one number of the weights' type", *vector(1, w), source="PyTorch, F.cross_entropy"
)
SHARES = _bytes(
    "loss.shares", "the last batch's share in the loss and the sum of the shares", *vector(1, w, 2 * accumulated),
    source="nanoGPT, train.py",
)  # fmt: skip
LOSS_KEPT = _sum("loss.kept", "targets, loss and shares, kept until the step returns", TARGETS, LOSS_VALUE, SHARES)
AFTER_STEP = _sum(
    "phase.after_step",
    "live bytes after the optimizer's step, before gradients are dropped",
    REST,
    FRESH,
    TOKENS,
    LOSS_KEPT,
)
BYTES_PER_PARAMETER = register(
    "bytes_per_parameter",
    "bytes that each parameter takes after backward",
    w + g + g_m + m_w + n_s * s_b,
    "B",
    source=_ZERO,
    chapter=_CHAPTER,
    assumptions=("weights, gradients, master weights and optimizer states; no activations, no temporaries",),
)
