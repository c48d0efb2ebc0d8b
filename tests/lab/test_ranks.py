"""Many ranks at once, on the CPU over Gloo; the first of many alone; and what becomes of the others when one dies."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

import everybyte as eb
from everybyte import command
from everybyte.lab import Failed, Measurement, Worker, measure, measuring
from everybyte.lab.grid import grid
from everybyte.lab.ranks import group, run_as_rank

DYING = [sys.executable, "-u", str(Path(__file__).with_name("dies.py"))]
SETUP = eb.Setup(batch=2, sequence=16, attention="eager", optimizer="momentum", gpus=2, sharding="zero3")
#: FSDP's mesh lists the GPUs, 4 bytes each, in the CPU's memory: beside a GPU, but here with all the rest.
MESH = 4


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """What ranks exchange lies under this test's folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_command_measures_two_ranks(capsys, small, monkeypatch):
    monkeypatch.setattr(command.given, "model", {"small": small}.get)
    options = (
        "--batch 2 --sequence 16 --attention eager --optimizer momentum --gpus 2 --sharding zero3 --device cpu --json"
    )
    assert command.main(["measure", "small", *options.split()]) == 0
    said = json.loads(capsys.readouterr().out)
    trace = eb.dry_run(small, SETUP)
    assert said["settings"]["collectives"] == "gloo" and said["setup"] == SETUP.as_dict()
    late = max(trace.timeline()["communication"])  # Gloo's threads may let go of what they have sent a moment late
    assert 0 <= said["phases"]["rest"] - trace.phases["rest"] - 2 * MESH <= late
    assert 0 <= said["peak"] - trace.peak - 2 * MESH <= late
    first, second = said["ranks"]
    assert [first["rank"], second["rank"]] == [0, 1]
    assert first["loss"] != second["loss"] and first["peak"] == said["peak"]
    again = {name: value for name, value in said.items() if name != "check"}
    assert Measurement.from_dict(again).as_dict() == said


@pytest.mark.parametrize(("sharding", "gpus"), [("none", 8), ("zero1", 64), ("zero2", 3), ("zero3", 1024)])
def test_the_first_of_many_alone(small, sharding, gpus):
    setup = SETUP.replace(sharding=sharding, gpus=gpus)
    found, clean = run_as_rank(small, setup, torch.device("cpu"), warm_up=1, steps=1, points=0)
    trace, mesh = eb.dry_run(small, setup), MESH * gpus * setup.fsdp
    assert clean is not setup.fsdp  # the mesh is still there
    assert found["settings"]["collectives"] == "fake" and found["settings"]["gpus"] == gpus
    assert found["phases"] == {moment: size + mesh for moment, size in trace.phases.items()}
    assert found["peak"] == trace.peak + mesh


def test_more_gpus_than_there_are(small):
    with pytest.raises(ValueError, match=r"^Setup\.gpus: 64, and this machine has room for 8; allowed: .*alone"):
        measure(small, SETUP.replace(gpus=64), "cpu")


def test_another_number_than_torchruns(monkeypatch):
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "3", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"^Setup\.gpus: 2, and torchrun started 3"), group(SETUP, torch.device("cpu")):
        pass


def test_without_gloo(monkeypatch):
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.distributed, "is_backend_available", lambda name: False)
    with pytest.raises(ValueError, match=r"^Setup\.gpus: 2 need gloo, .*none"), group(SETUP, torch.device("cpu")):
        pass


def test_a_rank_that_dies_takes_the_others_along(small, folders, ends):
    start = time.monotonic()
    with pytest.raises(Failed, match=r"^of 2 ranks these died or were ended: 0, 1\n") as error:
        measuring.measure_ranks(small, SETUP, "cpu", 120, [*DYING, "dies", str(folders)], warm_up=2, steps=1, points=0)
    assert time.monotonic() - start < 60
    assert "SIGKILL" in str(error.value) or "-9" in str(error.value)
    pids = [int(path.read_text()) for path in (folders / "pids").iterdir()]
    assert len(pids) == 2 and all(ends(pid) for pid in pids)


#: Two workers, of which rank 0 waits in a collective and rank 1 answers as it is told.
CANNED = """
import json, os, sys
for line in sys.stdin:
    if json.loads(line)["ask"] == "gpus":
        print(json.dumps({"found": 2}), flush=True)
    elif os.environ["RANK"] == "1":
        print(sys.argv[1], flush=True)
"""


@pytest.fixture
def rank_1_says(small, monkeypatch):
    def measured(answer, timeout=60):
        command = [sys.executable, "-c", CANNED, json.dumps(answer)]
        monkeypatch.setattr(measuring, "Worker", lambda _=None, environment=None: Worker(command, environment))
        return measuring.measure_ranks(small, SETUP, "cpu", timeout)

    return measured


def test_a_rank_that_runs_out_of_memory_is_the_answer(rank_1_says, said):
    kept = ("schema", "model", "setup", "device", "date", "fingerprint", "allocated_peak", "reserved_peak", "retries")
    out = {name: said[name] for name in (*kept, "baseline", "versions", "settings")} | {"status": "oom"}
    out["out_of_memory"] = {"requested": 2, "free": 1, "at": "backward"}
    found = rank_1_says({"found": out, "clean": False})
    assert found.oom and found.ranks == [{"rank": 1, "status": "oom"}]


def test_a_rank_that_refuses_or_is_silent_ends_them_all(rank_1_says, said):
    with pytest.raises(ValueError, match=r"^Setup\.gpus: planted$"):
        rank_1_says({"error": "Setup.gpus: planted"})
    with pytest.raises(Failed, match=r"^the ranks gave no answer within 0\.5 s and were ended$"):
        rank_1_says({"found": said, "clean": True}, timeout=0.5)


def test_who_is_killed_leaves_no_rank_behind(small, folders, ends):
    code = (
        "import sys, tempfile; tempfile.tempdir = sys.argv[1]; import everybyte as eb; from everybyte import Mesh; from everybyte.lab import measuring;"
        f"measuring.measure_ranks(eb.Model(name='small', layers=1, width=8, heads=2, vocabulary=11, positions=40), eb.{SETUP!r},"
        f"'cpu', 600, [*{DYING!r}, 'hangs', sys.argv[1]], warm_up=2, steps=1, points=0)"
    )
    launcher = subprocess.Popen([sys.executable, "-c", code, str(folders)], stderr=subprocess.DEVNULL)
    try:
        until, noted = time.monotonic() + 60, folders / "pids"
        while not (noted.exists() and len([p for p in noted.iterdir() if p.read_text()]) == 2):
            assert time.monotonic() < until and launcher.poll() is None
            time.sleep(0.1)
    finally:
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
    for path in noted.iterdir():
        assert ends(int(path.read_text()), within=20)


def test_the_grid_has_many_gpus():
    sharded = grid(["sharding"])
    assert len(sharded) >= 12
    assert {c.setup.sharding for c in sharded} == {"none", "zero1", "zero2", "zero3"}
    assert {1, 2, 7, 8, 64, 1024} <= {c.setup.gpus for c in sharded}
    assert os.path.commonprefix([c.model.name for c in sharded]) == "gpt2"
