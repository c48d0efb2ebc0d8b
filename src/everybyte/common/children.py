"""Processes that we start: each leads a group of its own, and ends with everything it has started, however we end.

Whatever a process starts inherits a mark in its environment. By that, what has left the group, as torchrun's ranks do,
is found where the system tells a process's environment (Linux).
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from .interrupts import Endings, Held, waiting

#: The variable of the mark: the marks of whoever started us, then our own.
MARK = "EVERYBYTE_CHILD"
#: Seconds in which a killed process is gone, and between two looks.
GONE, LOOK = 5.0, 0.02


class Ending:
    """A context at whose end its `end()` is called."""

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.end()


class Child(Ending):
    """A process and what it starts. At the end of its context, or of the object, nothing of it runs.

    Args:
        command: the program and its arguments. environment: all of its variables; by default this process's.
        options: as `subprocess.Popen` takes them.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None, **options):
        environment = os.environ if environment is None else environment
        mark = secrets.token_hex(8)
        marks = os.pathsep.join(filter(None, (os.environ.get(MARK), mark)))
        flags = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)  # on Windows
        with Held():  # nobody would know of a process whose start was interrupted
            self.process = subprocess.Popen(
                command, env={**environment, MARK: marks}, start_new_session=True, creationflags=flags, **options
            )
            self._known = self.process, mark, os.getpid()
            self._kept = weakref.finalize(self, _end, *self._known)

    def finish(self, timeout: float | None = None, grace: float = 0.0) -> int:
        """Wait for its exit status. Whatever ends us before that ends it, and what it leaves behind is ended too.

        Raises:
            subprocess.TimeoutExpired: after `timeout` seconds.
        """
        with Endings():
            try:
                return self.process.wait(timeout if timeout is None else min(timeout, threading.TIMEOUT_MAX))
            finally:
                self.end(grace)

    def end(self, grace: float = 0.0) -> None:
        """End it and all it started, at most `grace` seconds after asking, or at Ctrl-C. Once more does nothing."""
        with Held():
            if self._kept.detach():
                _end(*self._known, grace)


def run(
    command: Sequence[str], timeout: float | None = None, grace: float = 0.0, **options
) -> subprocess.CompletedProcess:
    """What a command printed and returned, as `subprocess.run` gives it; all that it started is ended.

    Raises:
        subprocess.TimeoutExpired: after `timeout` seconds.
    """
    with Endings():
        child = Child(command, **options)
        try:
            said, errors = child.process.communicate(timeout=timeout)
        finally:
            child.end(grace)
    return subprocess.CompletedProcess(command, child.process.returncode, said, errors)


def how(status: int) -> str:
    """How a process ended, by its exit status: `with exit status 3`, `by signal SIGSEGV`."""
    if status >= 0:
        return f"with exit status {status}"
    names = {number.value: number.name for number in signal.Signals}
    return f"by signal {names.get(-status, -status)}"


def _end(process, mark, starter, grace=0.0):
    """Ask a process and its group to end, wait for them, then kill what is left."""
    if os.getpid() != starter:  # a fork of ours, which ends by itself
        return
    if grace:
        until = time.monotonic() + grace
        _tell(process, mark, "SIGTERM")
        _wait(lambda: process.poll() is not None, until, patient=True)
        if process.poll() is not None and not _over(process, mark):  # it has passed nothing on
            _tell(process, mark, "SIGTERM")
            _wait(lambda: _over(process, mark), until, patient=True)
    until = time.monotonic() + GONE
    while not _over(process, mark) and time.monotonic() < until:  # whoever starts more meanwhile is killed next
        _tell(process, mark, "SIGKILL")
        _wait(lambda: _over(process, mark), min(until, time.monotonic() + 10 * LOOK))
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GONE)


def _wait(is_so, until, patient=False):
    """Wait until something is so, or until a time; where `patient`, also until the next Ctrl-C."""
    while not is_so() and time.monotonic() < until and not (patient and waiting()):
        time.sleep(LOOK)


def _over(process, mark):
    """Whether the process has ended, and nothing of it runs."""
    return process.poll() is not None and not _others(process.pid, mark)


def _tell(process, mark, name):
    """Send a signal to a process's group, and, unless its leader is there to pass it on, to what has left the group."""
    if not hasattr(os, "killpg"):  # on Windows
        _kill_tree(process)
        return
    number, running = getattr(signal, name), process.poll() is None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if running or _others(process.pid, mark):  # a group's number is free once nobody is in it
            os.killpg(process.pid, number)
    if name == "SIGKILL" or not running:
        for pid in _others(process.pid, mark):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def _kill_tree(process):
    if process.poll() is None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(["taskkill", "/F", "/T", "/PID", str(process.pid)], capture_output=True, timeout=GONE)
        process.kill()


def _others(group: int, mark: str) -> list[int]:
    """The processes of a group, besides its leader, and those that bear the mark."""
    if not sys.platform.startswith("linux"):
        return _group_alone(group)
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) not in (group, os.getpid()):
            with contextlib.suppress(OSError, ValueError):
                state, _, its_group, session = folder.joinpath("stat").read_bytes().rpartition(b")")[2].split()[:4]
                ours = group in (int(its_group), int(session))
                ours = ours or mark.encode() in folder.joinpath("environ").read_bytes()
                if ours and state not in b"ZX":
                    found.append(int(folder.name))
    return found


def _group_alone(group):
    """Whether the group has a process, as a list: all that other systems tell."""
    if not hasattr(os, "killpg"):
        return []
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return []
    return [-group]
