"""Context parallelism: each of c GPUs has S / c tokens of every sequence, and keys and values go around a ring.

Everything but attention works on tokens one by one, so it runs as it is on the tokens that a GPU has. Attention is PyTorch's
`context_parallel`, which puts ring attention in place of `scaled_dot_product_attention`, and cuts the tensors that it is given.
A token late in a sequence attends to more than an early one, so each GPU has a piece from the beginning and one from the end:
the sequence is cut into 2 c pieces, and GPU r has the pieces r and 2 c - 1 - r. Where a token stands is therefore given with it.
Sources: Liu et al., Ring Attention (2023), arXiv:2310.01889; Llama team, The Llama 3 Herd of Models (2024), arXiv:2407.21783,
section 3.3.2; PyTorch, torch/distributed/tensor/experimental/_context_parallel/_attention.py.
"""

import torch
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method

from .ulysses import exchanging

#: What PyTorch calls each way around.
ROTATIONS = {"all-gather": "allgather", "all-to-all": "alltoall"}


def going_around(ring, rotation: str, inputs):
    """PyTorch's `context_parallel` over a ring, or DeepSpeed's exchange: within it each of the inputs has this GPU's own tokens.

    Args:
        ring: a device mesh of one dimension. rotation: a key of `ROTATIONS`, or `ulysses`. inputs: (B, S) each, and positions (S,).
    """
    if rotation == "ulysses":
        return exchanging(ring, inputs)
    set_rotate_method(ROTATIONS[rotation])
    along = [x.dim() - 1 for x in inputs]
    return context_parallel(ring, buffers=list(inputs), buffer_seq_dims=along, no_restore_buffers=set(inputs))


def placed(batch, first: int = 0):
    """Of what makes tokens and targets, what makes them with their positions, counted from `first`: (B, S), (B, S), (S,)."""

    def make():
        tokens, targets = batch()
        return tokens, targets, torch.arange(first, first + tokens.size(1), device=tokens.device)

    return make
