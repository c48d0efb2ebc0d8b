"""Where in a predicted step a job died that left an out-of-memory message: by the bytes that it had, and those that it asked for."""

from itertools import product
from typing import Any

from .. import units
from ..catalog import gpus
from ..evidence import Message

#: A message has two decimals of its unit; a large segment is asked for in multiples of so many bytes. Source: `CUDACachingAllocator.cpp`.
_ROUNDED, _SEGMENT = 0.005, 2 * 2**20


def died(witness: Any, said: Message) -> tuple[str, list[tuple[str, str, str, int, int]]]:
    """(The place in words, the terms between the step's peak and what a message says was allocated and asked for); ("", []) where none fits.

    A place fits where an operation takes what was asked for, and what lived there was allocated, as near as the message says it: in the
    first step, which has no optimizer's states yet, or a later one; with the workspaces of cuBLAS that may stand.

    Args:
        witness: a budget, a dry run, or a derivation at a point.

    Returns:
        (stage, what, part, tensors, bytes) of each term; they sum to what was seen less the peak.
    """
    if not said.asked or said.allocated is None:
        return "", []
    live, need, off = witness.live, said.allocated + said.asked, _error(said.asked)
    places = [i for i in range(1, len(live)) if -off <= said.asked - (live[i] - live[i - 1]) <= _SEGMENT + off]
    spaces = sorted({gpu.cublas_workspace for gpu in gpus().values()})
    kept = [(0, 0), *((many, space) for space in spaces for many in (1, 2))]
    ways = product(places, {0, witness.parts_at("rest").get("optimizer", 0)}, kept)
    rests = {way: need - (live[way[0]] - way[1] + way[2][0] * way[2][1]) for way in ways}
    way = min(rests, key=lambda way: (abs(rests[way]), way), default=None)
    if way is None or abs(rests[way]) > off + _error(said.allocated) + _SEGMENT:
        return "", []
    place, made, (many, space) = way
    name, phase, _ = witness.operations[place]
    rows = [
        ("tensors", "never asked for: it died before the peak", "activations", 0, live[place] - witness.peak),
        ("tensors", "states of the optimizer: the first step had not made them yet", "optimizer", 0, -made),
        ("workspaces", "cuBLAS's workspaces, by their size", "workspace", many, many * space),
        ("tensors", "the decimals of the message, and what rounding adds", "other", 0, rests[way]),
    ]
    return f"by its bytes it died in {phase}, at {name}", rows


def _error(size):
    """How far a size may be from what a message says of it."""
    return round(_ROUNDED * units.UNITS[units.largest(size)])
