"""A device mesh of any shape on device "meta", seen from any of its ranks: `init_device_mesh("meta", ...)` within `on_meta`.

Here stand the answers that a mesh needs from the device, in place of CUDA's. The tracker follows the local tensors of `DTensor`s.
Their caches hold process groups of earlier runs, by name, so each run begins with empty caches.
"""

from contextlib import contextmanager
from itertools import count
from unittest import mock

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.distributed_c10d import _resolve_process_group, get_process_group_ranks

from .cuda import ANSWERS, SCRATCH
from .tracker import Tracker


@contextmanager
def on_meta(tracker: Tracker):
    """A context in which PyTorch makes meshes of device "meta", and the tracker sees the local tensors of `DTensor`s."""
    from torch.distributed import device_mesh
    from torch.distributed.tensor import DTensor, _redistribute, debug

    debug._clear_sharding_prop_cache()
    _redistribute.clear_redistribute_planner_cache()
    handle, number = Device(tracker), torch.ops.aten.scalar_tensor.default
    wrap = torch.ops._c10d_functional._wrap_tensor_autograd.default
    with (
        # What a collective has made waits in a wrapper, which has no bytes of its own (`AsyncCollectiveTensor` in
        # `torch/distributed/_functional_collectives.py`); of tensors without data PyTorch makes a second one instead.
        mock.patch.dict(ANSWERS, {wrap: lambda made: made.view(made.shape), number: _on_host}),
        mock.patch.object(device_mesh, "_get_device_handle", lambda device="cuda": handle),
        mock.patch.object(torch, "meta", handle, create=True),
        mock.patch.object(tracker, "opened", (DTensor,)),
    ):
        yield


def _on_host(value, dtype=None, **_):
    """The number of `x[mask] = 0`, which on CUDA is in the memory of the CPU.

    Source: `torch/csrc/autograd/python_variable_indexing.cpp`, `THPVariable_setitem`.
    """
    return torch.tensor(value, dtype=dtype, device="cpu")


class Stream(torch.cpu.Stream):
    """A stream whose work is always done. By its number the tracker notes on which stream an allocation was made."""

    numbers = count(1)

    def __new__(cls, *args, number=None, **kwargs):
        stream = super().__new__(cls)
        stream.number = next(cls.numbers) if number is None else number
        return stream

    def __init__(self, *args, number=None, **kwargs):
        super().__init__()

    def record_event(self):
        return torch.cpu.Event()


class Device:
    """The functions of `torch.cuda` that FSDP and device meshes use."""

    Stream, Event = Stream, torch.cpu.Event
    device_count = staticmethod(lambda: 1)  # which the costs of ways to redistribute a tensor are reckoned with
    is_available = staticmethod(lambda: True)
    current_device = staticmethod(lambda: 0)
    set_device = staticmethod(lambda device: None)

    def __init__(self, tracker):
        self._tracker = tracker

    def current_stream(self):
        return Stream(number=self._tracker.stream)

    def stream(self, stream):
        return mock.patch.object(self._tracker, "stream", stream.number)


# Collectives.

_functional = torch.ops._c10d_functional
#: Collectives that allocate their result.
SENDING = (
    _functional.all_gather_into_tensor.default, _functional.reduce_scatter_tensor.default,
    _functional.all_to_all_single.default,
)  # fmt: skip


@contextmanager
def in_flight(apart=()):
    """A context in which functional collectives run as on CUDA. Those among the ranks `apart` are waited for at once.

    The kernels for tensors without data return a new tensor where PyTorch wraps or waits for the one that it has, and keep no input.
    On CUDA the collective runs on a stream of its own, and NCCL's process group keeps its input until `wait_tensor`, which may be much
    later. Sources: `torch/distributed/_functional_collectives.py`, `_maybe_wrap_tensor`; `torch/csrc/distributed/c10d/Functional.cpp`,
    `register_work`; `ProcessGroupNCCL.cpp`, `stashed_for_allocator_safety_`.
    """
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
    answers |= {_functional.wait_tensor.default: wait, _functional._wrap_tensor_autograd.default: wrapped}
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
