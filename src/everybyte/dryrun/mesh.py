"""A device mesh of any shape on device "meta", seen from any of its ranks: `init_device_mesh("meta", ...)` within `on_meta`.

What a mesh asks of the device, which would be CUDA's, is answered here; what a `DTensor` is made of is what the tracker
follows. Its caches hold process groups of the run before, by name, so each run begins with empty ones.
"""

from contextlib import contextmanager
from itertools import count
from unittest import mock

import torch

from .cuda import ANSWERS
from .tracker import Tracker


@contextmanager
def on_meta(tracker: Tracker):
    """Within it PyTorch makes device meshes of device "meta", and the tracker sees the tensors that `DTensor`s are made of."""
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
    """The number that a masked tensor is set to: CUDA's `x[mask] = 0` has it in the memory of the CPU.

    Source: `torch/csrc/autograd/python_variable_indexing.cpp`, `THPVariable_setitem`.
    """
    return torch.tensor(value, dtype=dtype, device="cpu")


class Stream(torch.cpu.Stream):
    """A stream in which everything has been done already; it has a number, by which the tracker tells whose an allocation is."""

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
    """What FSDP and device meshes ask of `torch.cuda`."""

    Stream, Event = Stream, torch.cpu.Event

    def __init__(self, tracker):
        self._tracker = tracker

    def current_stream(self):
        return Stream(number=self._tracker.stream)

    @contextmanager
    def stream(self, stream):
        before, self._tracker.stream = self._tracker.stream, stream.number
        try:
            yield
        finally:
            self._tracker.stream = before

    @staticmethod
    def device_count():
        return 1  # which the costs of ways to redistribute a tensor are reckoned with

    @staticmethod
    def is_available():
        return True

    @staticmethod
    def current_device():
        return 0

    @staticmethod
    def set_device(device):
        pass
