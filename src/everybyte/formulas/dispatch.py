"""Rows on their way to experts and back: padded for grouped products, in 8 bits, and through DeepEP's buffers."""

from sympy import Integer, Max, Min, Piecewise, ceiling, floor

from .expert_parallel import ROWS
from .registry import register
from .symbols import B, E, E_p, E_t, H, S, a_e, c_n, c_r, eight, n_d, n_sm


def up(number, multiple):
    """A number rounded up to a multiple."""
    return multiple * ceiling(number / multiple)


_TOKENS, _OWN, _CAME = B * S, E / E_p, ROWS.expr

# Rows that a grouped product takes. An expert's first row fills a group; every further one is the `a_e`-th at the worst.
PADDED = register("experts.padded", a_e * (_OWN + ceiling(_CAME / a_e)))
_first = Min(_OWN, _CAME)
PADDED_MOST = register("experts.padded_most", a_e * (_first + floor((_CAME - _first) / a_e)))
PADDED_MEAN = register("experts.padded_mean", _CAME + _OWN * (a_e - 1) / 2)

# One row as it is sent: in 16 bits, or in 8 with a scale in fp32 for each 128 numbers.
ROW = register("dispatch.row", eight * (H + 4 * ceiling(H / 128)) + (1 - eight) * 2 * H)

# DeepEP's first version: of each channel, half as many as there are multiprocessors, a buffer for each GPU of the node, and for each
# node. A token in it: its numbers in 16 bits, where it comes from in 8 bytes, and 128 indices of 8 bytes, weights and scales of 4.
_NODE = 8
_TOKEN = 2 * H + 8 + 128 * (8 + 4 + 4)
_channels = floor(n_sm / 2)
_nodes = Max(floor(E_p / _NODE), 1)
NVLINK = register(
    "deepep.nvlink", up(_channels * Min(E_p, _NODE) * ((2 * _nodes + 3) * 4 + c_n * _TOKEN), 128)
)  # fmt: skip
_across = up(_channels * _nodes * ((2 * _NODE + 2) * 2 * 4 + 2 * c_r * (_TOKEN + 16)), 128)
RDMA = register("deepep.rdma", Piecewise((Integer(0), E_p <= _NODE), (_across, True)))

# Its kernels for generation: buffers for every expert's tokens of every GPU, twice, to send and to receive.
_scales = floor(H / 128)
_dispatched = 16 + Max(2 * H, H + 4 * _scales)
_combined = 4 * _scales + 2 * H
_send = Max(_TOKENS * _dispatched, E * _TOKENS * _combined)
_receive = E * _TOKENS * Max(_dispatched, _combined)
_all = 2 * (_send + _receive + up(4 * E, 128))
LOW_LATENCY = register("deepep.low_latency", 128 * floor((_all + 128) / 128))

# Its second version: room for every token of every GPU, whatever the router says; the same memory serves both ways.
_near, _far = Min(E_p, n_d), E_p / Min(E_p, n_d)
_there = up(eight * H + (1 - eight) * 2 * H, 32) + eight * up(4 * ceiling(H / 32), 32) + up(8 * E_t + 4 * (1 + E_t), 32)
_back = up(2 * H, 32) + up(8 * E_t, 32)
_channeled = _far * (_TOKENS + 1024)  # tokens, and one more for each channel
_direct = Max(_near * _TOKENS * _there, Min(_near, E_t) * _TOKENS * _back)
_hybrid = Max(
    (E_p * _TOKENS + _TOKENS + _channeled) * _there,
    (Min(_near, E_t) * _far * _TOKENS + _channeled + Min(_far, E_t) * _TOKENS) * _back,
)
ELASTIC = register("deepep.elastic", up(Piecewise((_direct, E_p <= n_d), (_hybrid, True)), 2**21))
