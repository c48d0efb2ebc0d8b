"""`torch.autograd.graph.save_on_cpu` on device meta, where no copy leaves the GPU: what it would make is made, and counted."""

from contextlib import contextmanager
from unittest import mock

import torch
from torch.autograd import graph

from .tracker import Tracker


@contextmanager
def saved_on_host(tracker: Tracker):
    """A context in which what autograd saves under `save_on_cpu` stands in the memory of the CPU.

    A copy to the host of numbers that are not contiguous begins with a copy on the GPU (`aten/src/ATen/native/cuda/Copy.cu`).
    """

    def pack(saved):
        if not saved.is_contiguous():
            copy = torch.empty(saved.shape, dtype=saved.dtype, device="meta")
            del copy
        with tracker.on_host():
            return torch.empty(saved.shape, dtype=saved.dtype, device="meta")

    class OnHost(graph.saved_tensors_hooks):
        def __init__(self, pin_memory=False, device_type="cuda"):
            super().__init__(pack, torch.empty_like)

    with mock.patch.object(graph, "save_on_cpu", OnHost):
        yield
