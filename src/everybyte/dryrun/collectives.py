"""Functional collectives as in CUDA's build, where what is sent lives until the result is waited for; and ring attention.

The kernels for tensors without data do neither: they return a new tensor where PyTorch wraps or waits for the one that it has,
and keep no input. On CUDA the collective runs on a stream of its own, and NCCL's process group keeps its input until
`wait_tensor`, which may be much later. Sources: `torch/distributed/_functional_collectives.py`, `_maybe_wrap_tensor`;
`torch/csrc/distributed/c10d/Functional.cpp`, `register_work`; `ProcessGroupNCCL.cpp`, `stashed_for_allocator_safety_`.
"""

from contextlib import contextmanager
from unittest import mock

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.distributed_c10d import _resolve_process_group, get_process_group_ranks

from .cuda import ANSWERS, SCRATCH

functional = torch.ops._c10d_functional
#: Collectives that allocate their result.
SENDING = (
    functional.all_gather_into_tensor.default, functional.reduce_scatter_tensor.default,
    functional.all_to_all_single.default,
)  # fmt: skip


@contextmanager
def in_flight(apart=()):
    """A context in which collectives run as on CUDA. Those among the ranks `apart` are waited for at once."""
    held = {}  # by the address of what comes: what is sent

    def sending(func):
        def send(given, *rest):
            made = func(given, *rest)
            if not apart or get_process_group_ranks(_resolve_process_group(rest[-1])) != [*apart]:
                held[made.untyped_storage()._cdata] = given
            return made

        return send

    def wait(made):
        held.pop(made.untyped_storage()._cdata, None)
        return made

    def wrapped(made):
        sent = made.untyped_storage()._cdata in held
        return AsyncCollectiveTensor(made) if sent else made.view(made.shape)

    answers = {func: sending(func) for func in SENDING}
    answers |= {functional.wait_tensor.default: wait, functional._wrap_tensor_autograd.default: wrapped}
    with mock.patch.dict(ANSWERS, answers):
        yield


@contextmanager
def in_a_ring(apart=()):
    """A context in which ring attention runs as on CUDA. apart: as for `in_flight`."""
    backward = torch.ops.aten._scaled_dot_product_flash_attention_backward.default
    with in_flight(apart), mock.patch.dict(SCRATCH, {backward: _copied}):
        yield


def _copied(grad, query, key, value, out, *_):
    """Bytes of copies: the kernel reads a token's heads side by side, and copies what is stored otherwise.

    Source: `_flash_attention_backward` in `native/transformers/cuda/attention_backward.cu`.
    """
    return tuple(x.numel() * x.itemsize for x in (grad, out) if not x.transpose(1, 2).is_contiguous())
