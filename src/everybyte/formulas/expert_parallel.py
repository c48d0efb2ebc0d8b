"""Experts on several GPUs: their weights, the rows that are sent and received, and what a mixture saves for backward."""

from sympy import Max, Min, ceiling

from .registry import register
from .symbols import B, E, E_p, E_t, F_e, H, L_m, S, rho, w, w_s

_SENT = B * S * E_t
_CAME = ceiling(rho * _SENT)

WEIGHTS = register("experts.weights", 3 * L_m * E / E_p * F_e * H * w_s)
ROWS = register("experts.rows", _CAME)
WORST = register("experts.worst", E_p * Min(1, E / (E_p * Max(E_t, 1))))
BUFFERS = register("experts.buffers", (_SENT + _CAME) * (H * w + 8))
_came = _CAME * (w * (H + 4 * F_e) + 16)
KEPT = register("experts.kept", _came + _SENT * (w * H + 40) + 4 * B * S * (1 + E) + 4 * E / E_p)
SENT = register("experts.sent", (2 * (_SENT + _CAME) * H * w + 8 * _SENT) * (E_p - 1) / E_p)
