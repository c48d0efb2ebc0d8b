"""One measurement, inside the worker: the reference step, warmed up, counted, remembered, timed.

Warm-up steps bring the optimizer's states into being. One steady step is then counted, moment by moment, and, if asked for,
every allocation in it is noted; the rest are only timed.
"""

import gc
import math
import os
import platform
import re
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime

import torch

from .. import units
from ..catalog import Model
from ..reference import GPT, Trainer
from ..reference.text import text_batch
from ..setup import Setup
from .devices import recognize
from .measurement import SCHEMA
from .meters import Cpu, Cuda
from .rates import flops_of_step, tokens_of_step, utilization
from .records import fingerprint
from .timeline import reduced, where

#: Steps that loss scaling may skip, gradients being infinite, before a measurement is given up.
SKIPS = 24
#: How the name of a rehearsal's device begins.
REHEARSED = "rehearsed "
#: Tokens that the text needs.
BYTES = 256
#: Functions of PyTorch's that tell how large its workspaces are.
SIZES = ("cublas_workspace_size", "cublaslt_workspace_size")
#: Variables of the environment that change what an allocator or cuBLAS takes.
VARIABLES = (
    "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE", "TORCH_CUBLASLT_UNIFIED_WORKSPACE", "CUDA_MODULE_LOADING",
)  # fmt: skip


def find(device: str | None) -> torch.device:
    """The device of that name, by default the first GPU.

    Raises:
        ValueError: where PyTorch can use no such device.
    """
    if device == "cpu":
        return torch.device("cpu")
    try:
        torch.cuda.init()
        number = torch.device(device or "cuda").index or 0
        torch.cuda.get_device_properties(number)
    except (AssertionError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise ValueError(
            f"measure.device: {device!r}, and PyTorch can use no such GPU here ({reason}): {_remedy(str(error))}; allowed: "
            "an NVIDIA GPU, or 'cpu', where the same step runs in the machine's own memory"
        ) from error
    return torch.device("cuda", number)


def _remedy(said):
    """What to do about an error of CUDA's beginning, in words."""
    if torch.version.cuda is None:
        return "this PyTorch is built without CUDA, so install one that is built with it"
    said = said.lower()
    if "driver" in said and "too old" in said:
        return f"update the driver, or install a PyTorch built for a CUDA older than {torch.version.cuda}"
    if any(words in said for words in ("no nvidia", "no cuda-capable", "no cuda gpus")):
        return "put one in this machine or make it visible (driver, container, CUDA_VISIBLE_DEVICES)"
    return f"this PyTorch sees {torch.cuda.device_count()} of them"


def rehearsed(device: torch.device) -> bool:
    """Whether the device is a rehearsal's: PyTorch's CUDA code runs on it, and no kernel."""
    return device.type == "cuda" and torch.cuda.get_device_name(device).startswith(REHEARSED)


def describe(device: torch.device) -> dict:
    """The device: its name, its memory in bytes, and the catalog's name for it where it has one."""
    if device.type == "cpu":
        return {"name": platform.machine(), "type": "cpu", "gpu": None, "memory": None, "free": None, "driver": None}
    properties = torch.cuda.get_device_properties(device)
    known = recognize(properties.name, properties.total_memory)
    return {
        "name": properties.name,
        "type": "cuda",
        "gpu": known.name if known else None,
        "memory": properties.total_memory,
        "free": torch.cuda.mem_get_info(device)[0],
        "driver": _driver(),
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
    }


def _driver():
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # NVML's Python binding is not a requirement, and its errors are its own
        return None


def settings(device: torch.device, tf32: bool) -> dict:
    """Set what changes kernels, the same everywhere, and say so.

    On a GPU attention takes the flash kernel or the memory-efficient one, as the book says: not cuDNN's, never the scores.
    """
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    kernels = torch.backends.cuda
    if device.type == "cuda":
        kernels.enable_cudnn_sdp(False)
        kernels.enable_math_sdp(False)
    else:
        torch.set_num_threads(1)  # several, beside other work, spend their time in waiting for one another
    return {
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "allow_tf32": kernels.matmul.allow_tf32,
        "flash_sdp": kernels.flash_sdp_enabled(),
        "mem_efficient_sdp": kernels.mem_efficient_sdp_enabled(),
        "cudnn_sdp": kernels.cudnn_sdp_enabled(),
        "workspaces": {
            name: getattr(kernels, name)() for name in SIZES if device.type == "cuda" and hasattr(kernels, name)
        },
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def run(
    model: Model,
    setup: Setup,
    device: torch.device,
    *,
    warm_up=2,
    steps=5,
    seconds=None,
    points=160,
    tf32=False,
    limit=None,
) -> tuple[dict, bool]:
    """Measure one configuration.

    Args:
        warm_up, steps: how many steps to take before, and how many to time.
        seconds: after so many, two timed steps are enough.
        points: the most places of the timeline that are kept; 0 for no timeline.
        tf32: whether fp32 matrix products may use it.
        limit: bytes that the step may take.

    Returns:
        What `Measurement.from_dict` takes, and whether the process is as before: nothing of the step lives.
    """
    found = {
        "schema": SCHEMA,
        "witness": "rehearse" if rehearsed(device) else "measure",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "fingerprint": fingerprint(),
        "device": describe(device),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version() if device.type == "cuda" else None,
        },
        "settings": settings(device, tf32)
        | {"limit": limit, "tokens": "text" if model.vocabulary >= BYTES else "random"},
    }
    meter = (Cpu if device.type == "cpu" else Cuda)(device, limit)
    found |= {"block": meter.block, "baseline": meter.now()["allocated"], "driver_before": meter.driver()}
    gc_was_on = gc.isenabled()
    gc.disable()  # what a cycle keeps alive in one step, it shall keep alive in all
    session = _Session(model, setup, meter, found["baseline"])
    try:
        with meter.watching():
            session.prepare(warm_up)
            found |= session.count(points)
        found |= session.time(steps, seconds)
    except torch.OutOfMemoryError as error:
        return found | _out_of_memory(error, session, meter), False
    finally:
        if gc_was_on:
            gc.enable()
    found |= {"status": "measured", "retries": meter.retries(), "driver_used": meter.driver()}
    found["segments"] = meter.segments()
    found |= session.rates(found["device"]["gpu"])
    del session.trainer, session.batch
    found["workspace"] = meter.empty()
    return found, meter.now()["allocated"] == found["baseline"]


class _Session:
    """A trainer on a device, and what was seen of its steps."""

    def __init__(self, model, setup, meter, baseline):
        self.model, self.setup, self.meter, self.baseline = model, setup, meter, baseline
        self.stage = "model"
        self.losses, self.skipped, self.step_ms, self.most = [], 0, [], dict.fromkeys(meter.most(), 0)

    def prepare(self, warm_up):
        torch.manual_seed(0)
        with torch.device(self.meter.device):
            module = GPT(self.model, self.setup).initialize()
        self.trainer = Trainer(module, self.setup)
        gc.collect()  # a process's first `fully_shard` imports what keeps its callers' frames, and with them whole weights
        self.batch = self._batches()
        for _ in range(warm_up):
            self.taken_step()

    def _batches(self):
        make = text_batch if self.model.vocabulary >= BYTES else same_batch
        return make(self.model.vocabulary, self.setup, self.meter.device)

    def step(self, at=lambda moment: None):
        """One step; (milliseconds, whether the weights changed: loss scaling skips a step whose gradients are infinite)."""
        scaler = self.trainer.scaler
        scale = scaler.get_scale() if scaler else 0
        following = {"after_forward": "backward", "after_backward": "optimizer step", "after_step": "rest"}
        left = self.setup.accumulation

        def tell(moment):
            nonlocal left
            at(moment)
            left -= moment == "after_backward"
            self.stage = "forward" if moment == "after_backward" and left else following[moment]

        self.stage = "forward"
        with self.meter.clock() as elapsed:
            loss = self.trainer.step(self.batch, tell)
        loss = loss.item()
        self.losses.append(loss if math.isfinite(loss) else None)
        taken = not scaler or scaler.get_scale() >= scale
        self.skipped += not taken
        return elapsed[0], taken

    def taken_step(self):
        """Steps until one changes the weights: its milliseconds."""
        while True:
            elapsed, taken = self.step()
            if taken:
                return elapsed
            self._check_skipped()

    def _check_skipped(self):
        if self.skipped > SKIPS:
            raise RuntimeError(f"{self.skipped} steps were skipped: gradients stay infinite at every loss scale")

    def _see_most(self):
        """The most bytes since it was last asked."""
        most = self.meter.most()
        self.most = {count: max(self.most[count], value) for count, value in most.items()}
        self.meter.restart()
        return most

    def count(self, points):
        """The live bytes at each moment of a step, with several batches at the last one's, and the most in each phase.

        With `points` also the step's timeline, and where in it the peak is.
        """
        phases = {"after_forward": "forward", "after_backward": "backward", "after_step": "step"}
        seen, marks = {}, []

        def mark(moment):
            marks.append((moment, self.meter.allocations() - start))

        def at(moment):
            mark(moment)
            seen[moment], most = self.meter.now(), self._see_most()
            before = seen.get(phases[moment], most)
            seen[phases[moment]] = {count: max(before[count], value) for count, value in most.items()}

        def after_last_norm(_module, _inputs, out):
            mark("loss")
            out.register_hook(lambda _gradient: mark("loss_done"))

        hook = self.trainer.module.norm.register_forward_hook(after_last_norm)
        try:
            taken = False
            while not taken:
                seen, marks, start = {"rest": self.meter.now()}, [], self.meter.allocations()
                self.meter.restart()
                with self.meter.history() if points else nullcontext() as live:
                    _, taken = self.step(at)
                self._check_skipped()
        finally:
            hook.remove()

        def said(count, names):
            return {name: seen[name][count] - self.baseline for name in names}

        moments = ("rest", "after_forward", "after_backward", "step", "after_step")
        found = {
            "phases": said("allocated", moments),
            "requested": said("requested", moments),
            "peaks": said("allocated", ("forward", "backward", "step")),
        }
        return found | (self._course(live, marks, points) if points else {})

    def _course(self, live, marks, points):
        live = [size - self.baseline for size in live]
        kept = reduced(live, points)
        return {
            "peak_at": where(live.index(max(live)), marks),
            "history": {
                "allocations": len(live) - 1, "marks": dict(marks), "at": kept, "live": [live[i] for i in kept],
            },
        }  # fmt: skip

    def time(self, steps, seconds):
        """Steps that are only timed; what they take at most counts for the peaks too."""
        self.meter.restart()
        while len(self.step_ms) < steps and not (
            seconds and len(self.step_ms) > 1 and sum(self.step_ms) > 1e3 * seconds
        ):
            self.step_ms.append(self.taken_step())
        self._see_most()
        peaks = {f"{count}_peak": value for count, value in self.most.items()}
        return {"peak": peaks["allocated_peak"] - self.baseline} | peaks

    def rates(self, gpu):
        """Time, and what follows from it."""
        milliseconds = statistics.median(self.step_ms)
        tokens = tokens_of_step(self.setup)
        flops = flops_of_step(self.model, tokens, self.setup.sequence)
        return {
            "steps": len(self.step_ms),
            "step_ms": round(milliseconds, 3),
            "tokens_per_s": round(tokens / milliseconds * 1e3, 1),
            "flops": flops,
            "mfu": utilization(flops, milliseconds, gpu, self.setup),
            "loss": self.losses,
            "skipped_steps": self.skipped,
        }


def same_batch(vocabulary: int, setup: Setup, device) -> Callable:
    """Random tokens, the same in every step, and the same moved on by one as targets: (B, S) each, int64.

    For vocabularies that have no place for the text's bytes.
    """
    generator = torch.Generator(device)

    def batch():
        shape = setup.batch, setup.sequence
        tokens = torch.randint(vocabulary, shape, device=device, generator=generator.manual_seed(0))
        return tokens, torch.roll(tokens, -1, dims=1)

    return batch


def _out_of_memory(error, session, meter):
    """Running out is a result: what was asked for, what was free, when, and how far it had come."""
    asked = re.search(r"Tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB|TiB)", str(error))
    asked = round(units.parse(f"{asked[1]} {asked[2].replace('bytes', 'B')}")) if asked else None
    session._see_most()
    peaks = {f"{count}_peak": value for count, value in session.most.items()}
    out = {"requested": asked, "free": meter.free(), "at": session.stage}
    return {"status": "oom", "out_of_memory": out, "retries": meter.retries()} | peaks
