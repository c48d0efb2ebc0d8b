"""The tracker held against what shares no code with it: MemTracker, autograd's own hooks, PyTorch's profiler."""

from dataclasses import replace
from functools import partial
from unittest import mock

import pytest
import referee
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import everybyte as eb
from everybyte.dryrun import answers, cuda, tracker
from everybyte.dryrun.autocast import autocast_as_on_cuda
from everybyte.dryrun.cuda import Kernels
from everybyte.dryrun.workload import of_reference
from everybyte.reference import GPT, Llama, Trainer
from everybyte.reference.step import random_batch

SMALL = eb.Model(name="small", layers=2, width=48, heads=3, vocabulary=1001, positions=40)
#: Scores, and not logits, are what it has most of.
NARROW = SMALL.replace(vocabulary=11, layers=3)
LLAMA = eb.Model(
    name="llama", layers=2, width=48, heads=6, kv_heads=6, vocabulary=1001, positions=40, learned_positions=0, gated=True,
    fused=False, tied=False, qkv_bias=False, out_bias=False, ffn_bias=False, norm="rmsnorm",
)  # fmt: skip
CPU = torch.device("cpu")


def step_counters(model, setup):
    """Bytes of Adam's step counters, one fp32 number a weight tensor: on CUDA they stay in the CPU's memory."""
    if setup.optimizer not in ("adam", "adamw"):
        return 0
    with torch.device("meta"):
        return 4 * len(list(GPT(model, setup).parameters()))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("attention", ["eager", "flash"])
@pytest.mark.parametrize(
    ("optimizer", "impl"), [("sgd", "loop"), ("momentum", "foreach"), ("adamw", "foreach"), ("adamw", "loop")]
)
@pytest.mark.parametrize(
    ("model", "batch", "sequence"),
    [(SMALL, 3, 31), (SMALL.replace(tied=False, qkv_bias=False), 2, 32), (NARROW, 16, 8), (SMALL, 1, 1)],
)
def test_mem_tracker_counts_the_same_bytes(monkeypatch, model, batch, sequence, attention, optimizer, impl):
    setup = eb.Setup(batch=batch, sequence=sequence, optimizer=optimizer, optimizer_impl=impl, attention=attention)
    trace = eb.dry_run(model, setup)
    phases, peak = referee.mem_tracker(model, setup)
    counters = step_counters(model, setup)
    # CUDA's fp32 kernel pads the rows of log-sum-exp to 32; the CPU's does not.
    kernel = model.layers * 4 * batch * model.heads * (-sequence % 32) if attention == "flash" else 0
    expected = {moment: trace.phases[moment] + counters for moment in phases}
    expected["after_forward"] -= kernel
    assert phases == expected
    if trace.peak_at in ("loss backward", "optimizer step"):
        assert peak == trace.peak + counters - kernel * (trace.peak_at == "loss backward")
    elif attention == "eager":  # there gradients meet, and a dispatch mode keeps autograd from adding them in place
        monkeypatch.setattr(tracker, "sole_holder", lambda: None)
        monkeypatch.setattr(tracker, "SCRATCH", {})  # the CPU's softmax takes none in backward
        assert peak == eb.dry_run(model, setup).peak + counters


@pytest.mark.parametrize(
    ("model", "batch", "sequence", "changes", "peak_at"),
    [
        (SMALL, 3, 31, {}, "loss backward"),
        (SMALL, 1, 1, {}, "optimizer step"),
        (NARROW, 16, 8, {"optimizer": "sgd"}, "backward"),
    ],
)
def test_the_cases_of_mem_tracker_have_their_peaks_at_three_moments(model, batch, sequence, changes, peak_at):
    setup = eb.Setup(batch=batch, sequence=sequence, attention="eager", **changes)
    assert eb.dry_run(model, setup).peak_at == peak_at


@pytest.mark.parametrize("attention", ["eager", "flash"])
def test_no_residual_sized_tensor_more_in_backward(monkeypatch, attention):
    setup = eb.Setup(batch=2, sequence=40, attention=attention)

    def added(trace):
        return sum(a.operation == "add" and trace.operations[a.birth][1] == "backward" for a in trace.allocations)

    ours = added(eb.dry_run(SMALL, setup))
    monkeypatch.setattr(tracker, "sole_holder", lambda: None)
    assert ours == 1  # the tied embedding's two gradients
    assert added(eb.dry_run(SMALL, setup)) == 1 + 2 * SMALL.layers


def saved(make_loss, parameters):
    """Bytes of the storages that autograd saves for backward, each once, without the parameters'."""
    known, found = {p.untyped_storage()._cdata for p in parameters}, {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            found[storage._cdata] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = make_loss()
    return sum(found.values()), loss


def kept(trace):
    """Bytes of activations and loss after forward."""
    parts = trace.parts_at("after_forward")
    return parts["activations"] + parts["loss"]


@pytest.mark.parametrize("model", [SMALL, NARROW, SMALL.replace(norm_bias=False, tied=False)], ids=lambda m: m.name)
def test_autograd_saves_on_real_tensors_what_the_dry_run_counts(model):
    setup = eb.Setup(batch=3, sequence=31, attention="eager")
    module = GPT(model, setup)
    tokens, targets = random_batch(model.vocabulary, setup, "cpu")()
    bytes, loss = saved(lambda: module(tokens, targets), module.parameters())
    # Tokens, targets and positions are saved as indices; the loss itself is all that lives without being saved.
    assert bytes + loss.nbytes == kept(eb.dry_run(model, setup))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("attention", ["eager", "flash"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed", "fp16-mixed"])
def test_autograd_saves_with_cudas_choices_what_the_dry_run_counts(precision, attention, dropout):
    setup = eb.Setup(batch=3, sequence=31, precision=precision, attention=attention, dropout=dropout)
    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    casts = []

    with torch.device("meta"):
        module = GPT(SMALL, setup).to(dtypes[setup.dtypes.weights])
    tokens, targets = random_batch(SMALL.vocabulary, setup, "meta")()

    def forward():
        with Kernels(), autocast_as_on_cuda() as mode:
            if not setup.dtypes.autocast:
                return module(tokens, targets)
            with torch.autocast("cuda", dtypes[setup.dtypes.compute]):
                loss = module(tokens, targets)
                casts.extend(cast for weight, cast in mode.cache.values() if weight.dim() > 1)
            return loss

    bytes, loss = saved(forward, module.parameters())
    # Backward needs the matrices' casts, which are a part of their own, and not the biases'.
    trace = eb.dry_run(SMALL, setup)
    on_cpu = sum(a.bytes for a in trace.allocations if a.host)  # the fp32 kernel's random state
    assert on_cpu == (16 * SMALL.layers if (precision, attention) == ("fp32", "flash") else 0)
    assert bytes - on_cpu - sum(c.nbytes for c in casts) + loss.nbytes == kept(trace)


class Additions(TorchDispatchMode):
    """Every addition of two tensors that backward makes, as the dry run lets it through."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in ("add", "add_") and torch._C._current_autograd_node() is not None and not torch.is_grad_enabled():
            self.seen.append((name, list(args[0].shape)))
        return func(*args, **(kwargs or {}))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("attention", ["eager", "flash"])
@pytest.mark.parametrize("model", [SMALL, SMALL.replace(tied=False), SMALL.replace(layers=1)], ids=lambda m: m.name)
def test_autograd_adds_gradients_in_place_where_the_tracker_says_so(model, attention):
    setup = eb.Setup(batch=2, sequence=32, attention=attention, optimizer="sgd", optimizer_impl="loop")
    ours, real = additions(model, setup, GPT)
    assert ours == real
    assert [name for name, _ in real].count("add_") == 2 * model.layers
    assert [name for name, _ in real].count("add") == int(model.tied)


@pytest.mark.parametrize("attention", ["eager", "flash"])
@pytest.mark.parametrize("model", [LLAMA, LLAMA.replace(kv_heads=3)], ids=lambda m: f"{m.kv_heads} kv heads")
def test_autograd_adds_a_llamas_gradients_in_place_where_the_tracker_says_so(monkeypatch, model, attention):
    for function in (F.rms_norm, torch.rms_norm):  # the CPU has no kernel for it: many small operations
        monkeypatch.delitem(cuda._KERNELS, function)
    setup = eb.Setup(batch=2, sequence=32, attention=attention, optimizer="sgd", optimizer_impl="loop")
    ours, real = additions(model, setup, Llama)
    assert ours == real
    assert {name for name, _ in real} == {"add", "add_"}


def additions(model, setup, reference):
    """Each addition in backward, in order: as the dry run lets it through, and as a real step on the CPU makes it."""
    tracker.sole_holder()  # counted before there is a second mode
    with (
        Additions() as ours,
        mock.patch.object(answers, "_SLOW", set()),
    ):  # a remembered answer would not be let through
        eb.dry_run(model, setup)
    loss = reference(model, setup)(*random_batch(model.vocabulary, setup, "cpu")())
    with torch.profiler.profile(record_shapes=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        loss.backward()
    real = sorted(
        (e for e in profile.events() if e.name in ("aten::add", "aten::add_")), key=lambda e: e.time_range.start
    )
    real = [(e.name.removeprefix("aten::"), e.input_shapes[0]) for e in real]
    return ours.seen, real


class Warmed(Trainer):
    """Runs some whole steps before the one that is counted."""

    steps = taken = 0

    def step(self, batch, at):
        (mode,) = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
        for _ in range(self.steps):
            super().step(batch, at)
            Warmed.taken += 1
            mode.restart()
            mode.phase = "rest"
        return super().step(batch, at)


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(
    "setup",
    [
        eb.Setup(batch=2, sequence=8),
        eb.Setup(batch=2, sequence=8, precision="fp16-mixed", optimizer="momentum", dropout=0.1, attention="eager"),
        eb.Setup(batch=2, sequence=8, precision="bf16-master", master_gradients="fp32", optimizer_impl="fused"),
    ],
    ids=lambda s: s.precision,
)
def test_the_second_and_third_whole_steps_are_the_steady_step(monkeypatch, setup, steps):
    steady = eb.dry_run(SMALL, setup)
    monkeypatch.setattr("everybyte.dryrun.modules.of_reference", partial(of_reference, trains=Warmed))
    monkeypatch.setattr(Warmed, "steps", steps)
    monkeypatch.setattr(Warmed, "taken", 0)
    warmed = eb.dry_run(SMALL, setup)
    assert Warmed.taken == steps
    assert warmed.operations == steady.operations
    assert warmed.timeline() == steady.timeline()
    for block in (1, 512):
        assert replace(warmed, rounding=block).as_dict() == replace(steady, rounding=block).as_dict()


def test_two_dry_runs_say_the_same():
    setup = eb.Setup(batch=2, sequence=8, precision="fp16-mixed", dropout=0.1)
    first, second = (eb.dry_run(SMALL, setup) for _ in range(2))
    assert first.operations == second.operations
    assert first.allocations == second.allocations
