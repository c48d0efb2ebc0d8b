"""Pipelines: how many micro-batches are in flight, what they keep, what stands to receive, how long GPUs wait.

`everybyte.ask.schedules` has the orders themselves, which these are held to.
"""

from sympy import Integer, Min

from ..rules import formulas as rows
from .registry import register
from .symbols import B, H, L, S, all_first, divided, hop, i_p, n_a, p, v, w

_CHAPTER = "34_pipelines"
_SOURCE = (
    "Huang et al. 2018, arXiv:1811.06965; Narayanan et al. 2021, arXiv:2006.09503, 2.2, and arXiv:2104.04473, 2.2; Qi et al. "
    "2023, arXiv:2401.10241; the orders of PyTorch's torch/distributed/pipelining/schedules.py"
)
_ROUNDS = "interleaved schedules: micro-batches come in rounds of p"


def _register(name, title, expr, unit, *assumptions, refuses=rows.ORDERED):
    return register(
        f"pipeline.{name}",
        title,
        expr,
        unit,
        source=_SOURCE,
        chapter=_CHAPTER,
        assumptions=assumptions,
        refuses=refuses,
    )


#: What one micro-batch sends from stage to stage, forward; its gradient is as large.
BOUNDARY = _register("boundary", "what one stage sends the next of a micro-batch", B * S * H * w, "B")
#: Of all v n_a forwards of a GPU, the most that wait for the end of their backward.
IN_FLIGHT = _register(
    "in_flight",
    "micro-batches whose activations stand at once on one GPU, counted once for each of its stages",
    Min(v * n_a, (v - 1) * p + 1 + hop * (p - 1 - i_p) + divided * i_p + all_first * v * n_a),
    "",
    _ROUNDS,
)
RECEIVED = _register(
    "received",
    "buffers to receive into, which stand for good: one for each micro-batch, stage and direction",
    n_a * (2 * (v - 1) + Min(Integer(1), i_p) + Min(Integer(1), p - 1 - i_p)) * BOUNDARY.expr,
    "B",
    "PyTorch's torch/distributed/pipelining/stage.py",
    refuses=rows.BUFFERED,
)
KEPT = _register(
    "kept",
    "what the blocks of one GPU keep of the micro-batches in flight, with every block checkpointed",
    IN_FLIGHT.expr * (L / (p * v)) * BOUNDARY.expr,
    "B",
    "stages of L / (p v) blocks, which divides",
    "each keeps the inputs of its blocks but the first, which is the receive buffer, and its output, which is sent",
    _ROUNDS,
    refuses=rows.EVEN,
)
BUBBLE = _register(
    "bubble",
    "time that each GPU waits in a step, over the time that it works",
    (p - 1) / ((1 + 2 * divided) * v * n_a),
    "",
    "a backward takes as long as two forwards, and divided each half as long as one",
    "sending takes no time",
    _ROUNDS,
)
