"""A measurement as a GPU would give it, made up for these tests alone: nothing here is a record."""

import copy
import time
from pathlib import Path

import pytest
import torch

import everybyte as eb
from everybyte.lab import fingerprint
from everybyte.lab.measurement import PHASES, model_as_dict

SMALL = eb.Model(name="small", layers=2, width=48, heads=3, vocabulary=1001, positions=40)
TINY = {"batch": 1, "sequence": 8, "attention": "eager", "optimizer": "sgd"}
SAID = {
    "schema": 1, "witness": "measure", "status": "measured", "oom": False, "model": model_as_dict(SMALL),
    "setup": eb.Setup(**TINY).as_dict(), "rounding": 512, "parts": {}, "phases": dict.fromkeys(PHASES, 1000),
    "requested": dict.fromkeys(PHASES, 900), "peaks": {"forward": 1500, "backward": 2000, "step": 1000}, "peak": 2000,
    "peak_at": "backward", "baseline": 0, "workspace": 0, "allocated_peak": 2000, "requested_peak": 1900,
    "active_peak": 2000, "reserved_peak": 4096, "retries": 0, "driver_before": {"cuda": 10, "nvml": None},
    "driver_used": {"cuda": 20, "nvml": None}, "steps": 5, "step_ms": 1.5, "tokens_per_s": 100.0, "flops": 12, "mfu": 0.25,
    "loss": [7.0, None, 6.5], "skipped_steps": 0, "device": {"name": "made up", "type": "cuda", "gpu": None, "memory": 1},
    "history": {"allocations": 3, "marks": {"loss": 1}, "at": [0, 3], "live": [1000, 2000]},
    "versions": {"torch": "0"}, "settings": {}, "date": "2001-01-01T00:00:00+00:00", "fingerprint": fingerprint(),
}  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """Small tensors on several threads, beside other tests, spend their time in waiting for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def small():
    return SMALL


@pytest.fixture
def tiny():
    return eb.Setup(**TINY)


@pytest.fixture
def said():
    return copy.deepcopy(SAID)


@pytest.fixture
def ends():
    """Whether a process that is not our child ends."""

    def ends(pid, within=10.0):
        until = time.monotonic() + within
        while time.monotonic() < until:
            try:
                state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0]
            except (FileNotFoundError, ProcessLookupError):
                return True
            if state == "Z":
                return True
            time.sleep(0.05)
        return False

    return ends
