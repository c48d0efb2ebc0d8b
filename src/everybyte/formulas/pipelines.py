"""Pipelines: micro-batches in flight, what they save, buffers to receive into, and the time that GPUs wait.

Tests compare these with the schedules themselves, in `everybyte.ask.schedules`.
"""

from sympy import Integer, Min

from .registry import register
from .symbols import B, H, L, S, all_first, divided, hop, i_p, n_a, p, v, w

#: Bytes that one micro-batch sends from stage to stage in forward; its gradient is as large.
BOUNDARY = register("pipeline.boundary", B * S * H * w)
#: The most of a GPU's v n_a forwards whose backward has not ended yet.
_waiting = (v - 1) * p + 1 + hop * (p - 1 - i_p) + divided * i_p + all_first * v * n_a
IN_FLIGHT = register("pipeline.in_flight", Min(v * n_a, _waiting))
_neighbors = Min(Integer(1), i_p) + Min(Integer(1), p - 1 - i_p)
RECEIVED = register("pipeline.received", n_a * (2 * (v - 1) + _neighbors) * BOUNDARY.expr)
KEPT = register("pipeline.kept", IN_FLIGHT.expr * (L / (p * v)) * BOUNDARY.expr)
BUBBLE = register("pipeline.bubble", (p - 1) / ((1 + 2 * divided) * v * n_a))
