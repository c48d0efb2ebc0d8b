"""One measurement, inside the worker: the reference step, warmed up, counted and timed.

Warm-up steps make the optimizer's states. One steady step is counted at each moment, with its allocations where a timeline is
wanted. Further steps are only timed.
"""

import gc
import math
import os
import platform
import re
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from .. import units
from ..ask.setup import Setup
from ..catalog import Model
from ..reference import GPT
from ..reference.adapters import as_it_is, package
from ..reference.loops.running import trainer_of
from ..reference.mesh.context import placed
from ..reference.saving import built, with_adapters
from ..reference.splitting import divided_loss
from ..reference.step import DTYPES
from ..reference.text import text_batch
from .devices import REHEARSED, check, recognize
from .learning import Learner, pretrain, training_batches, validation_batches
from .measurement import PHASES, SCHEMA, WITHIN
from .meters import Cpu, Cuda
from .rates import flops_of_step, tokens_of_step, utilization
from .recipe import Recipe
from .records import fingerprint
from .timeline import reduced, where

#: Skipped steps after which a measurement is given up; steps that are timed to estimate a training run.
SKIPS, PROBE = 24, 5
#: The vocabulary that the text needs: one token per byte value.
BYTES = 256
#: PyTorch's functions that return the sizes of its workspaces.
SIZES = ("cublas_workspace_size", "cublaslt_workspace_size")
#: Errors that mean the same as `torch.OutOfMemoryError`: whose memory ran out -> a pattern of the message.
OUT_OF_MEMORY = {
    "cuBLAS": r"CUBLAS_STATUS_ALLOC_FAILED",
    "cuDNN": r"CUDNN_STATUS_ALLOC_FAILED",
    "NCCL": r"(?s)(?=.*NCCL)(?=.*[Oo]ut of memory)",
    "the host's pinned memory": r"(?i)pin(ned)?[ _]memory.*out of memory|cudaHostAlloc.*out of memory",
    "CUDA": r"CUDA error: out of memory|cudaErrorMemoryAllocation",
    "the CPU": r"DefaultCPUAllocator: (can't allocate|not enough) memory",
}
#: The last pretrained weights of this process, on the host: several ways to fine-tune start from them.
LEARNED: dict[tuple, dict] = {}
#: What `torch._fused_sdp_choice` answers.
KERNELS = {0: "math", 1: "flash", 2: "memory-efficient", 3: "cudnn"}
#: Environment variables that change what the allocator or cuBLAS takes.
VARIABLES = (
    "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE", "TORCH_CUBLASLT_UNIFIED_WORKSPACE", "CUDA_MODULE_LOADING",
)  # fmt: skip


def find(device: str | None) -> torch.device:
    """The device of that name, by default the first GPU.

    Raises:
        ValueError: where it is no device's name, or PyTorch cannot use the device.
    """
    check(device)
    if device == "cpu":
        return torch.device("cpu")
    try:
        torch.cuda.init()
        number = torch.device(device or "cuda").index or 0
        torch.cuda.get_device_properties(number)
    except (AssertionError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise ValueError(
            f"measure.device: {device!r}, and PyTorch can use no such GPU here ({reason}): {_remedy(str(error))}; "
            "allowed: an NVIDIA GPU, or 'cpu', where the same step runs in the machine's own memory"
        ) from error
    return torch.device("cuda", number)


def _remedy(said):
    """What to do about an error of CUDA's initialization, in words."""
    if torch.version.cuda is None:
        return "this PyTorch is built without CUDA, so install one that is built with it"
    said = said.lower()
    if "driver" in said and "too old" in said:
        return f"update the driver, or install a PyTorch built for a CUDA older than {torch.version.cuda}"
    if any(words in said for words in ("no nvidia", "no cuda-capable", "no cuda gpus")):
        return "put one in this machine or make it visible (driver, container, CUDA_VISIBLE_DEVICES)"
    return f"this PyTorch sees {torch.cuda.device_count()} of them"


def describe(device: torch.device) -> dict:
    """The device: its name, its memory in bytes, and the catalog's name for it where it has one."""
    if device.type == "cpu":
        return {"name": platform.machine(), "type": "cpu", "gpu": None, "memory": None, "free": None, "driver": None}
    properties = torch.cuda.get_device_properties(device)
    name, memory = properties.name, properties.total_memory
    known = recognize(name, memory)
    free, capability = torch.cuda.mem_get_info(device)[0], f"{properties.major}.{properties.minor}"
    said = {"name": name, "type": "cuda", "gpu": known.name if known else None, "memory": memory, "free": free}
    return said | {"driver": _driver(), "capability": capability, "multiprocessors": properties.multi_processor_count}


def _driver():
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # NVML's Python binding is not a requirement, and its errors are its own
        return None


def settings(device: torch.device, tf32: bool) -> dict:
    """Set what decides which kernels run, the same on every machine; return these settings.

    On a GPU, attention uses the flash or the memory-efficient kernel: never cuDNN's, and the math kernel only where the GPU has no
    other (`attention_kernel`).
    """
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    kernels = torch.backends.cuda
    if device.type == "cuda":
        kernels.enable_cudnn_sdp(False)
        kernels.enable_math_sdp(False)
    else:
        torch.set_num_threads(1)  # several, beside other work, spend their time in waiting for one another
    sizes = SIZES if device.type == "cuda" else ()
    return {
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "allow_tf32": kernels.matmul.allow_tf32,
        "flash_sdp": kernels.flash_sdp_enabled(),
        "mem_efficient_sdp": kernels.mem_efficient_sdp_enabled(),
        "cudnn_sdp": kernels.cudnn_sdp_enabled(),
        "workspaces": {name: getattr(kernels, name)() for name in sizes if hasattr(kernels, name)},
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def attention_kernel(model: Model, setup: Setup, device: torch.device) -> str | None:
    """The name of PyTorch's kernel for attention on that GPU; None for eager attention, and on a CPU.

    GPUs before Ampere have no flash kernel, and for bf16 only the math kernel, which is then switched on.
    """
    if device.type == "cpu" or setup.attention == "eager":
        return None
    shape, heads = (min(setup.sequence, 128), model.head_width), (model.heads, model.kv_heads, model.kv_heads)
    how = {"device": device, "dtype": DTYPES[setup.dtypes.compute], "requires_grad": True}
    q, k, v = (torch.empty((1, number, *shape), **how) for number in heads)  # (1, A, S, D) each
    grouped = model.kv_heads < model.heads
    try:
        chosen = torch._fused_sdp_choice(q, k, v, None, setup.dropout, True, enable_gqa=grouped)
    except RuntimeError:  # "Invalid backend": none of those that are switched on
        chosen = -1
    if chosen not in KERNELS:
        torch.backends.cuda.enable_math_sdp(True)
    return KERNELS.get(chosen, "math")


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
    recipe=None,
) -> tuple[dict, bool]:
    """Measure one configuration.

    Args:
        warm_up, points, tf32, limit: as `measure`'s. steps: timed steps, may be 0. recipe: as `measure`'s, as a dict.
        seconds: that the timed steps may take; where they would take longer, fewer are taken, at least two.

    Returns:
        (what `Measurement.from_dict` takes, whether the process has no memory of the step left).
    """
    recipe = recipe and Recipe(**recipe)
    found = _told(model, setup, device, tf32, limit, recipe)
    if setup.adapters:
        package("peft", f"Setup.adapters: {setup.adapters}")  # its own constants are no part of the step
    meter = (Cpu if device.type == "cpu" else Cuda)(device, limit)
    found |= {"rounding": meter.rounding, "baseline": meter.now()["allocated"], "driver_before": meter.driver()}
    gc.disable()  # what a cycle keeps alive in one step, it shall keep alive in all
    session = _Session(model, setup, meter, found["baseline"], recipe)
    try:
        with meter.bounded(), divided_loss(setup):
            learned = session.pretrained()
            with meter.watching():
                session.prepare(warm_up, learned)
                found |= session.count(points)
            found |= session.learn(seconds) if recipe else session.time(steps, seconds)
    except (RuntimeError, MemoryError) as error:
        if not (whose := _whose(error)):
            raise
        return found | _out_of_memory(error, session, whose), False
    finally:
        gc.enable()
    found |= {"status": "measured", "retries": meter.retries(), "driver_used": meter.driver()}
    found |= {"reserved_at_end": meter.now()["reserved"], "segments": meter.segments()}
    found |= session.rates(found["device"]["gpu"])
    del session.trainer, session.batch
    found["workspace"] = meter.empty()
    return found, meter.now()["allocated"] == found["baseline"]


def _told(model, setup, device, tf32, limit, recipe) -> dict[str, Any]:
    """The fields that are known before the step: device, versions, settings. The settings are made here."""
    tokens = "prose" if recipe else "text" if model.vocabulary >= BYTES else "random"
    made = settings(device, tf32) | {"limit": limit, "tokens": tokens}
    cuda = device.type == "cuda"
    pretended = cuda and torch.cuda.get_device_name(device).startswith(REHEARSED)
    found: dict[str, Any] = {"schema": SCHEMA, "witness": "rehearse" if pretended else "measure"}
    found |= {"date": datetime.now(UTC).isoformat(timespec="seconds"), "fingerprint": fingerprint()}
    found["device"] = describe(device)
    found["versions"] = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
    found["versions"]["cudnn"] = torch.backends.cudnn.version() if cuda else None
    return found | {"settings": made | {"attention_kernel": attention_kernel(model, setup, device)}}


class _Session:
    """A trainer on a device, and the record of its steps."""

    def __init__(self, model, setup, meter, baseline, recipe=None):
        self.model, self.setup, self.meter, self.baseline, self.recipe = model, setup, meter, baseline, recipe
        self.stage, self.most = "model", dict.fromkeys(meter.most(), 0)
        self.losses, self.skipped, self.step_ms, self.last_ms, self.clocks = [], 0, [], 0.0, None

    def module(self):
        """The model on the device, the same at every call."""
        torch.manual_seed(self.recipe.seed if self.recipe else 0)
        make = built
        if self.setup.mesh.expert > 1:  # rank 0 alone; PyTorch's pipelines make a tensor where they are imported
            from ..reference.mesh.mixture import told
            from ..reference.mesh.trainer import held

            make = partial(held, mixture=told(self.model, self.setup))
        with torch.device(self.meter.device):
            module = make(self.model, self.setup)
            return module.initialize() if isinstance(module, GPT) else module

    def pretrained(self):
        """The pretrained weights, on the host; learning them is not measured."""
        setup, recipe = self.setup, self.recipe
        if not (recipe and recipe.pretrained):
            return {}
        key = self.model, setup.batch, setup.sequence, setup.attention, recipe.pretrained, recipe.clip, recipe.seed
        if key not in LEARNED:
            module = self.module()
            pretrain(module, self.model.vocabulary, setup, recipe)
            LEARNED.clear()
            LEARNED[key] = {name: tensor.cpu() for name, tensor in module.state_dict().items()}
            del module
            self.meter.empty()
        return LEARNED[key]

    def prepare(self, warm_up, learned):
        module = self.module()
        if learned:
            module.load_state_dict(learned)
        module = with_adapters(module, self.setup)
        kind = trainer_of
        if self.setup.mesh.context > 1 or self.setup.mesh.expert > 1:
            from ..reference.mesh.trainer import MeshTrainer as kind  # with PyTorch's pipelines
        with as_it_is(module, self.setup):
            self.trainer = Learner(module, self.setup, self.recipe) if self.recipe else kind(module, self.setup)
        gc.collect()  # a process's first `fully_shard` imports what keeps its callers' frames, and so whole weights
        self._batches()
        if self.setup.mesh.context > 1:
            self.batch = placed(self.batch, self.model.learned_positions - (self.model.positions or 0))
        for _ in range(warm_up):
            self.taken_step()

    def _batches(self):
        device, vocabulary, self.windows = self.meter.device, self.model.vocabulary, None
        if vocabulary < BYTES:
            self.batch = same_batch(vocabulary, self.setup, device)
            return
        recipe, setup = self.recipe, self.setup
        windows = training_batches(setup, recipe.seed) if recipe else text_batch(vocabulary, setup, "cpu")
        self.windows = windows  # the batch holds these and not `self`, which would hold itself so
        self.batch = lambda: tuple(tokens.to(device) for tokens in windows())

    def step(self, at=lambda moment: None):
        """Take one step; return whether it changed the weights. Loss scaling skips a step with infinite gradients."""
        scaler = self.trainer.scaler
        scale = scaler.get_scale() if scaler else 0
        start = self.meter.stamp()
        loss = self.trainer.step(self.batch, self._telling(at))
        (self.last_ms,) = self.meter.between([start, self.meter.stamp()])
        self._note(loss.item())
        taken = not scaler or scaler.get_scale() >= scale
        self.skipped += not taken
        if self.skipped > SKIPS:
            raise RuntimeError(f"{self.skipped} steps were skipped: gradients stay infinite at every loss scale")
        return taken

    def taken_step(self):
        """Take steps until one changes the weights; return its milliseconds."""
        while not self.step():
            pass
        return self.last_ms

    def _telling(self, at):
        """The function that a step calls at its moments: it calls `at`, and notes the stage for an out-of-memory error."""
        following = {"after_forward": "backward", "after_backward": "optimizer step", "after_step": "rest"}
        left, self.stage = self.setup.accumulation, "forward"

        def tell(moment):
            nonlocal left
            at(moment)
            left -= moment == "after_backward"
            self.stage = "forward" if moment == "after_backward" and left else following[moment]

        return tell

    def _note(self, loss):
        self.losses.append(loss if math.isfinite(loss) else None)

    def _see_most(self):
        """The peaks since the last call."""
        most = self.meter.most()
        self.most = {count: max(self.most[count], value) for count, value in most.items()}
        self.meter.restart()
        return most

    def peaks(self):
        """The most bytes of each of the meter's counts, of all steps so far."""
        self._see_most()
        return {f"{count}_peak": value for count, value in self.most.items()}

    def _peak(self):
        peaks = self.peaks()
        return {"peak": peaks["allocated_peak"] - self.baseline} | peaks

    def count(self, points):
        """Take a step: live bytes at each of its moments (in the last micro-batch), and the most in each phase.

        With `points` also the step's timeline, and where its peak is.
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
                    taken = self.step(at)
        finally:
            hook.remove()

        def said(count, names):
            return {name: seen[name][count] - self.baseline for name in names}

        found = {"phases": said("allocated", PHASES), "requested": said("requested", PHASES)}
        found["peaks"] = said("allocated", WITHIN)
        return found | (self._course(live, marks, points) if points else {})

    def _course(self, live, marks, points):
        live = [size - self.baseline for size in live]
        kept = reduced(live, points)
        history = {"allocations": len(live) - 1, "marks": dict(marks), "at": kept, "live": [live[i] for i in kept]}
        return {"peak_at": where(live.index(max(live)), marks), "history": history}

    def time(self, steps, seconds):
        """Take steps that are only timed; return the peaks, which include theirs."""
        self.meter.restart()
        if seconds and steps > 2:
            steps = max(2, min(steps, int(1e3 * seconds / max(self.last_ms, 1e-3))))
        if self.trainer.scaler or not self.windows:  # loss scaling waits for the GPU in every step
            while len(self.step_ms) < steps:
                self.step_ms.append(self.taken_step())
        elif steps:
            self._back_to_back(steps)
        return self._peak()

    def learn(self, seconds):
        """Take the rest of a recipe's steps, with validation losses in between; fewer where all would take too long."""
        self.meter.restart()
        trainer, asked = self.trainer, self.recipe
        before, fit = trainer.taken, asked.steps
        if seconds:  # the counted step was slow for being counted
            self._back_to_back(PROBE)
            fit = int(1e3 * seconds / max(statistics.median(self.step_ms), 1e-3))
        steps = min(asked.steps, max(fit, asked.warm_up + 1, 10 + PROBE))
        trainer.recipe = recipe = replace(asked, steps=steps, evaluations=min(asked.evaluations, steps))
        unseen, validation = validation_batches(self.setup, recipe.windows), []
        for number in range(1, recipe.evaluations + 1):
            until = steps * number // recipe.evaluations
            if until > trainer.taken:
                self._back_to_back(until - trainer.taken)
            timed = max(1, trainer.taken - before)  # those before were counted, and took longer for that
            each = sum(self.step_ms) / 1e3 / timed
            loss = trainer.evaluate(unseen)
            validation.append([trainer.taken, loss if math.isfinite(loss) else None, round(each * trainer.taken, 4)])
        learning = {"recipe": recipe.as_dict(), "asked": asked.steps, "validation": validation}
        return self._peak() | {"learning": learning}

    def _back_to_back(self, steps):
        """Take steps without waiting between them: tokens come from pinned host memory, losses are copied there."""
        device, count = self.meter.device, steps * self.setup.accumulation
        pinned = (lambda t: t.pin_memory()) if device.type == "cuda" else (lambda t: t)
        waiting = iter([tuple(pinned(tokens) for tokens in self.windows()) for _ in range(count)])
        losses = pinned(torch.empty(steps))

        def batch():
            return tuple(tokens.to(device, non_blocking=True) for tokens in next(waiting))

        if dist.is_initialized() and dist.get_backend() != "fake":
            dist.barrier()  # all ranks' clocks start with the slowest one's
        stamps = [self.meter.stamp()]
        for i in range(steps):
            losses[i].copy_(self.trainer.step(batch, self._telling(lambda moment: None)), non_blocking=True)
            stamps.append(self.meter.stamp())
        self.step_ms += self.meter.between(stamps)
        self.clocks = self.meter.clocks()
        for loss in losses.tolist():
            self._note(loss)

    def rates(self, gpu):
        """Time and the rates that follow from it; only the losses where no step was timed."""
        learned = {"loss": self.losses, "skipped_steps": self.skipped, "steps": len(self.step_ms)}
        if not self.step_ms:
            return learned
        milliseconds, tokens = statistics.median(self.step_ms), tokens_of_step(self.setup)
        flops = flops_of_step(self.model, tokens, self.setup.sequence)
        quartiles = statistics.quantiles(self.step_ms, n=4)[::2] if len(self.step_ms) > 3 else None
        learned |= {"step_ms": round(milliseconds, 3), "clocks": self.clocks, "flops": flops}
        learned["step_ms_quartiles"] = quartiles and [round(q, 3) for q in quartiles]
        learned["tokens_per_s"] = round(tokens / milliseconds * 1e3, 1)
        return learned | {"mfu": utilization(flops, milliseconds, gpu, self.setup)}


def same_batch(vocabulary: int, setup: Setup, device) -> Callable:
    """A function that gives the same random tokens at every call, and the next ones as targets: (B, S) each, int64.

    For vocabularies that are too small for the text's bytes.
    """
    generator, shape = torch.Generator(device), (setup.batch, setup.sequence)

    def batch():
        tokens = torch.randint(vocabulary, shape, device=device, generator=generator.manual_seed(0))
        return tokens, torch.roll(tokens, -1, dims=1)

    return batch


def _whose(error):
    """Whose memory ran out, by an error: PyTorch's allocator's, or a library's; None for another error."""
    if isinstance(error, torch.OutOfMemoryError):
        return "PyTorch"
    if isinstance(error, MemoryError):
        return "the CPU"
    return next((who for who, words in OUT_OF_MEMORY.items() if re.search(words, str(error))), None)


def _out_of_memory(error, session, whose="PyTorch"):
    """The fields of a measurement that ran out of memory: whose memory, bytes requested, bytes free, the stage, the peaks."""
    asked = re.search(r"[Tt]ried to allocate ([\d.]+) (bytes|KiB|MiB|GiB|TiB)", str(error))
    size = round(units.parse(f"{asked[1]} {asked[2].replace('bytes', 'B')}")) if asked else None
    out = {"requested": size, "free": session.meter.free(), "at": session.stage, "of": whose}
    return {"status": "oom", "out_of_memory": out, "retries": session.meter.retries()} | session.peaks()
