"""The measured step itself, on the CPU's real tensors: the dry run's bytes where the CPU takes CUDA's kernels."""

import json
import math

import pytest
import torch

import everybyte as eb
from everybyte.lab import Measurement, meters
from everybyte.lab import run as step
from everybyte.lab.measurement import model_as_dict
from everybyte.lab.rates import flops_of_step, utilization
from everybyte.reference import Trainer

CPU = torch.device("cpu")


def measured(model, setup, **options):
    options = {"warm_up": 1, "steps": 1} | options
    found, clean = step.run(model, setup, CPU, **options)
    found = json.loads(json.dumps(found | {"model": model_as_dict(model), "setup": setup.as_dict()}, allow_nan=False))
    return Measurement.from_dict(found), clean


def step_counters(model, setup):
    """Adam's: one fp32 number a weight tensor. On CUDA they stay in the CPU's memory, so a dry run does not count them."""
    if not setup.optimizer.startswith("adam"):
        return 0
    with torch.device("meta"):
        from everybyte.reference import GPT

        return 4 * len(list(GPT(model, setup).parameters()))


def norm_statistics(model, setup):
    """Layer norm's mean and reciprocal deviation of each token: CUDA keeps them in fp32, the CPU in the input's type."""
    return 2 * 2 * setup.batch * setup.sequence * (2 * model.layers + 1) if setup.precision.startswith("bf16") else 0


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"precision": "bf16"},
        {"optimizer": "momentum", "optimizer_impl": "loop"},
        {"optimizer": "adamw"},
        {"optimizer": "adamw", "precision": "bf16-master", "master_gradients": "both"},
        {"loss": "chunked", "loss_chunks": 3},
        {"accumulation": 3, "precision": "bf16"},
        {"checkpointing": "full"},
        {"checkpointing": "full", "attention": "flash", "accumulation": 2},
        {"checkpointing": "every-k"},
        {"checkpointing": "selective"},
    ],
)
def test_real_tensors_take_what_the_dry_run_counts(small, changes):
    setup = eb.Setup(**{"batch": 3, "sequence": 31, "attention": "eager", "optimizer": "sgd"} | changes)
    measurement, clean = measured(small, setup)
    trace = eb.dry_run(small, setup)
    counters, statistics = step_counters(small, setup), norm_statistics(small, setup)
    expected = {moment: size + counters for moment, size in trace.phases.items()}
    expected["after_forward"] -= statistics
    assert clean and trace.peak_at == "loss backward"
    assert measurement.phases == expected
    assert measurement.requested == measurement.phases
    assert measurement.peak == measurement.allocated_peak == trace.peak + counters - statistics
    assert measurement.peak == max(measurement.peaks.values())
    assert measurement.peak_at == trace.peak_at
    assert measurement.history["live"][0] == measurement.phases["rest"]
    assert max(measurement.history["live"]) == measurement.peak
    compared = eb.compare(trace, measurement)
    assert compared.agree is (counters == statistics == 0)
    assert set(measurement.phases) | {"peak"} <= set(compared.differences)


@pytest.mark.parametrize(
    ("changes", "peak_at"),
    [({"batch": 1, "sequence": 1, "optimizer": "adamw"}, "optimizer step"), ({"batch": 16, "sequence": 8}, "backward")],
)
def test_the_words_for_the_peak_are_the_dry_run_s(small, changes, peak_at):
    narrow = small.replace(vocabulary=11, layers=3)
    setup = eb.Setup(**{"attention": "eager", "optimizer": "sgd"} | changes)
    assert measured(narrow, setup)[0].peak_at == eb.dry_run(narrow, setup).peak_at == peak_at


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "fp16-mixed", "bf16-master"])
def test_the_step_trains_in_every_precision(small, precision):
    setup = eb.Setup(batch=2, sequence=16, precision=precision, dropout=0.1)
    measurement, _ = measured(small, setup, steps=3)
    assert measurement.status == "measured" and measurement.steps == 3
    assert len(measurement.loss) == 1 + 1 + 3 + measurement.skipped_steps
    assert abs(measurement.loss[0] - math.log(small.vocabulary)) < 0.5
    assert measurement.loss[-1] < measurement.loss[0] - 0.01
    assert measurement.step_ms > 0 and measurement.mfu is None and measurement.rounding == 1
    assert measurement.tokens_per_s == pytest.approx(32e3 / measurement.step_ms, rel=1e-2)


def test_steps_that_loss_scaling_skips_are_not_the_one_that_is_counted(monkeypatch, small):
    original, steps = step.GPT.initialize, []

    def overflowing(module):
        original(module)
        module.norm.register_forward_hook(
            lambda _m, _i, out: out * (float("inf") if steps.append(0) or len(steps) < 4 else 1)
        )
        return module

    monkeypatch.setattr(step.GPT, "initialize", overflowing)
    setup = eb.Setup(batch=1, sequence=8, precision="fp16-mixed", attention="eager")
    measurement, _ = measured(small, setup)
    assert measurement.skipped_steps == 3 and measurement.loss[:3] == [None] * 3 and None not in measurement.loss[3:]
    assert measurement.phases["rest"] > 3 * 4 * small.parameters  # Adam's states are there


def test_without_a_timeline_nothing_is_said_of_the_peak_s_place(small, tiny):
    measurement, _ = measured(small, tiny, points=0)
    assert measurement.history is None and measurement.peak_at is None and measurement.peak > 0


def test_a_timeline_is_cut_to_so_many_points(small, tiny):
    measurement, _ = measured(small, tiny, points=20)
    assert len(measurement.history["live"]) <= 20 < measurement.history["allocations"]
    assert max(measurement.history["live"]) == measurement.peak


@pytest.mark.parametrize(("part", "stage"), [(0.05, "model"), (0.4, "forward"), (0.95, "backward")])
def test_out_of_memory_is_a_result(small, part, stage):
    setup = eb.Setup(batch=8, sequence=40, attention="eager", optimizer="sgd")
    limit = int(measured(small, setup)[0].peak * part)
    measurement, clean = measured(small, setup, limit=limit)
    assert measurement.status == "oom" and measurement.oom and not clean
    assert measurement.out_of_memory["at"] == stage
    assert measurement.out_of_memory["requested"] > measurement.out_of_memory["free"] >= 0
    assert measurement.allocated_peak <= limit
    assert measurement.phases is None and measurement.as_dict()["phases"] == {} and measurement.peak is None
    assert "out of memory in " + stage in repr(measurement) and "everybyte fit" in repr(measurement)


@pytest.mark.skipif(meters.available() is None, reason="nothing here says how much memory is free")
def test_what_a_machine_has_not_is_refused_before_a_kernel_ends_somebody(monkeypatch, small):
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    monkeypatch.setattr(meters, "available", lambda: 2**28)
    measurement, _ = measured(small, eb.Setup(batch=2**15, sequence=40, attention="eager", optimizer="sgd"))
    assert measurement.oom and measurement.out_of_memory["of"] == "the CPU"
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.parametrize(
    ("text", "whose"),
    [
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "cuBLAS"),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "cuDNN"),
        ("NCCL Error 1: unhandled cuda error\nCuda failure 2 'out of memory'", "NCCL"),
        ("CUDA error: out of memory\nCUDA kernel errors might be reported later", "CUDA"),
        ("CUDA error: an illegal memory access was encountered", None),
        ("CUDA error: device-side assert triggered", None),
    ],
)
def test_a_library_that_runs_out_of_memory_is_named(monkeypatch, small, tiny, text, whose):
    def fails(*_):
        raise RuntimeError(text)

    monkeypatch.setattr(Trainer, "step", fails)
    if whose is None:
        with pytest.raises(RuntimeError, match="CUDA error"):
            measured(small, tiny)
        return
    measurement, clean = measured(small, tiny)
    assert measurement.oom and not clean and measurement.out_of_memory["of"] == whose


def test_the_machine_s_own_memory_that_runs_out_is_a_result(small, tiny):
    vast = small.replace(vocabulary=2**24, width=3 * 2**20)  # 211 TB, which no machine gives
    measurement, clean = measured(vast, tiny)
    assert measurement.oom and not clean
    assert measurement.out_of_memory == {
        "requested": 4 * 2**24 * 3 * 2**20,
        "free": None,
        "at": "model",
        "of": "the CPU",
    }


def test_the_second_batch_s_forward_is_a_forward(small):
    """It has the first one's gradients beside it, and so may run out of memory where the first did not."""
    narrow = small.replace(vocabulary=11)
    setup = eb.Setup(batch=1, sequence=1, attention="eager", optimizer="sgd", accumulation=2)
    alone = measured(narrow, setup.replace(accumulation=1))[0].peak
    measurement, _ = measured(narrow, setup, limit=alone + 100)
    assert measurement.oom and measurement.out_of_memory["at"] == "forward"
    both = measured(narrow, setup)[0]
    assert both.peaks["forward"] > alone + 100 and both.phases["after_forward"] > both.phases["rest"] + 4 * 50_000


def test_no_more_steps_are_timed_than_there_is_time_for(small, tiny):
    assert measured(small, tiny, steps=9, seconds=1e-9)[0].steps == 2
    assert measured(small, tiny, steps=9, seconds=1e9)[0].steps == 9


def test_what_it_trains_on(small, tiny):
    measurement, _ = measured(small, tiny, steps=4)
    assert measurement.settings["tokens"] == "text" and len(set(measurement.loss)) == len(measurement.loss)
    measurement, _ = measured(small.replace(vocabulary=255), tiny)
    assert measurement.settings["tokens"] == "random"


@pytest.mark.parametrize(
    ("said", "built", "remedy"),
    [
        ("Torch not compiled with CUDA enabled", None, "install one that is built with it"),
        ("The NVIDIA driver on your system is too old (found version 11040).", "13.0", "update the driver"),
        ("Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU", "13.0", "put one in this"),
        ("No CUDA GPUs are available", "13.0", "make it visible"),
        ("CUDA error: invalid device ordinal", "13.0", "sees 1 of them"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_explained_in_one_sentence(monkeypatch, said, built, remedy):
    def fails():
        raise RuntimeError(said)

    monkeypatch.setattr(torch.cuda, "init", fails)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.version, "cuda", built)
    with pytest.raises(ValueError, match=r"^measure\.device: None, and PyTorch can use no such GPU here \(") as error:
        step.find(None)
    assert remedy in str(error.value) and "\n" not in str(error.value) and "'cpu'" in str(error.value)


def test_the_flops_of_a_step():
    # By hand: 6 * 124M = 746.6 MFLOP a token without the 786,432 positions' weights, and 12 * 12 * 768 * 1024 for attention.
    per_token = 6 * (124439808 - 1024 * 768) + 12 * 12 * 768 * 1024
    assert flops_of_step(eb.model("gpt2"), 8192, 1024) == 8192 * per_token
    untied = eb.model("gpt2").replace(name="untied", tied=False)
    assert flops_of_step(untied, 8192, 1024) == 8192 * per_token
    active = 12_879_925_248 - 32_000 * 4096  # Mixtral's published 12.9 B, less the table that is only looked up
    assert flops_of_step(eb.model("mixtral-8x7b", code="reference"), 1, 512) == 6 * active + 12 * 32 * 4096 * 512
    mixed = eb.Setup(precision="bf16-mixed")
    assert utilization(989_400_000_000, 2.0, "h100-80gb", mixed) == 0.5
    assert utilization(10, 2.0, "h100-80gb", eb.Setup()) is None
    assert utilization(10, 2.0, None, mixed) is None


def test_every_step_has_the_same_tokens():
    batch = step.same_batch(1001, eb.Setup(batch=2, sequence=5), "cpu")
    (tokens, targets), (again, _) = batch(), batch()
    assert torch.equal(tokens, again) and tokens.shape == (2, 5) and tokens.dtype is torch.int64
    assert torch.equal(targets[:, :-1], tokens[:, 1:])


class Allocator(meters._Counter):
    """What `torch.cuda` says, said by a counter of CPU storages in blocks of 512 B, for the meter of CUDA to ask."""

    def __init__(self):
        super().__init__(None)
        self.events, self.noting, self.reserved, self.marked = [], False, 0, []

    def _follow(self, storage):
        super()._follow(storage)
        if self.noting:
            self.events.append({"action": "alloc", "size": storage.nbytes()})
        self.sizes = getattr(self, "sizes", {}) | {storage._cdata: storage.nbytes()}

    def _freed(self, address):
        super()._freed(address)
        size = self.sizes.pop(address)
        if self.noting:
            self.events += [{"action": a, "size": size} for a in ("free_requested", "free_completed")]

    def stats(self, _device):
        said = {"num_alloc_retries": 3, "allocation.all.allocated": self.allocations, "segment.all.current": 1}
        for count in meters.COUNTS:
            said |= {f"{count}_bytes.all.current": self.live, f"{count}_bytes.all.peak": self.most}
        return said

    def snapshot(self):
        blocks = [{"state": "active_allocated", "requested_size": size} for size in self.sizes.values()]
        return {"segments": [{"device": None, "blocks": blocks}], "device_traces": {None: self.events}}


class Event:
    recorded = 0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        Event.recorded += 1
        self.time, self.done = Event.recorded, False

    def synchronize(self):
        self.done = True

    def elapsed_time(self, end):
        assert end.done
        return 2.0 * (end.time - self.time)


@pytest.fixture
def cuda(monkeypatch):
    """The meter of CUDA on a machine that has none: every name it uses exists, and is asked at the right moments."""
    allocator, cuda = Allocator(), torch.cuda
    monkeypatch.setattr(step, "Cpu", meters.Cuda)
    fakes = {
        "get_device_properties": lambda d: type("Properties", (), {"total_memory": 8 * 1024**3}),
        "set_device": lambda d: None,
        "set_per_process_memory_fraction": lambda fraction, d: allocator.marked.append(fraction),
        "synchronize": lambda d: None,
        "memory_stats": allocator.stats,
        "reset_peak_memory_stats": lambda d: setattr(allocator, "most", allocator.live),
        "empty_cache": lambda: None,
        "mem_get_info": lambda d: (7 * 1024**3, 8 * 1024**3),
        "Event": Event,
    }
    for name, fake in fakes.items():
        assert hasattr(cuda, name)
        monkeypatch.setattr(cuda, name, fake)
    monkeypatch.setattr(cuda.memory, "_snapshot", allocator.snapshot)
    monkeypatch.setattr(
        cuda.memory, "_record_memory_history", lambda enabled, **_: setattr(allocator, "noting", bool(enabled))
    )
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None, raising=False)
    return allocator


def test_the_meter_of_cuda(cuda, small):
    setup = eb.Setup(batch=3, sequence=31, attention="eager", optimizer="sgd")
    with cuda:
        measurement, clean = measured(small, setup, steps=0, limit=2 * 1024**3)
    trace = eb.dry_run(small, setup)
    assert (
        clean and measurement.rounding == 512 and measurement.phases == trace.phases and measurement.peak == trace.peak
    )
    assert measurement.steps == 0 and measurement.step_ms is None and not measurement.timed
    assert measurement.retries == 0 and cuda.marked == [0.25]
    assert measurement.driver_used == {"cuda": 1024**3, "nvml": None}
    assert measurement.peak_at == trace.peak_at and not cuda.noting
    rounded = eb.dry_run(small, setup, rounding=512)
    assert max(measurement.history["live"]) == rounded.peak
    assert measurement.history["live"][0] == rounded.phases["rest"]


def test_steps_are_timed_back_to_back_by_cuda_s_events(cuda, small):
    setup = eb.Setup(batch=3, sequence=31, attention="eager", optimizer="sgd")
    with cuda:
        measurement, _ = measured(small, setup, steps=5)
    assert measurement.steps == 5 and measurement.step_ms == 2.0 and measurement.step_ms_quartiles == [2.0, 2.0]
    assert len(measurement.loss) == 1 + 1 + 5 and len(set(measurement.loss)) == 7  # each window is another
    assert cuda.marked == [1.0]  # no limit is left over from another measurement


def test_a_limit_ends_with_its_measurement_in_a_worker_that_goes_on(cuda, small):
    setup = eb.Setup(batch=3, sequence=31, attention="eager", optimizer="sgd")
    with cuda:
        for limit in (2 * 1024**3, None):
            measured(small, setup, steps=0, limit=limit)
    assert cuda.marked == [0.25, 1.0]


def test_running_out_on_cuda(cuda, small):
    setup = eb.Setup(batch=3, sequence=31, attention="eager", optimizer="sgd")
    cuda.limit = 1_500_000
    with cuda:
        measurement, clean = measured(small, setup)
    assert measurement.oom and not clean and measurement.out_of_memory["free"] == 7 * 1024**3
    with torch.no_grad():
        limited = meters.Cuda(CPU, limit=cuda.live + 1000)
    assert limited.free() == 1000


@pytest.mark.parametrize(
    ("text", "requested"),
    [
        (
            "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 139.81 GiB of which",
            1610612736,
        ),
        ("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0", 20 * 1024**2),
        ("Tried to allocate 512 bytes", 512),
        ("something else", None),
    ],
)
def test_what_was_asked_for_is_read_from_the_message(cuda, small, tiny, text, requested):
    session = step._Session(small, tiny, meters.Cpu(CPU, None), 0)
    assert step._out_of_memory(RuntimeError(text), session)["out_of_memory"]["requested"] == requested


@pytest.mark.parametrize("name", ["llama-3.2-1b", "mixtral-8x7b"])
def test_a_llama_is_measured_too(name):
    sizes = {"layers": 1, "width": 64, "heads": 4, "kv_heads": 2, "head_width": 16, "ffn_width": 64, "vocabulary": 300}
    more = {"expert_width": 64, "experts": 4} if "mixtral" in name else {}
    model = eb.model(name, code="reference").replace(name="small", positions=32, **sizes, **more)
    setup = eb.Setup(batch=2, sequence=32, optimizer="sgd")
    found, clean = measured(model, setup, points=0)
    assert clean and found.model == model and found.settings["attention_kernel"] is None
    counted = eb.dry_run(model, setup)
    assert [found.phases[name] - counted.phases[name] for name in ("rest", "after_backward", "after_step")] == [0, 0, 0]
    assert all(loss > 0 for loss in found.loss)
