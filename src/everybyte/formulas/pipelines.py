"""Pipelines: how many micro-batches are in flight, what they keep, what stands to receive, how long GPUs wait.

`everybyte.ask.schedules` has the orders themselves, which these are held to.
"""

from sympy import Integer, Min

from .registry import register
from .symbols import B, H, L, S, all_first, divided, hop, i_p, n_a, p, v, w

#: What one micro-batch sends from stage to stage, forward; its gradient is as large.
BOUNDARY = register("pipeline.boundary", B * S * H * w)
#: Of all v n_a forwards of a GPU, the most that wait for the end of their backward.
_waiting = (v - 1) * p + 1 + hop * (p - 1 - i_p) + divided * i_p + all_first * v * n_a
IN_FLIGHT = register("pipeline.in_flight", Min(v * n_a, _waiting))
_neighbors = Min(Integer(1), i_p) + Min(Integer(1), p - 1 - i_p)
RECEIVED = register("pipeline.received", n_a * (2 * (v - 1) + _neighbors) * BOUNDARY.expr)
KEPT = register("pipeline.kept", IN_FLIGHT.expr * (L / (p * v)) * BOUNDARY.expr)
BUBBLE = register("pipeline.bubble", (p - 1) / ((1 + 2 * divided) * v * n_a))
