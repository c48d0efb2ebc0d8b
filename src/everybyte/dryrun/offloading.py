"""`torch.autograd.graph.save_on_cpu` on device meta, where no copy leaves the GPU: what it would make is made, and counted."""

from contextlib import contextmanager
from unittest import mock

import torch
from torch.autograd import graph

from .tracker import Tracker


@contextmanager
def saved_on_host(tracker: Tracker):
    """A context in which what autograd saves under `save_on_cpu` stands in the memory of the CPU.

    A copy to the host of numbers that are not contiguous begins with a copy on the GPU (`aten/src/ATen/native/cuda/Copy.cu`). What stood on
    the host, as attention's random state, is not moved back from there (`save_on_cpu` in `torch/autograd/graph.py`).
    """

    def pack(saved):
        if not saved.is_contiguous():
            copy = torch.empty(saved.shape, dtype=saved.dtype, device="meta")
            del copy
        with tracker.on_host():
            return tracker.is_on_host(saved), torch.empty(saved.shape, dtype=saved.dtype, device="meta")

    def unpack(packed):
        stays, saved = packed
        return saved if stays else torch.empty_like(saved)

    class OnHost(graph.saved_tensors_hooks):
        def __init__(self, pin_memory=False, device_type="cuda"):
            super().__init__(pack, unpack)

    with mock.patch.object(graph, "save_on_cpu", OnHost):
        yield
