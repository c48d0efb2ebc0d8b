"""The worker's process: what it answers, and how it dies."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import everybyte as eb
import everybyte.lab
from everybyte import command
from everybyte.lab import Failed, Worker, measure, measuring, process
from everybyte.lab.measurement import model_as_dict

WITHOUT_GPU = not os.path.exists("/dev/nvidiactl")


def script(text):
    """A worker in place of ours."""
    return Worker([sys.executable, "-u", "-c", "import json, os, subprocess, sys, time\n" + text])


def test_a_worker_that_exits_is_reported_with_its_status_and_last_lines():
    with script("input(); print('first', file=sys.stderr); sys.exit('the last line')") as worker:
        with pytest.raises(
            Failed, match=r"^the worker ended with exit status 1; its last lines:\n  first\n  the last line$"
        ):
            worker.ask(30, ask="device", device=None)
        with pytest.raises(Failed, match="exit status 1"):
            worker.ask(30, ask="device", device=None)


def test_a_worker_that_is_killed_is_reported_with_the_signal():
    with (
        script("os.kill(os.getpid(), 11)") as worker,
        pytest.raises(Failed, match=r"^the worker ended by signal SIGSEGV$"),
    ):
        worker.ask(30, ask="device", device=None)


def test_a_worker_that_hangs_is_ended_with_its_children(tmp_path, ends):
    child = tmp_path / "child"
    hang = f"p = subprocess.Popen(['sleep', '600']); open({str(child)!r}, 'w').write(str(p.pid)); time.sleep(600)"
    with script(hang) as worker:
        while not child.exists() or not child.read_text():
            time.sleep(0.02)
        with pytest.raises(Failed, match=r"^the worker gave no answer within 0\.3 s and was ended"):
            worker.ask(0.3, ask="device", device=None)
        assert worker.process.returncode == -signal.SIGKILL
    assert ends(int(child.read_text()))


def test_a_worker_that_talks_nonsense_is_reported():
    with script("input(); print('hello')") as worker, pytest.raises(Failed, match="said 'hello', which is no answer"):
        worker.ask(30, ask="device", device=None)


def test_ctrl_c_ends_the_worker(monkeypatch):
    with script("time.sleep(600)") as worker:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            worker.ask(60, ask="device", device=None)
        assert worker.process.returncode == -signal.SIGKILL


def test_at_the_end_of_the_context_the_worker_is_gone():
    with script("time.sleep(600)") as worker:
        assert worker.process.poll() is None
    assert worker.process.returncode == -signal.SIGKILL
    worker.end()


@pytest.fixture(scope="module")
def worker():
    with Worker() as worker:
        yield worker


def test_one_worker_measures_one_after_another(worker, small, tiny):
    first, clean = process.ask(worker, small, tiny, "cpu", 60, warm_up=1, steps=1)
    again, still = process.ask(worker, small, tiny, "cpu", 60, warm_up=1, steps=1)
    assert clean and still and first.status == "measured" and first.baseline == again.baseline == 0
    assert first.phases == again.phases == eb.dry_run(small, tiny).phases and first.loss == again.loss
    assert first.model == small and first.setup == tiny and first.device["type"] == "cpu"


def test_bad_input_leaves_the_worker_alive(worker, small, tiny):
    with pytest.raises(ValueError, match="PyTorch can use no such GPU here"):
        worker.ask(60, ask="device", device="cuda:9999")
    with pytest.raises(ValueError, match="Measurement.model: 'gpt2'"):
        worker.ask(60, ask="measure", device="cpu", model="gpt2", setup=tiny.as_dict(), options={})
    assert worker.ask(60, ask="device", device="cpu")["found"]["type"] == "cpu"


@pytest.mark.skipif(not WITHOUT_GPU, reason="there is a GPU")
def test_without_a_gpu_one_sentence_says_what_to_do(capsys, small, tiny):
    with pytest.raises(
        ValueError, match=r"^measure\.device: None, and PyTorch can use no such GPU here \(.*\): .*; allowed: .*'cpu'"
    ):
        eb.measure(small, tiny)


def test_the_command_measures(capsys, small, tiny, monkeypatch):
    monkeypatch.setattr(command.given, "model", {"small": small}.get)
    options = "small --batch 1 --sequence 8 --optimizer sgd --attention eager --device cpu --json"
    assert command.main(["measure", *options.split()]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["witness"] == "measure" and said["parts"] == {} and said["setup"] == tiny.as_dict()
    assert said["phases"] == eb.dry_run(small, tiny).phases


def test_the_command_says_in_one_line_that_a_worker_died(capsys, monkeypatch):
    def dies(*_, **__):
        raise Failed("the worker ended with exit status 1")

    monkeypatch.setattr(everybyte.lab, "measure", dies)
    assert command.main(["measure", "gpt2"]) == 2
    assert capsys.readouterr().err == "everybyte: measure: the worker ended with exit status 1\n"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"model": "gpt2"}, "measure.model"), ({"setup": 8}, "measure.setup"), ({"warm_up": 0}, "measure.warm_up"),
        ({"steps": 0}, "measure.steps"), ({"points": 3}, "measure.points"), ({"tf32": 1}, "measure.tf32"),
        ({"limit": 0}, "measure.limit"), ({"timeout": 0}, "measure.timeout"), ({"timeout": True}, "measure.timeout"),
        ({"model": eb.model("pythia-14m")}, "Model.code"), ({"setup": eb.Setup(sequence=1025)}, "Setup.sequence"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_before_a_worker_starts(monkeypatch, options, field):
    monkeypatch.setattr(process, "Worker", lambda: pytest.fail("a worker was started"))
    arguments = {"model": eb.model("gpt2"), "setup": eb.Setup(), "device": "cpu"} | options
    with pytest.raises(ValueError, match=f"^{field}: "):
        measure(arguments.pop("model"), arguments.pop("setup"), **arguments)


def test_the_protocol_is_a_line_in_and_a_line_out(small, tiny):
    request = {
        "ask": "measure",
        "device": "cpu",
        "model": model_as_dict(small),
        "setup": tiny.as_dict(),
        "options": {"steps": 1},
    }
    lines = json.dumps(request) + "\n" + json.dumps({"ask": "device", "device": "cpu"}) + "\n"
    done = subprocess.run(
        [sys.executable, "-m", "everybyte.lab.worker"], input=lines, capture_output=True, text=True, timeout=60
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and answers[0]["clean"] is True and answers[0]["found"]["steps"] == 1
    assert answers[1]["found"]["name"] == answers[0]["found"]["device"]["name"]


@pytest.mark.parametrize("said", ["5", "[]", "null", '"found"', "{}", "[" * 100_000, "1e400"])
def test_what_is_no_answer_is_not_taken_for_one(said):
    with (
        script(f"input(); print({said[:1]!r} * {len(said)} if {len(said)} > 99 else {said!r})") as worker,
        pytest.raises(Failed, match="which is no answer"),
    ):
        worker.ask(30, ask="device", device=None)


def test_bytes_that_are_no_text_do_not_keep_us_waiting():
    with script(r"input(); os.write(1, b'\xff\xfe\n'); time.sleep(600)") as worker:
        with pytest.raises(Failed, match="which is no answer"):
            worker.ask(30, ask="device", device=None)


def test_a_worker_whose_parent_is_gone_before_it_looks_ends(ends):
    """Killed while the worker loads PyTorch, a parent cannot be seen to go: whose it is, is said to it."""
    start = (
        "import os, subprocess, sys; from everybyte.lab import Worker; "
        "print(Worker().process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", start], stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL and ends(int(done.stdout), within=30)


def test_no_module_is_taken_from_the_working_folder(tmp_path, monkeypatch, small):
    """Whatever stands there with a name of the standard library's: of one worker, and of one for each rank."""
    (tmp_path / "calendar.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "calendar", "2000"]
    with Worker(command) as worker, pytest.raises(Failed, match="which is no answer"):
        worker.ask(30, ask="device", device="cpu")
    with pytest.raises(Failed, match="said '2000', which is no answer"):
        measuring.measure_ranks(small, eb.Setup(batch=1, sequence=8, gpus=2), "cpu", 60, command)
    assert not (tmp_path / "ran").exists()


def test_without_pytorch_one_sentence_says_what_to_install(tmp_path, monkeypatch, small, tiny, capfd):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(process, "SOURCES", os.pathsep.join([str(tmp_path), process.SOURCES]))
    with pytest.raises(
        ValueError, match=r"^measure: No module named 'torch'; it needs PyTorch: pip install 'everybyte\[dryrun\]'$"
    ):
        measure(small, tiny, "cpu")
    assert capfd.readouterr() == ("", "")


def test_ending_a_worker_that_read_nothing_is_quiet(capfd):
    import gc

    worker = script("time.sleep(600)")
    worker._requests.write("never flushed")
    worker.end()
    del worker
    gc.collect()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("seconds", [float("inf"), 1e12])
def test_any_timeout_is_one(seconds):
    with script("input(); print(json.dumps({'found': 1}))") as worker:
        assert worker.ask(seconds, ask="device", device=None) == {"found": 1}
