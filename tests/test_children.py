"""What we start ends with all that it has started, however we end."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from everybyte.common import children, interrupts
from everybyte.common.children import Child

pytestmark = pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs a shell and groups of processes")
GROUP = "sleep 300 & sleep 300 & "
#: Some leave the group, as torchrun's ranks do. Only Linux says what environment they have.
ALL = GROUP + ("setsid sleep 300 & " if sys.platform.startswith("linux") else "")
DEAF = "trap '' TERM; " + ALL


def shell(then, starts=ALL):
    """A shell that has started some, and what runs of it."""
    child = Child(["bash", "-c", f"{starts} echo; {then}"], stdout=subprocess.PIPE)
    with child.process.stdout as said:
        said.readline()
    leader = psutil.Process(child.process.pid)
    return child, [leader, *leader.children(recursive=True)]


def running(processes):
    found = []
    for process in processes:
        try:
            found += [process.pid] if process.status() != psutil.STATUS_ZOMBIE else []
        except psutil.NoSuchProcess:
            pass
    return found


@pytest.mark.parametrize("grace", [0.0, 10.0])
def test_it_ends_with_all_that_it_started(grace):
    child, there = shell("sleep 300")
    assert len(running(there)) >= 4
    start = time.monotonic()
    child.end(grace)
    assert running(there) == [] and time.monotonic() - start < 30
    assert child.process.returncode == (-signal.SIGTERM if grace else -signal.SIGKILL)
    child.end()


def test_who_does_not_listen_is_ended_after_the_grace():
    child, there = shell("sleep 300", DEAF)
    start = time.monotonic()
    child.end(0.3)
    assert running(there) == [] and 0.3 <= time.monotonic() - start < 30
    assert child.process.returncode == -signal.SIGKILL


def test_ctrl_c_does_not_wait_for_the_grace():
    child, there = shell("sleep 300", DEAF)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        child.end(60)
    assert running(there) == [] and time.monotonic() - start < 30
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_its_end_leaves_behind_ends_too():
    child, there = shell("sleep 0.2; exit 3")
    assert child.finish(grace=10) == 3 and running(there) == []


@pytest.mark.parametrize("number", [signal.SIGINT, *interrupts.ENDING])
def test_what_ends_us_ends_it(number):
    child, there = shell("sleep 300")
    threading.Timer(0.2, os.kill, (os.getpid(), number)).start()
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit) as raised:
        child.finish(grace=10)
    assert running(there) == [] and number == signal.SIGINT or raised.value.code == 128 + number
    assert all(signal.getsignal(n) == signal.SIG_DFL for n in interrupts.ENDING)


def test_too_long_is_an_end():
    child, there = shell("sleep 300")
    with pytest.raises(subprocess.TimeoutExpired):
        child.finish(0.1)
    assert running(there) == []


def test_what_is_thrown_away_is_ended():
    child, there = shell("sleep 300")
    del child
    assert running(there) == []


def test_an_interrupted_start_leaves_nothing(monkeypatch):
    started = []

    class Popen(subprocess.Popen):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            started.append(psutil.Process(self.pid))
            signal.raise_signal(signal.SIGINT)  # as between the start and whoever would know of it

    monkeypatch.setattr(subprocess, "Popen", Popen)
    with pytest.raises(KeyboardInterrupt):
        Child(["sleep", "300"])
    assert len(started) == 1 and running(started) == []


def test_a_fork_of_ours_ends_nothing_of_ours():
    with Child(["sleep", "300"]) as child:
        if not (fork := os.fork()):
            child.end()
            os._exit(0)
        os.waitpid(fork, 0)
        assert child.process.poll() is None


def test_run_is_what_subprocess_runs():
    found = children.run(["bash", "-c", "echo out; echo err >&2; exit 3"], stdout=-1, stderr=-1, text=True)
    assert (found.returncode, found.stdout, found.stderr) == (3, "out\n", "err\n")
    with pytest.raises(subprocess.TimeoutExpired):
        children.run(["sleep", "300"], 0.1)
    with pytest.raises(FileNotFoundError):
        children.run(["no-such-program-anywhere"])


def test_how_it_ended_in_words():
    assert children.how(3) == "with exit status 3" and children.how(-9) == "by signal SIGKILL"
    assert children.how(-signal.SIGRTMIN - 1) == f"by signal {signal.SIGRTMIN + 1}"


def test_without_proc_the_group_is_ended(monkeypatch):
    """As on macOS, where no process tells of another's environment."""
    monkeypatch.setattr(sys, "platform", "darwin")
    child, there = shell("sleep 300", GROUP)
    child.end(1)
    assert len(there) >= 3 and running(there) == []
    child, there = shell("sleep 0.2; exit 3", GROUP)
    assert child.finish(grace=1) == 3 and running(there) == []


def test_without_groups_the_tree_is_ended(monkeypatch, tmp_path):
    """As on Windows, by its own tool; and where that is not there, the process alone."""
    tool, said = tmp_path / "taskkill", tmp_path / "said"
    tool.write_text(f'#!/bin/sh\necho "$@" > {said}\n')
    tool.chmod(0o755)
    monkeypatch.delattr(os, "killpg")
    for path in (f"{tmp_path}{os.pathsep}{os.environ['PATH']}", os.environ["PATH"]):
        with monkeypatch.context() as patch:
            patch.setenv("PATH", path)
            child = Child(["sleep", "300"])
            child.end(10)
            assert child.process.returncode == -signal.SIGKILL
    assert said.read_text() == f"/F /T /PID {said.read_text().split()[-1]}\n"


def test_where_a_system_has_fewer_signals():
    code = (
        "import os, signal; del signal.SIGHUP, os.killpg\n"
        "from everybyte.common import children, interrupts; assert interrupts.ENDING == (signal.SIGTERM,)\n"
        "with interrupts.Endings(), children.Child(['sleep', '300']) as child: pass\n"
        "print(child.process.returncode)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("-9\n", "")


def test_nobody_else_in_the_package_starts_a_process():
    package = Path(children.__file__).parents[1]
    words = (
        "Popen(",
        "subprocess.run(",
        "check_output(",
        "os.fork(",
        "import multiprocessing",
        "os.spawn",
        "posix_spawn",
    )
    there = {
        p.relative_to(package).as_posix()
        for p in package.rglob("*.py")
        if any(w in p.read_text("utf-8") for w in words)
    }
    assert there == {"common/children.py"}
