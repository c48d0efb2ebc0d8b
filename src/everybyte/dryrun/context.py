"""PyTorch's ring attention on tensors without data."""

from contextlib import contextmanager
from unittest import mock

import torch

from .collectives import in_flight
from .cuda import SCRATCH

aten = torch.ops.aten


@contextmanager
def as_on_cuda(apart=()):
    """Within it, ring attention runs as on CUDA. `apart`: ranks among which matrices are divided."""
    backward = aten._scaled_dot_product_flash_attention_backward.default
    with in_flight(apart), mock.patch.dict(SCRATCH, {backward: _copied}):
        yield


def _copied(grad, query, key, value, out, *_):
    """The kernel reads a token's heads side by side, and copies what does not lie so.

    Source: `_flash_attention_backward` in `native/transformers/cuda/attention_backward.cu`.
    """
    return tuple(x.numel() * x.itemsize for x in (grad, out) if not x.transpose(1, 2).is_contiguous())
