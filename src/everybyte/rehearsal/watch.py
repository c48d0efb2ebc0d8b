"""Inside a rehearsed process: record what PyTorch's allocator does, without changing the script.

It starts when the script imports PyTorch. It writes a report as JSON after each optimizer step, when memory runs out, and at the
end of the process, which a killed process does not reach. It reads environment variables before the script runs, because the
script may change them.
"""

import atexit
import contextlib
import importlib
import importlib.machinery
import os
import re
import sys
import threading
import time
from collections import Counter

from ..common import files
from . import compiled, history, reports

#: Variables: the folder of reports; optimizer steps until a process ends (0: never); the file of snapshots; ranks to pretend.
REPORTS, STEPS = "EVERYBYTE_REHEARSAL_REPORTS", "EVERYBYTE_REHEARSAL_STEPS"
SNAPSHOTS, ALONE = "EVERYBYTE_REHEARSAL_SNAPSHOTS", "EVERYBYTE_REHEARSAL_ALONE"
#: The most events of the allocator's history; older ones are dropped.
EVENTS = 1_000_000
COUNTS = ("requested", "allocated", "reserved")
#: The backend in place of gloo, for groups on the CPU, where a process is alone.
NOBODY = "nobody"


def wait_for_torch() -> None:
    """Watch PyTorch from the moment at which it is imported."""
    told = {name: value for name, value in os.environ.items() if name.startswith(("EVERYBYTE_REHEARSAL", "REHEARSAL_"))}
    told |= {name: os.environ[name] for name in ("RANK", "WORLD_SIZE") if name in os.environ}
    then = {"torch": lambda torch: start(torch, told), "transformers.masking_utils": one_sequence_a_row}
    then |= compiled.hooks()
    compiled.explain_missing_triton()
    sys.meta_path.insert(0, _Finder(then, {"torch": lambda: _tell_stubs(told)}))


def _tell_stubs(told):
    """Put variables that the script has removed back into C's environment, which the stubs read; `os.environ` stays as it is."""
    for name, value in told.items():
        if name.startswith("REHEARSAL_") and name not in os.environ:
            os.putenv(name, value)


class _Finder:
    """An import hook. first: called before a module is run; then: called with the module after its import."""

    def __init__(self, then, first):
        self.then, self.first = then, first

    def find_spec(self, name, path=None, target=None):
        if name not in self.then:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        then, run = self.then.pop(name), spec.loader.exec_module
        first = self.first.get(name, lambda: None)

        def exec_module(module):
            first()
            run(module)
            then(module)

        spec.loader.exec_module = exec_module
        return spec


def one_sequence_a_row(masks) -> None:
    """Tell Hugging Face's models that no row packs several sequences: they would read that off positions, which are zeros here."""
    masks.find_packed_sequence_indices = lambda position_ids: None
    if _watched:
        _watched.notes.append(
            "rows of tokens are taken for one sequence each: what tells packed ones apart would be read as 0"
        )


_watched = None


def start(torch, told: dict[str, str]) -> None:
    """Watch this process. `told`: environment variables as they were before the script ran."""
    global _watched
    if torch.version.cuda is None or not hasattr(torch._C, "_cuda_init"):
        return  # another PyTorch than the rehearsal's: nobody reports, and the launcher says so
    _watched = _Watched(torch, told)


class _Watched:
    """The record of one process."""

    def __init__(self, torch, told):
        self.torch, self.told, self.steps, self.notes = torch, told, 0, []
        self.pid, self.began, self.writing = os.getpid(), time.time_ns(), threading.Lock()
        self.marks, self.best, self.phases, self.instant, self.oom = {}, {}, {}, {}, None
        self.highest, self.backward_line, self.snapshot, self.pools = {}, None, None, 0
        self.last_step = int(told.get(STEPS) or 0)
        torch.backends.cuda.enable_cudnn_sdp(False)
        torch.backends.cudnn.enabled = False
        torch.cuda._lazy_call(self._begin)
        compiled.watch_graphs(torch)
        optimizers = importlib.import_module("torch.optim.optimizer")
        optimizers.register_optimizer_step_pre_hook(self._before_step)
        optimizers.register_optimizer_step_post_hook(self._after_step)
        self._watch_backward()
        self._watch_resets()
        if ranks := int(told.get(ALONE) or 0):
            alone(torch, ranks)
        elif int(os.environ.get("WORLD_SIZE") or told.get("WORLD_SIZE") or 1) > 1:
            together(torch)
        self._watch_the_end()
        self._report()

    def _watch_the_end(self):
        """Report at Python's regular end, and at `os._exit`."""
        atexit.register(self._at_the_end)
        leave = os._exit

        def _exit(status):
            with contextlib.suppress(Exception):
                self._at_the_end()
            leave(status)

        os._exit = _exit

    def _begin(self):
        memory = self.torch.cuda.memory
        memory._record_memory_history(enabled="all", context="all", stacks="python", max_entries=EVENTS)
        self.torch._C._cuda_attach_out_of_memory_observer(self._out_of_memory)

    def _watch_backward(self):
        autograd = self.torch.autograd
        original = autograd.backward

        def backward(*args, **kwargs):
            self.backward_line = _caller()
            self._mark("after_forward")
            original(*args, **kwargs)
            self._mark("backward_done")

        autograd.backward = backward

    def _watch_resets(self):
        """Read the peaks before the script resets them."""
        for name in ("reset_peak_memory_stats", "reset_max_memory_allocated"):
            for module in (self.torch.cuda, self.torch.cuda.memory):
                original = getattr(module, name, None)
                if original:
                    setattr(module, name, self._seen_before(original))

    def _seen_before(self, original):
        def reset(*args, **kwargs):
            self._look()
            return original(*args, **kwargs)

        return reset

    def _devices(self):
        cuda = self.torch.cuda
        return range(cuda.device_count()) if cuda.is_initialized() else ()

    def _mark(self, moment):
        """Note a moment: live bytes, and how many allocations there have been."""
        for device in self._devices():
            stats = self.torch.cuda.memory_stats(device)
            if stats:
                self.marks.setdefault(device, []).append((moment, stats["allocation.all.allocated"]))
                self.phases.setdefault(device, {})[moment] = stats["requested_bytes.all.current"]

    def _before_step(self, optimizer, args, kwargs):
        self._mark("after_backward")

    def _after_step(self, optimizer, args, kwargs):
        self._mark("after_step")
        self.steps += 1
        self._look()
        self._report()
        if self.steps == self.last_step:
            raise SystemExit(0)
        settled()

    def _look(self):
        """Update each device's peaks. Where requested bytes reached a new one, find out when, and what lived then."""
        for device in self._devices():
            stats = self.torch.cuda.memory_stats(device)
            if not stats:
                continue
            highest = self.highest.setdefault(device, dict.fromkeys((*COUNTS, "segments"), 0))
            found = {count: stats[f"{count}_bytes.all.peak"] for count in COUNTS} | {
                "segments": stats["segment.all.peak"]
            }
            more = found["requested"] > highest["requested"]
            self.highest[device] = {count: max(value, highest[count]) for count, value in found.items()}
            if more and self.oom is None:
                self._remember(device, stats["allocation.all.allocated"], self.torch.cuda.memory._snapshot())

    def _remember(self, device, allocations, snapshot):
        instant = history.most(snapshot, device)
        made = sum(event["action"] == "alloc" for event in snapshot["device_traces"][device])
        number, marks = allocations - made + instant.allocation, self.marks.get(device, [])
        at = where(number, marks)
        self.instant[device] = {
            "live": instant.live,
            "at": at,
            "step": step(number, marks),
            **self._place(instant.frames, at),
            "held": history.holders(instant),
        }
        if path := self.told.get(SNAPSHOTS):
            self._keep(snapshot, path)

    def _place(self, frames, at):
        """Where Python was. Backward's thread runs none of the script's: then the line of the script that called it."""
        if self.backward_line and (not frames or at == "backward" and history.line(frames) is None):
            return {"line": self.backward_line, "inner": None, "call": "backward"}
        return {"line": history.line(frames), "inner": history.inner(frames), "call": history.call(frames)}

    def _keep(self, snapshot, path):
        """Write the snapshot as a pickle, the format of PyTorch's viewer. It is never read here."""
        import pickle

        if rank := self._rank():
            root, dot, end = path.rpartition(".")
            path = f"{root}.rank{rank}.{end}" if dot else f"{path}.rank{rank}"
        try:
            with files.whole(path) as file:
                pickle.dump(snapshot, file)
        except OSError as error:  # the script goes on as on a GPU
            self.notes.append(f"The snapshot is not in {path}: {error.strerror or error}.")
        else:
            self.snapshot = path

    def _out_of_memory(self, device, asked, total, free):
        """Called by PyTorch before it raises an out-of-memory error."""
        snapshot = self.torch.cuda.memory._snapshot()
        events = [e for e in snapshot["device_traces"][device] if e["action"] == "oom"]
        frames = (events[-1].get("frames") if events else None) or []
        stats = self.torch.cuda.memory_stats(device)
        at = where(stats["allocation.all.allocated"] + 1, self.marks.get(device, []))
        self.oom = {
            "device": device, "requested": events[-1]["size"] if events else asked, "total": total, "free": free, "at": at,
            **self._place(frames, at),
        }  # fmt: skip
        self._remember(device, stats["allocation.all.allocated"], snapshot)
        self._look()
        self._report()

    def _rank(self):
        """This process's rank, from a launcher or the script; 0 where there is none."""
        said = os.environ.get("RANK") or self.told.get("RANK") or "0"
        return int(said) if said.isdecimal() else 0

    def _at_the_end(self):
        if threading.current_thread() is threading.main_thread():
            self._look()
            if compiled.captured():
                snapshot = self.torch.cuda.memory._snapshot()
                self.pools = sum(compiled.in_pools(snapshot, device) for device in self._devices())
            self._report(final=True)

    def _report(self, final=False):
        """Write the report in place of the last one. Where that fails, the script goes on."""
        if os.getpid() != self.pid and (self.torch.cuda._is_in_bad_fork() or not self.highest):
            return  # a fork that has no GPU of its own
        if self.writing.acquire(blocking=False):  # a thread that writes, or one that did when the process was forked
            try:
                reports.write(self.told[REPORTS], self.began, self._said(final))
            except OSError as error:
                self.notes.append(f"A report was not kept: {error.strerror or error}.")
            finally:
                self.writing.release()

    def _said(self, final):
        torch = self.torch
        used = {d: h for d, h in self.highest.items() if h["reserved"]}
        peaks = [peak["step"] for peak in self.instant.values() if self.steps]
        reads, size = unknown_reads()
        return {
            "pid": os.getpid(), "rank": self._rank(), "argv": [str(word) for word in sys.argv], "torch": torch.__version__,
            "cuda": torch.version.cuda, "steps": self.steps, "reads": reads, "bytes_read": size,
            "oom": self.oom, "snapshot": self.snapshot,
            "notes": self.notes + compiled.notes(peaks, self.pools),
            "ended": self.steps == self.last_step > 0, "final": final,
            "devices": [
                {"device": d, "name": torch.cuda.get_device_name(d), "memory": torch.cuda.get_device_properties(d).total_memory,
                 **highest, "retries": torch.cuda.memory_stats(d)["num_alloc_retries"],
                 "phases": self.phases.get(d, {}), "peak": self.instant.get(d)}
                for d, highest in used.items()
            ],
        }  # fmt: skip


def _caller():
    """The innermost line of the script that is running, as file:line."""
    frames, frame = [], sys._getframe(2)
    while frame:
        frames.append({"filename": frame.f_code.co_filename, "line": frame.f_lineno})
        frame = frame.f_back
    return history.line(frames)


def where(allocation: int, marks: list[tuple[str, int]]) -> str:
    """The part of a step in which an allocation was made, or that it was before any backward.

    Args:
        allocation: its number. marks: (moment, number of allocations by then), in order.
    """
    ends = {
        "after_forward": "forward",
        "backward_done": "backward",
        "after_backward": "backward",
        "after_step": "optimizer step",
    }
    for moment, count in marks:
        if allocation <= count:
            return ends[moment]
    return "forward" if marks else "before any backward"


def step(allocation: int, marks: list[tuple[str, int]]) -> int:
    """In which step an allocation was made, the first being 0: how many had ended. Arguments as those of `where`."""
    return sum(moment == "after_step" and count < allocation for moment, count in marks)


_stubs: set[str] = set()  # the library of the stubs that this process has loaded


def unknown_reads() -> tuple[int, int]:
    """(number, bytes) of reads from the GPU whose content is unknown, and was read as zeros."""
    import ctypes

    if not _stubs:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            _stubs.update(line.split()[-1] for line in maps if "libeverybyte-rehearsal" in line)
    if not _stubs:
        return 0, 0
    count, size = ctypes.CDLL(min(_stubs)).rehearsal_unknown_reads, ctypes.c_ulonglong()
    count.restype = ctypes.c_uint
    return count(ctypes.byref(size)), size.value


def together(torch) -> None:
    """Send Python objects between processes, such as a pipeline's shapes, through the group's store.

    PyTorch sends them as bytes on the GPU. Here collectives move nothing, so the receiver would read zeros.
    """
    from torch.distributed import distributed_c10d as c10d

    send, receive, told = c10d.send_object_list, c10d.recv_object_list, Counter()

    def place(source, target):
        told[source, target] += 1
        return f"everybyte/{source}/{target}/{told[source, target]}"

    def other(rank, group, group_rank):
        return rank if rank is not None else c10d.get_global_rank(group or c10d.group.WORLD, group_rank)

    def on_gpu(device, group):
        return torch.device(device or c10d._get_object_coll_device(group)).type == "cuda"

    def send_object_list(object_list, dst=None, group=None, device=None, group_dst=None, **more):
        if not on_gpu(device, group):
            return send(object_list, dst, group, device, group_dst, **more)
        data, _ = c10d._object_to_tensor(list(object_list), torch.device("cpu"), group)
        where = place(c10d.get_rank(), other(dst, group, group_dst))
        c10d._get_default_store().set(where, bytes(data.tolist()))

    def recv_object_list(object_list, src=None, group=None, device=None, group_src=None, **more):
        if not on_gpu(device, group) or src is group_src is None:
            return receive(object_list, src, group, device, group_src, **more)
        source = other(src, group, group_src)
        data = bytearray(c10d._get_default_store().get(place(source, c10d.get_rank())))
        object_list[:] = c10d._tensor_to_object(torch.frombuffer(data, dtype=torch.uint8), len(data), group)
        return source

    for module in (torch.distributed, c10d):
        for instead in (send_object_list, recv_object_list):
            setattr(module, instead.__name__, instead)


def settled() -> None:
    """Wait until PyTorch has seen that every collective is done.

    A thread looks every tenth of a second, and until then NCCL's tensors, such as DDP's first buckets, are not freed. A step on a
    GPU takes longer than that. A rehearsed one does not, and its peak would hold a random number of them.
    """
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    for group in list(c10d._world.pg_map) if c10d else ():
        if any(device.type == "cuda" for device in group._device_types):
            group._wait_for_pending_works()


def alone(torch, ranks: int) -> None:
    """Pretend to be rank 0 of `ranks`: collectives return at once and move nothing.

    On the CPU too, where gloo would wait for the other ranks: PyTorch's fake process group takes its place.
    """
    from torch._C._distributed_c10d import FakeProcessGroup
    from torch.distributed import device_mesh, distributed_c10d

    begin, more = distributed_c10d.init_process_group, distributed_c10d.new_group
    distributed_c10d.Backend.register_backend(
        NOBODY,
        lambda told, _options: FakeProcessGroup._create_internal(told.group_rank, told.group_size),
        extended_api=True,
        devices=["cpu"],
    )

    def nobody(backend):
        return backend and re.sub(r"\bgloo\b", NOBODY, str(backend).lower())

    def init_process_group(backend=None, *args, **kwargs):
        kept = {name: kwargs[name] for name in ("timeout", "device_id") if kwargs.get(name) is not None}
        backend = nobody(backend) or f"cpu:{NOBODY},cuda:nccl"
        return begin(backend, rank=0, world_size=ranks, store=torch.distributed.HashStore(), **kept)

    def new_group(ranks=None, timeout=None, backend=None, *args, **kwargs):
        return more(ranks, timeout, nobody(backend), *args, **kwargs)

    distributed_c10d._store_based_barrier = lambda *args, **kwargs: None  # the others will not come
    for module in (torch.distributed, distributed_c10d, device_mesh):
        for instead in (init_process_group, new_group):
            if hasattr(module, instead.__name__):
                setattr(module, instead.__name__, instead)
