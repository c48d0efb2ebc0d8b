"""Memory between steps and right after one: weights, gradients, the optimizer's states."""

from sympy import Add, ceiling

from .parameters import TIMES
from .parameters import WEIGHTS as TENSORS
from .registry import register
from .symbols import B, L, N_max, P, S, accumulated, eager, fused_adam, g, g_m, m_w, n_s, s_b, scaled, w, w_s
from .symbols import mask_buffers as masks
from .symbols import rounding as k


def vector(numbers, width, count=1):
    """(exact, rounded) bytes of `count` tensors of `numbers` numbers of `width` bytes; each is rounded up."""
    return count * numbers * width, count * k * ceiling(numbers * width / k)


def per_weight(width):
    """`width` bytes for each parameter, each tensor rounded up."""
    return Add(*(vector(t.numbers, width, TIMES[t.group] * t.count)[1] for t in TENSORS))


def _sum(name, *terms):
    """Register the sum of other formulas, exact and rounded."""
    return register(name, Add(*(t.expr for t in terms)), Add(*(t.rounded for t in terms)))


WEIGHTS = register("weights", w * P, per_weight(w))
GRADIENT_BUFFER = register("gradients.buffer", g_m * P, per_weight(g_m))
FRESH = register("gradients.fresh", g * P, per_weight(g))
GRADIENTS = _sum("gradients", FRESH, GRADIENT_BUFFER)
MASTER = register("optimizer.master", m_w * P, per_weight(m_w))
STATES = register("optimizer.states", n_s * s_b * P, n_s * per_weight(s_b))
_tensors = Add(*(TIMES[t.group] * t.count for t in TENSORS))
COUNTERS = register("optimizer.counters", *vector(1, 4, fused_adam * _tensors))
SCALER = register("optimizer.scaler", *vector(1, 4, 2 * scaled))
OPTIMIZER = _sum("optimizer", MASTER, STATES, COUNTERS, SCALER)
BUFFERS = register("buffers", *vector(N_max**2, w_s, eager * masks * L))
REST = _sum("phase.rest", WEIGHTS, BUFFERS, GRADIENT_BUFFER, OPTIMIZER)
TOKENS = register("batch.tokens", *vector(B * S, 8))
TARGETS = register("batch.targets", *vector(B * S, 8))
LOSS_VALUE = register("loss.value", *vector(1, w))
SHARES = register("loss.shares", *vector(1, w, 2 * accumulated))
LOSS_KEPT = _sum("loss.kept", TARGETS, LOSS_VALUE, SHARES)
AFTER_STEP = _sum("phase.after_step", REST, FRESH, TOKENS, LOSS_KEPT)
BYTES_PER_PARAMETER = register("bytes_per_parameter", w + g + g_m + m_w + n_s * s_b)
