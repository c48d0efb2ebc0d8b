"""Recording: what is interrupted loses only what was running, and what is there is not measured again."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import everybyte as eb
from everybyte.command import main
from everybyte.lab import Configuration, Worker, grid, process, read, record, recording
from everybyte.lab.measurement import Measurement

# A worker in place of ours, quick, with one canned answer: what is under test is who asks it, and what becomes of it.
CANNED = """
import json, os, sys, time
canned = json.loads(sys.argv[1])
for line in sys.stdin:
    request = json.loads(line)
    if request["ask"] == "device":
        print(json.dumps({"found": {"name": "Made Up 1", "type": "cuda", "gpu": None, "memory": 1000, "free": 900}}))
        continue
    batch = request["setup"]["batch"]
    open(sys.argv[2], "a").write(f"{os.getpid()} {batch}\\n")
    if batch == 13:
        sys.exit("planted: it died")
    if batch == 14:
        time.sleep(600)
    if batch == 15:
        print(json.dumps({"error": "planted: refused"}))
        continue
    time.sleep(0.3 if batch == 16 else 0)
    found = canned | {"model": request["model"], "setup": request["setup"]}
    if batch == 17:
        keep = ("schema", "device", "date", "fingerprint", "model", "setup", "versions", "settings", "baseline", "retries",
                "allocated_peak", "reserved_peak")
        found = {k: found[k] for k in keep} | {"status": "oom", "out_of_memory": {"requested": 9, "free": 1, "at": "forward"}}
    print(json.dumps({"found": found, "clean": batch not in (17, 18)}))
"""


@pytest.fixture
def asked(tmp_path):
    return tmp_path / "asked"


@pytest.fixture
def start(said, asked):
    return lambda: Worker([sys.executable, "-u", "-c", CANNED, json.dumps(said), str(asked)])


def steps(model, *batches):
    return [Configuration("test", model, eb.Setup(batch=batch, sequence=8)) for batch in batches]


def asked_for(path):
    return [tuple(map(int, line.split())) for line in path.read_text().splitlines()]


def test_one_worker_for_all_and_nothing_twice(tmp_path, small, start, asked):
    done = record(tmp_path / "out", configurations=steps(small, 1, 2, 3), start=start)
    assert done.path == tmp_path / "out" / "made-up-1.jsonl"
    assert (done.found, done.there, done.left, done.faults) == ({"measured": 3}, 0, 0, [])
    assert [m.setup.batch for m in read(done.path).measurements] == [1, 2, 3]
    assert len({pid for pid, _ in asked_for(asked)}) == 1
    again = record(tmp_path / "out", configurations=steps(small, 3, 4, 1), start=start)
    assert (again.found, again.there, again.left) == ({"measured": 1}, 2, 0)
    assert [batch for _, batch in asked_for(asked)] == [1, 2, 3, 4]
    assert "1 measured, 2 there before, 0 left" in str(again)


def test_light_steps_at_once_each_by_its_own_worker(tmp_path, small, start, asked):
    """Those whose memory alone is asked for, and that take little: without the driver's count, which is everybody's."""
    light, heavy = steps(small, 1, 16, 2, 13, 3), steps(small, 900)
    timed = [Configuration("test", small, eb.Setup(batch=4, sequence=8), steps=3)]
    need = lambda model, setup: setup.batch  # noqa: E731
    done = record(tmp_path, configurations=[*timed, *light, *heavy], start=start, need=need, jobs=2)
    assert (done.found, done.left) == ({"measured": 6, "failed": 1}, 0)
    found = {m.setup.batch: m for m in read(done.path).measurements}
    assert set(list(found)[:5]) == {1, 2, 3, 13, 16} and list(found)[5:] == [4, 900]
    assert [found[batch].driver_used is None for batch in (1, 16, 2, 3, 4, 900)] == [True] * 4 + [False] * 2
    assert len({pid for pid, batch in asked_for(asked) if batch < 17 and batch != 4}) > 1
    with pytest.raises(ValueError, match="record.jobs: 0"):
        record(tmp_path, configurations=light, start=start, jobs=0)


def test_of_another_reference_step_everything_is_measured_again(tmp_path, small, start, monkeypatch):
    record(tmp_path, configurations=steps(small, 1), start=start)
    monkeypatch.setattr(recording, "fingerprint", lambda: 64 * "0")
    assert record(tmp_path, configurations=steps(small, 1), start=start).found == {"measured": 1}


def test_what_dies_or_is_refused_is_told_and_the_grid_goes_on(tmp_path, small, start, asked):
    done = record(tmp_path, configurations=steps(small, 1, 13, 2, 15, 3), start=start)
    assert done.found == {"measured": 3, "failed": 2}
    found = {m.setup.batch: m for m in read(done.path).measurements}
    assert list(found) == [1, 13, 2, 15, 3]
    assert "exit status 1" in found[13].reason and "planted: it died" in found[13].reason
    assert found[15].reason == "planted: refused"
    pids = [pid for pid, _ in asked_for(asked)]
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]
    again = record(tmp_path, configurations=steps(small, 1, 13), start=start)
    assert (again.found, again.there) == ({"failed": 1}, 1)  # what failed is tried again


def test_after_out_of_memory_or_a_leftover_a_fresh_worker_takes_over(tmp_path, small, start, asked):
    done = record(tmp_path, configurations=steps(small, 1, 17, 18, 2), start=start)
    assert done.found == {"measured": 3, "oom": 1}
    assert len({pid for pid, _ in asked_for(asked)}) == 3
    assert read(done.path).measurements[1].oom
    assert record(tmp_path, configurations=steps(small, 17), start=start).there == 1


def test_a_step_that_is_timed_or_has_another_switch_is_another_measurement(tmp_path, small, start, asked):
    setup = eb.Setup(batch=1, sequence=8)
    plain, timed, rounded = (Configuration("test", small, setup, **how) for how in ({}, {"steps": 30}, {"tf32": True}))
    done = record(tmp_path, configurations=[plain, timed], start=start)
    assert done.found == {"measured": 2}
    again = record(tmp_path, configurations=[plain, timed, rounded], start=start)
    assert (again.there, again.found) == (2, {"measured": 1})
    assert [m.settings["asked"]["steps"] for m in read(done.path).measurements] == [0, 30, 0]


def test_segments_that_grow_have_a_worker_of_their_own(tmp_path, small, start, asked):
    environments = []

    def started(environment=None):
        environments.append(environment)
        return start()

    grow = [Configuration("test", small, eb.Setup(batch=b, sequence=8), expandable=b > 1) for b in (1, 2, 3)]
    assert record(tmp_path, configurations=grow, start=started).found == {"measured": 3}
    assert environments == [None, process.EXPANDABLE] and len({pid for pid, _ in asked_for(asked)}) == 2


def test_a_gpu_without_bf16_is_given_fp16_and_the_rest_is_skipped_with_the_reason(tmp_path, small, said, asked):
    canned = CANNED.replace('"free": 900', '"free": 900, "capability": "7.5"')

    def start():
        return Worker([sys.executable, "-u", "-c", canned, json.dumps(said), str(asked)])

    wanted = [
        Configuration("test", small, eb.Setup(batch=1, sequence=8, precision=p)) for p in ("bf16-mixed", "bf16", "fp32")
    ]
    done = record(tmp_path, configurations=wanted, start=start)
    assert done.found == {"measured": 2, "skipped": 1}
    first, skipped, _ = read(done.path).measurements
    assert first.setup.precision == "fp16-mixed" and skipped.reason.startswith("Made Up 1 has no units for bf16")


def test_one_that_hangs_is_given_up(tmp_path, small, start, monkeypatch):
    monkeypatch.setattr(recording, "EACH", 2.5)
    done = record(tmp_path, configurations=steps(small, 14, 1), start=start)
    assert done.found == {"failed": 1, "measured": 1}
    assert "no answer within 2.5 s" in read(done.path).measurements[0].reason


def test_what_cannot_fit_is_said_and_not_tried(tmp_path, small, start, asked):
    done = record(tmp_path, configurations=steps(small, 1, 2), start=start, need=lambda model, setup: 800 * setup.batch)
    assert done.found == {"measured": 1, "skipped": 1}
    assert [batch for _, batch in asked_for(asked)] == [1]
    skipped = read(done.path).measurements[1]
    assert skipped.reason == "it needs 1.56 KiB at least, and 900 B were free"
    assert record(tmp_path, configurations=steps(small, 2), start=start).there == 1


def test_the_time_is_kept(tmp_path, small, start):
    begun = time.monotonic()
    slow = [Configuration("test", small.replace(vocabulary=v), eb.Setup(batch=16, sequence=8)) for v in range(101, 131)]
    done = record(tmp_path, minutes=4 / 60, configurations=slow, start=start)
    assert time.monotonic() - begun < 60  # all thirty would take minutes
    assert 1 <= done.found["measured"] < 30 and done.left == 30 - done.found["measured"]
    assert len(read(done.path).measurements) == done.found["measured"]


def test_what_runs_when_time_is_up_is_given_up_and_not_recorded(tmp_path, small, start):
    done = record(tmp_path, minutes=4 / 60, configurations=steps(small, 1, 14, 2), start=start)
    assert (done.found, done.left) == ({"measured": 1}, 2)


def test_a_truncated_line_is_moved_aside_and_measured_again(tmp_path, small, start):
    path = record(tmp_path, configurations=steps(small, 1, 2), start=start).path
    path.write_bytes(path.read_bytes()[:-30])
    done = record(tmp_path, configurations=steps(small, 1, 2), start=start)
    assert (done.found, done.there) == ({"measured": 1}, 1)
    assert done.faults == ["made-up-1.jsonl, line 2: it has no end: the writing of it was interrupted"]
    assert done.faults[0] in str(done) and len(read(path).measurements) == 2 and read(path).faults == []


RECORDING = """
import sys
import everybyte as eb
from everybyte.lab import Configuration, Worker, record
small = eb.Model(name="small", layers=2, width=48, heads=3, vocabulary=1001, positions=40)
def start():
    worker = Worker()
    print(worker.process.pid, flush=True)
    return worker
steps = [Configuration("test", small, eb.Setup(batch=b, sequence=32, attention="eager")) for b in range(1, 7)]
record(sys.argv[1], device="cpu", configurations=steps, start=start)
"""


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc to see a process end")
def test_killed_in_the_middle_and_resumed(tmp_path, small, ends):
    begun = subprocess.Popen(
        [sys.executable, "-c", RECORDING, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    worker = int(begun.stdout.readline())
    until = time.monotonic() + 60
    while not (files := list(tmp_path.glob("*.jsonl"))) or files[0].read_bytes().count(b"\n") < 2:
        assert time.monotonic() < until and begun.poll() is None
        time.sleep(0.01)
    os.kill(begun.pid, signal.SIGKILL)
    begun.wait()
    begun.stdout.close()
    assert ends(worker)  # nobody waits for it any more
    kept = [m.setup.batch for m in read(files[0]).measurements]
    assert 2 <= len(kept) < 6 and kept == list(range(1, len(kept) + 1))
    wanted = [Configuration("test", small, eb.Setup(batch=b, sequence=32, attention="eager")) for b in range(1, 7)]
    done = record(tmp_path, device="cpu", configurations=wanted)
    assert (done.there, done.found) == (len(kept), {"measured": 6 - len(kept)})
    measured = read(files[0]).measurements
    assert [m.setup.batch for m in measured] == list(range(1, 7))
    assert all(m.status == "measured" and isinstance(m, Measurement) for m in measured)


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc to see a process end")
def test_ctrl_c_ends_the_worker_and_is_said_in_one_sentence(tmp_path, ends):
    out, command = tmp_path / "out", [sys.executable, "-m", "everybyte_command", "record", "--device", "cpu", "--out"]
    begun = subprocess.Popen([*command, str(out)], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while not out.exists():  # the worker has said what the device is, and measures now
        assert begun.poll() is None
        time.sleep(0.02)
    (worker,) = Path(f"/proc/{begun.pid}/task/{begun.pid}/children").read_text().split()
    begun.send_signal(signal.SIGINT)
    said, errors = begun.communicate(timeout=60)
    assert begun.returncode == 130 and said == "" and ends(int(worker))
    assert errors.strip().splitlines()[-1] == (
        f"everybyte: interrupted; what was measured is in {out}; the same command goes on from there"
    )
    assert "Traceback" not in errors


def test_the_command_lists_what_it_would_measure(capsys, monkeypatch):
    monkeypatch.setattr(recording, "record", lambda *_: pytest.fail("it records"))
    assert main(["record", "--list", "--only", "curves", "sequences", "--gpu", "t4", "--json"]) == 0
    rows = {row["group"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows) == {"curves", "sequences", "all"} and rows["curves"]["fit"] == rows["curves"]["steps"]
    assert rows["curves"]["steps"] == sum(1 for _ in grid(["curves"])) > 10
    assert 0 < rows["sequences"]["fit"] < rows["sequences"]["steps"] and rows["all"]["seconds"] > 60
    assert main(["record", "--list", "--gpu", "h2000"]) == 2
    assert "did you mean 'h200'" in capsys.readouterr().err


@pytest.mark.parametrize("minutes", [0, -1, True, "8"])
def test_bad_input(tmp_path, minutes):
    with pytest.raises(ValueError, match=r"^record\.minutes: "):
        record(tmp_path, minutes=minutes)


def test_a_step_that_no_worker_could_run_is_refused_at_once(tmp_path, small):
    with pytest.raises(ValueError, match=r"^Setup\.sequence: "):
        record(tmp_path, configurations=[Configuration("test", small, eb.Setup(sequence=1024))])


def test_the_command_records(tmp_path, capsys, start, small, monkeypatch):
    monkeypatch.setattr(
        recording, "grid", lambda only: steps(small, 1, 2) if list(only) == ["odd"] else pytest.fail("all")
    )
    monkeypatch.setattr(recording, "Bench", lambda _: process.Bench(start))
    arguments = ["record", "--out", str(tmp_path), "--minutes", "1", "--only", "odd", "--json"]
    assert main(arguments) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["found"] == {"skipped": 2}  # the prediction says that they need more than the 900 bytes of that device
    assert said["path"] == str(tmp_path / "made-up-1.jsonl")
