"""DeepSpeed-Ulysses on the tape: `reference/mesh/ulysses.py`, and the tokens that one GPU keeps."""

from functools import partial

from .attention import scaled_dot_product_attention
from .letters import over
from .programs import source
from .tape import INT64
from .tensors import new


class Ulysses:
    """Attention of this GPU's heads to all tokens. parts: GPUs that share a sequence."""

    def __init__(self, parts):
        self.parts = parts

    def cut(self, tape, beside, sequence):
        """What keeping its own tokens makes; nothing of it stays. beside: as `context.cut`."""
        for first in beside:
            new(tape, "own tokens", (*first, over(sequence, self.parts)), INT64)

    def __call__(self, q, k, v, probability=0.0):
        return source("mesh.ulysses").exchanged(_ATTENTION, q, k, v, self.parts, None, probability=probability)


#: Of heads that lie one after another, whose results backward copies.
_ATTENTION = partial(scaled_dot_product_attention, copies=True)
