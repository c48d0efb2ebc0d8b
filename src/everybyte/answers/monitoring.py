"""A running job's memory, phase by phase and step by step, from counters that are there anyway: nothing is waited for.

Of a GPU they are those of PyTorch's allocator, which the host keeps. Of a CPU they are the C library's, of the whole process.
"""

import ctypes
import os
import threading
import time
import warnings
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..ask.setup import Setup
from ..catalog import Gpu, Model
from ..common import checks, files
from ..common.tables import Table
from ..evidence import Message
from ..units import text
from .diagnosis import doctor, gpu_of_run
from .leaking import Crowd, crowds

#: The phases of a step that end by themselves: at backward's call and return, before and after the optimizer's step.
PHASES = ("forward", "backward", "between", "optimizer step")
#: Steps after which nothing is made for the first time any more.
WARM_UP = 2
#: Share of the time that reading may take; where it took more, steps are passed over.
SHARE = 0.005
#: Where the most is counted of steps that were passed over.
PASSED = "steps passed over"
#: Steps that are kept; of more, each two become one.
KEPT = 2048
#: From so many steps on growth is judged; and how many steps ahead the limit is worth a warning.
JUDGED, AHEAD = 10, 1000


class Step(NamedTuple):
    """One step, or some that became one: its number; of each phase the most bytes by count; what stood at its end."""

    number: int
    phases: dict[str, tuple[int, ...]]
    end: tuple[int, ...]


class Monitor:
    """Watches the memory of a training loop, as it is, around which it stands; or of Hugging Face's `Trainer`.

        with eb.Monitor() as monitor:
            for batch in loader:
                ...
        monitor  # the phases; monitor.figure() draws the steps

        Trainer(..., callbacks=[eb.Monitor()])

    The phases end at backward's call and return, and before and after the optimizer's step. A loop that has neither
    says them itself, by `mark` and `step`. After each read PyTorch counts its peaks anew, so
    `torch.cuda.max_memory_allocated` is the last phase's.

    Args:
        optimizer: whose step ends a step; by default any's. device: by default the current GPU, or the CPU where there is none.
        warn_at: share of the limit from which on there is a warning. limit: bytes that the process can have; by default what the
            GPU has and others leave, or the machine's memory. picture: a file for the figure, written at the end, however it comes.
        automatic: whether backward and the optimizers are listened to.
        model, setup, gpu: the run as `eb.doctor` takes it, to rank its advice.

    Attributes:
        counts: what is counted: on a GPU requested, allocated and reserved bytes; on a CPU what the C library handed out and what
            it has of the system, or what is resident; there peaks between two marks are not seen.
        steps: those kept, the last at the end. most: phase -> the most bytes of all steps, by count; where reading
            takes more than half a percent of the time, steps are passed over, and are one phase of their own. warnings:
            (step, text) of each.
        spent: seconds that reading took.

    Raises:
        ValueError: for a share or a limit that is none, a model without its setup, and a GPU that the catalog does not have.
    """

    def __init__(
        self,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        device: torch.device | str | int | None = None,
        warn_at: float = 0.9,
        limit: int | None = None,
        picture: str | os.PathLike | None = None,
        automatic: bool = True,
        model: Model | None = None,
        setup: Setup | None = None,
        gpu: Gpu | str | None = None,
    ):
        if not isinstance(warn_at, int | float) or not 0 < warn_at <= 1:
            raise ValueError(f"Monitor.warn_at: {checks.shown(warn_at)}; allowed: above 0, up to 1")
        if limit is not None:
            checks.whole("Monitor", "limit", limit, 1, 2**60)
        card = gpu_of_run("Monitor", model, setup, gpu)
        checks.flag("Monitor", "automatic", automatic)
        self.optimizer, self.warn_at, self.picture, self.automatic = optimizer, warn_at, picture, automatic
        self._device, self._limit, self._run = device, limit, (model, setup, card)
        self._undo = ExitStack()
        self._clear()

    def _clear(self):
        self.steps: list[Step] = []
        self.most: dict[str, tuple[int, ...]] = {}
        self.warnings: list[tuple[int, str]] = []
        self.spent, self.count = 0.0, 0
        self._current: dict[str, tuple[int, ...]] = {}
        self._first: Step | None = None  # of those on which growth is judged
        self._last: Step = Step(0, {}, ())
        self._passing = self._deep = False
        self._said: set[str] = set()

    # -- the loop

    def __enter__(self) -> "Monitor":
        self._undo.close()
        self._clear()
        self.meter = _meter(self._device)
        self.counts, self.limit = self.meter.counts, self._limit or self.meter.limit()
        self._retries = self.meter.read()[2]
        self._started = time.perf_counter()
        if self.automatic:
            self._listen()
        return self

    def __exit__(self, *exception) -> None:
        self._undo.close()
        if self._passing:
            self._catch_up()
        elif self._current:  # a step that did not come to its end
            self._keep(self.count + 1, self.meter.read()[0])
        if self.picture is not None and len(self.steps) > 1:
            from .. import draw

            try:
                with files.whole(self.picture) as file:
                    file.write(draw.png(self.figure()))
            except OSError as error:  # the job that was watched is not to die of it
                warnings.warn(
                    f"Monitor.picture: {self.picture}: {error.strerror or error}; it is not written", stacklevel=2
                )

    def _listen(self):
        autograd, original = torch.autograd, torch.autograd.backward

        def backward(*args, **kwargs):
            if self._deep or threading.current_thread() is not threading.main_thread():
                return original(*args, **kwargs)  # a checkpointed block's, within backward
            self._deep = True
            self.mark("forward")
            try:
                return original(*args, **kwargs)
            finally:
                self._deep = False
                self.mark("backward")

        def before(optimizer, args, kwargs):
            if self.optimizer in (None, optimizer):
                self.mark("between")

        def after(optimizer, args, kwargs):
            if self.optimizer in (None, optimizer):
                self.mark("optimizer step")
                self.step()

        autograd.backward = backward
        hooks = register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)

        def undo():
            if autograd.backward is backward:
                autograd.backward = original
            for hook in hooks:
                hook.remove()

        self._undo.callback(undo)

    def mark(self, phase: str) -> None:
        """Say that what ran since the last mark, or the last step's end, was of this phase."""
        if self._passing:
            return
        began = time.perf_counter()
        _, most, _ = self.meter.read()
        self._current[phase] = _larger(self._current.get(phase), most)
        self.spent += time.perf_counter() - began

    def step(self) -> None:
        """Say that a step has ended."""
        began = time.perf_counter()
        self.count += 1
        if not self._passing:
            now, most, retries = self.meter.read()
            if not self._current:  # of a loop that says no phases
                self._current["step"] = most
            self._last = self._keep(self.count, now)
            self._first = self._first or (self._last if self.count > WARM_UP else None)
            self._look(now, retries)
        elapsed = time.perf_counter() - self._started
        self.spent += time.perf_counter() - began
        passed, self._passing = self._passing, self.count > JUDGED and self.spent > SHARE * elapsed
        if passed and not self._passing:
            self._catch_up()

    def _catch_up(self):
        """What came in steps that were passed over is of no phase, and counts."""
        self.most[PASSED] = _larger(self.most.get(PASSED), self.meter.read()[1])

    def _keep(self, number, now):
        for phase, most in self._current.items():
            self.most[phase] = _larger(self.most.get(phase), most)
        found, self._current = Step(number, self._current, now), {}
        self.steps.append(found)
        if len(self.steps) > KEPT:
            even = len(self.steps) // 2 * 2
            pairs = zip(self.steps[:even:2], self.steps[1:even:2], strict=True)
            self.steps = [_merged(*pair) for pair in pairs] + self.steps[even:]
        return found

    # -- what it says

    @property
    def grown(self) -> float:
        """Bytes that a step leaves behind, from the third on: of what is requested, where that is counted. 0 below five steps."""
        if self._first is None or self.count < WARM_UP + 3:
            return 0.0
        return _rate(self._first, self._last)

    @property
    def growing(self) -> bool:
        """Whether each half of the steps since the third left at least half of that behind: else it goes up and down.

        On a CPU a step leaves a tensor's own structures behind at least: of less the process's other records are the cause.
        """
        if self.count < JUDGED or self.grown < self.meter.least or self._first is None:
            return False
        both = self._first.number + self._last.number
        middle = min(self.steps, key=lambda step: abs(2 * step.number - both))
        halves = (self._first, middle), (middle, self._last)
        return all(_rate(*half) >= self.grown / 2 for half in halves)

    def suspects(self) -> list[Crowd]:
        """Tensors of one shape and type of which there are as many as steps were watched, with who holds them; none where nothing
        grows. It looks at every object of the process, so it is not asked in the loop."""
        return crowds(self.count - WARM_UP, self.meter.device) if self.growing else []

    def _look(self, now, retries):
        phases, live = self._last.phases, max(0, len(self.counts) - 2)  # allocated; resident where that alone is known
        where = max(phases, key=lambda phase: phases[phase][live])
        peak, limit = phases[where][live], self.limit
        if limit and peak >= self.warn_at * limit:
            share = f"{peak / limit:.0%} of the {text(limit)} that this process can have"
            self._warn("near", f"{text(peak)} at the peak, in {where}, is {share}", now, peak)
        if retries > self._retries:
            gave = f"the allocator gave back all that it kept, to serve a request in {where}"
            self._warn("retry", f"{gave}: the next such request may end the job", now, peak)
        self._retries = retries
        if limit and "growth" not in self._said and self.growing and (limit - peak) / self.grown <= AHEAD:
            steps = max(0, int((limit - peak) / self.grown))
            until = f"{steps:,} steps until {text(limit)}"
            self._warn("growth", f"each step leaves {text(self.grown)} behind: {until}", now, peak)

    def _warn(self, kind, said, now, peak):
        if kind in self._said:
            return
        self._said.add(kind)
        advice = [f"{a.what} (saves {text(a.saves)})" if a.saves else a.what for a in self._advice(now, peak)]
        advice = ["find the line that keeps it: eb.leaks(step)"] * (kind == "growth") + advice
        lines = [f"step {self.count:,}: {said}.", *(f"  {n}. {what}" for n, what in enumerate(advice[:4], 1))]
        self.warnings.append((self.count, "\n".join(lines)))
        warnings.warn(self.warnings[-1][1], RuntimeWarning, stacklevel=4)

    def _advice(self, now, peak):
        said = Message(kind="host")
        if self.meter.device.type == "cuda":
            total, free = self.meter.driver()
            said = Message(
                kind="pytorch", gpu=self.meter.device.index, capacity=total, free=free, allocated=peak,
                cached=max(0, now[-1] - peak), process=now[-1],
            )  # fmt: skip
        return doctor(said, *self._run).advice

    def table(self) -> Table:
        """The most of each phase, what stood at the last step's end, and what grew."""
        rows = [[phase, *(text(size) for size in most)] for phase, most in self.most.items()]
        if self.count:
            rows.append(["at the last step's end", *(text(size) for size in self._last.end)])
        title = f"{self.meter.name}: {self.count:,} steps"
        if self.count >= WARM_UP + 3:
            title += f"; a step leaves {text(self.grown)} behind" if self.growing else "; nothing grows"
        return Table(["at most", *self.counts], rows, title)

    def figure(self):
        """The most of each step by count, and what stood at its end: matplotlib's figure, with its text as `alt`.

        Raises:
            ValueError: for fewer than two steps.
        """
        from .. import draw

        if len(self.steps) < 2:
            raise ValueError(f"Monitor.steps: {len(self.steps)}; allowed: two or more, to draw them")
        looks = {"requested": "requested", "allocated": "unsplit", "reserved": "cached"}
        curves = {}
        for number, count in enumerate(self.counts):
            most = [max(m[number] for m in step.phases.values()) for step in self.steps]
            curves[f"{count}, at most"] = looks.get(count, "other"), most
        curves[f"{self.counts[0]}, at the end"] = "other", [step.end[0] for step in self.steps]
        highest = max(max(values) for _, values in curves.values())
        near = self.limit if self.limit and self.limit <= 2 * highest else None
        unit, title = "GiB" if highest >= 2**30 else "MiB", f"Memory of {self.count:,} steps, {self.meter.name}"
        return draw.lines([step.number for step in self.steps], curves, "step", title, unit, capacity=near)

    def as_dict(self) -> dict:
        """As JSON holds it: whole bytes."""
        return {
            "device": str(self.meter.device), "counts": list(self.counts), "steps": self.count, "limit": self.limit,
            "most": {phase: list(most) for phase, most in self.most.items()}, "grown": self.grown, "growing": self.growing,
            "end": list(self._last.end), "warnings": self.warnings,
        }  # fmt: skip

    def __repr__(self):
        return repr(self.table()) if hasattr(self, "meter") else "Monitor(not begun)"

    def _repr_html_(self):
        return self.table()._repr_html_() if hasattr(self, "meter") else "Monitor(not begun)"

    # -- as a callback of Hugging Face's Trainer

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        """What `Trainer` calls first."""
        self.__enter__()

    def on_train_end(self, args, state, control, **kwargs) -> None:
        """What `Trainer` calls last; a run that dies does not come here: its next, or `with`, ends the listening."""
        self.__exit__()

    def __getattr__(self, name) -> Any:
        if name.startswith("on_"):
            return lambda *args, **kwargs: None  # events of `Trainer` that tell nothing of memory
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def _larger(before, most):
    return most if before is None else tuple(map(max, before, most))


def _merged(one, other):
    phases = {phase: _larger(one.phases.get(phase), most) for phase, most in other.phases.items()}
    return Step(other.number, one.phases | phases, other.end)


def _rate(one, other):
    """Bytes a step, from the end of one to the end of the other."""
    return (other.end[0] - one.end[0]) / max(1, other.number - one.number)


def _meter(device):
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError):
        wanted = torch.device("meta")  # none that is watched
    if wanted.type not in ("cuda", "cpu"):
        raise ValueError(f"Monitor.device: {checks.shown(str(device))}; allowed: a CUDA device, or cpu")
    if wanted.type == "cpu":
        return _Process()
    return _Cuda(torch.device("cuda", torch.cuda.current_device() if wanted.index is None else wanted.index))


class _Cuda:
    """The counters of PyTorch's allocator on a GPU: some microseconds, and no kernel is waited for. They count tensors alone."""

    counts, least = ("requested", "allocated", "reserved"), 1

    def __init__(self, device):
        self.device, self.name = device, f"GPU {device.index}"

    def read(self):
        """(bytes now, the most since the last read, retries so far)."""
        stats = torch.cuda.memory_stats_as_nested_dict(self.device)
        if not stats:  # before the first use of the GPU
            return (0, 0, 0), (0, 0, 0), 0
        torch.cuda.reset_peak_memory_stats(self.device)
        found = [stats[f"{count}_bytes"]["all"] for count in self.counts]
        return tuple(f["current"] for f in found), tuple(f["peak"] for f in found), stats["num_alloc_retries"]

    def driver(self):
        """(bytes of the GPU, free by the driver's count)."""
        free, total = torch.cuda.mem_get_info(self.device)
        return total, free

    def limit(self):
        """Bytes that PyTorch can reserve: the GPU's, without what others and this process's context have now."""
        total, free = self.driver()
        stats = torch.cuda.memory_stats_as_nested_dict(self.device)
        reserved = stats["reserved_bytes"]["all"]["current"] if stats else 0
        return min(free + reserved, int(total * torch.cuda.get_per_process_memory_fraction(self.device)))


class _Malloc(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]  # fmt: skip


class _Process:
    """A process on the CPU: what the C library has handed out and what it has, where glibc counts that; else what is resident."""

    device, name = torch.device("cpu"), "this process, on the CPU"
    #: A tensor that is kept takes the C library over 300 bytes, empty or not: `TensorImpl` and `StorageImpl`, in
    #: c10/core. Python and the libraries keep some tens of bytes a step that are nobody's leak.
    least = 256

    def __init__(self):
        self.counts = ("allocated", "reserved") if self._mallinfo else ("resident",)

    @cached_property
    def _mallinfo(self):
        try:
            function = ctypes.CDLL(None).mallinfo2
        except (AttributeError, OSError, TypeError):
            return None
        function.restype = _Malloc
        return function

    def read(self):
        """As a GPU's; what lived only between two reads is not seen."""
        if self._mallinfo:
            said = self._mallinfo()
            now = said.uordblks + said.hblkhd, said.arena + said.hblkhd
        else:
            now = (_resident(),)
        return now, now, 0

    def limit(self):
        """Bytes of the machine's memory, or of the container's."""
        try:
            whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (AttributeError, OSError, ValueError):
            return None
        try:
            return min(whole, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
        except (OSError, ValueError):
            return whole


def _resident():
    """Bytes of this process that are in memory; where the system does not say, the most that ever were."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        try:
            import resource
        except ImportError:
            raise ValueError(
                "Monitor.device: 'cpu' on a system that counts no memory; allowed: Linux, macOS, or a GPU"
            ) from None
        import sys

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
