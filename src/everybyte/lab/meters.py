"""Meters of memory and time: a GPU's by the statistics of CUDA's allocator, a CPU's by following storages."""

import gc
import shutil
import time
import weakref
from contextlib import contextmanager, nullcontext, suppress
from itertools import pairwise
from pathlib import Path
from subprocess import PIPE, SubprocessError
from unittest import mock

import torch
from torch._subclasses import FakeTensor  # DTensor's, which asks by them for the shape of a result
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..common import children, files
from .timeline import live_at_allocations

#: A meter's counts, in bytes: requested by tensors; in their blocks; with freed blocks that a stream still uses; with the
#: allocator's cache.
COUNTS = ("requested", "allocated", "active", "reserved")
#: A field of the GPU's state after timing -> its name in nvidia-smi.
CLOCKS = {
    "sm_mhz": "clocks.sm", "power_w": "power.draw", "power_limit_w": "power.limit", "temperature_c": "temperature.gpu",
}  # fmt: skip


class Cuda:
    """The memory of one CUDA device, as PyTorch's caching allocator counts it.

    Args:
        limit: bytes that this process may take; more is out of memory.
    """

    rounding = 512

    def __init__(self, device: torch.device, limit: int | None):
        self.device, self._limit = device, limit
        torch.cuda.set_device(device)
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total) if limit else 1.0, device)
        self.empty()
        self._retries = self._stats()["num_alloc_retries"]

    def empty(self) -> int:
        """Free unused memory and cuBLAS's workspaces; return the bytes of the workspaces."""
        gc.collect()
        torch.cuda.synchronize(self.device)
        before = self.now()["requested"]  # not allocated: a workspace may stand in a block that was not split
        torch._C._cuda_clearCublasWorkspaces()
        workspaces = before - self.now()["requested"]
        torch.cuda.empty_cache()
        self.restart()
        return workspaces

    def _stats(self):
        return torch.cuda.memory_stats(self.device)

    def now(self) -> dict[str, int]:
        """Bytes of each of `COUNTS`."""
        return self._counted("current")

    def most(self) -> dict[str, int]:
        """The most of each of `COUNTS` since `restart`."""
        return self._counted("peak")

    def _counted(self, when):
        stats = self._stats()
        return {count: stats[f"{count}_bytes.all.{when}"] for count in COUNTS}

    def restart(self) -> None:
        """Reset the peaks."""
        torch.cuda.reset_peak_memory_stats(self.device)

    def allocations(self) -> int:
        """How many allocations there have been."""
        return self._stats()["allocation.all.allocated"]

    def retries(self) -> int:
        """How often in this measurement the allocator had to free its cache before it could serve a request."""
        return self._stats()["num_alloc_retries"] - self._retries

    def segments(self) -> int:
        """The number of the allocator's segments now."""
        return self._stats()["segment.all.current"]

    def driver(self) -> dict[str, int | None]:
        """Bytes in use on the device by all processes, contexts and libraries, as CUDA and as NVML count them."""
        free, total = torch.cuda.mem_get_info(self.device)
        try:
            nvml = torch.cuda.device_memory_used(self.device)
        except Exception:  # NVML's Python binding is not a requirement, and its errors are its own
            nvml = None
        return {"cuda": total - free, "nvml": nvml}

    def free(self) -> int:
        """Free bytes, by the driver or the limit."""
        free = torch.cuda.mem_get_info(self.device)[0]
        return min(free, max(0, self._limit - self.now()["reserved"])) if self._limit else free

    def bounded(self):
        """A context in which more memory than there is is refused; CUDA always does so."""
        return nullcontext()

    def watching(self):
        """A context in which memory is counted; CUDA's allocator always does so."""
        return nullcontext()

    @contextmanager
    def history(self):
        """A context that gives a list. At its end the list has the live bytes before the first allocation and after each."""
        live = []
        torch.cuda.memory._record_memory_history(enabled="all", context=None, stacks="python")
        start = self.allocations()
        try:
            yield live
            snapshot = torch.cuda.memory._snapshot()
            live += live_at_allocations(snapshot, self.device.index, self.allocations() - start, self.rounding)
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)

    def stamp(self) -> torch.cuda.Event:
        """A moment in the GPU's queue; it does not wait for the GPU."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, stamps) -> list[float]:
        """Milliseconds from each stamp to the next."""
        for stamp in stamps:
            stamp.synchronize()
        return [start.elapsed_time(end) for start, end in pairwise(stamps)]

    def clocks(self) -> dict[str, float] | None:
        """The GPU's clock, power and temperature now, from nvidia-smi; None where that is not installed."""
        if not (tool := shutil.which("nvidia-smi")):
            return None
        asked = f"--query-gpu={','.join(CLOCKS.values())}", f"--id={self.device.index or 0}"
        try:
            done = children.run(
                [tool, *asked, "--format=csv,noheader,nounits"], 10.0, stdout=PIPE, stderr=PIPE, text=True
            )
            done.check_returncode()
            return {name: float(value) for name, value in zip(CLOCKS, done.stdout.split(","), strict=True)}
        except (OSError, SubprocessError, ValueError):  # a tool of another driver's, or fields that it has not
            return None


def available() -> int | None:
    """Bytes of memory available on the machine, or in the container; None where that is unknown."""
    try:
        found = [files.kilobytes("/proc/meminfo")["MemAvailable"]]
    except (OSError, KeyError):
        return None
    group = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):  # "max" where there is no bound
        most, used = (int((group / name).read_text(encoding="ascii")) for name in ("memory.max", "memory.current"))
        found.append(max(most - used, 0))
    return min(found)


class Cpu:
    """The storages of CPU tensors, followed from allocation to free while `watching`. It has the methods of `Cuda`.

    It does not see kernels' own memory. Where backward adds two gradients of one tensor, it counts a third tensor that would not
    exist without it. It has no cache and no driver.

    Args:
        limit: bytes above which memory is exhausted.
    """

    rounding = 1
    retries = segments = staticmethod(lambda: 0)
    clocks = staticmethod(lambda: None)

    def __init__(self, device: torch.device, limit: int | None):
        self.device, self._limit = device, limit
        self._counter = _Counter(limit)

    def empty(self) -> int:
        gc.collect()
        self.restart()
        return 0

    def now(self) -> dict[str, int]:
        return dict.fromkeys(COUNTS, self._counter.live)

    def most(self) -> dict[str, int]:
        return dict.fromkeys(COUNTS, self._counter.most)

    def restart(self) -> None:
        self._counter.most = self._counter.live

    def allocations(self) -> int:
        return self._counter.allocations

    def driver(self) -> dict[str, int | None]:
        return {"cuda": None, "nvml": None}

    def free(self) -> int | None:
        """Free bytes by the limit; None without a limit."""
        return self._limit and self._limit - self._counter.refused

    def watching(self):
        return self._counter

    @contextmanager
    def bounded(self):
        """A context in which this process cannot take more memory than is free; else Linux would kill some process.

        Where free memory is unknown, as on macOS and Windows, there is no bound.
        """
        free = available()
        if free is None:
            yield
            return
        import resource

        held = files.kilobytes("/proc/self/status")["VmData"]
        before, most = resource.getrlimit(resource.RLIMIT_DATA)
        within = [held + free - free // 16, *(n for n in (before, most) if n != resource.RLIM_INFINITY)]
        resource.setrlimit(resource.RLIMIT_DATA, (min(within), most))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (before, most))

    @contextmanager
    def history(self):
        self._counter.history = live = [self._counter.live]
        try:
            yield live
        finally:
            self._counter.history = None

    def stamp(self) -> float:
        return time.perf_counter() * 1e3

    def between(self, stamps) -> list[float]:
        return [end - start for start, end in pairwise(stamps)]


class _Counter(TorchDispatchMode):
    """Follows storages by weak references, and the resizing of FSDP's."""

    def __init__(self, limit):
        super().__init__()
        self.limit, self.live, self.most, self.allocations, self.refused, self.history = limit, 0, 0, 0, 0, None
        self._refs, self._sizes = {}, {}  # by the storage's address

    def __enter__(self):
        resize = torch.UntypedStorage.resize_

        def told(storage, size):
            resize(storage, size)
            if storage._cdata in self._refs:
                self.live -= self._sizes.pop(storage._cdata)
                self._take(storage._cdata, storage.nbytes())
            return storage

        self._watch = mock.patch.object(torch.UntypedStorage, "resize_", told)
        self._watch.start()
        return super().__enter__()

    def __exit__(self, *exception):
        self._watch.stop()
        return super().__exit__(*exception)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(hasattr(t, "__tensor_flatten__") for t in types):
            return NotImplemented  # FSDP's tensors are made of others, which come by here
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            real = isinstance(leaf, torch.Tensor) and not isinstance(leaf, FakeTensor)
            if real and leaf.untyped_storage()._cdata not in self._refs:
                self._follow(leaf.untyped_storage())
        return out

    def _follow(self, storage):
        address = storage._cdata
        self._take(address, storage.nbytes())
        self._refs[address] = weakref.ref(storage, lambda _: self._freed(address))

    def _take(self, address, size):
        if self.limit and self.live + size > self.limit:
            self.refused = self.live
            raise torch.OutOfMemoryError(f"Out of memory. Tried to allocate {size} bytes with a limit of {self.limit}.")
        self.live += size
        self.most = max(self.most, self.live)
        self._sizes[address] = size
        if size:
            self.allocations += 1
        if size and self.history is not None:
            self.history.append(self.live)

    def _freed(self, address):
        self.live -= self._sizes.pop(address)
        del self._refs[address]
