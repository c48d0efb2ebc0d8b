"""Child processes. Each leads a process group, and ends with all that it started, however this process ends.

A child's own children inherit a mark in the environment. It finds those that left the group, as torchrun's ranks do, where the
system shows a process's environment (Linux).
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

#: The environment variable of the mark: the marks of this process's parents, then its own.
MARK = "EVERYBYTE_CHILD"
#: Seconds until a killed process is gone; seconds between two looks.
GONE, LOOK = 5.0, 0.02


class Ending:
    """A context at whose end its `end()` is called."""

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.end()


class Child(Ending):
    """A process with its children. At the end of its context, or of the object, all of them have ended.

    Args:
        command: the program and its arguments. environment: all of its variables; by default this process's.
        options: of `subprocess.Popen`.
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
        """Wait for its exit status, then end its children. An error or a signal before that ends it too.

        Raises:
            subprocess.TimeoutExpired: after `timeout` seconds.
        """
        with Endings():
            try:
                return self.process.wait(timeout if timeout is None else min(timeout, threading.TIMEOUT_MAX))
            finally:
                self.end(grace)

    def end(self, grace: float = 0.0) -> None:
        """End it and all it started: ask, then kill after `grace` seconds or at Ctrl-C. A second call does nothing."""
        with Held():
            if self._kept.detach():
                _end(*self._known, grace)


def run(
    command: Sequence[str], timeout: float | None = None, grace: float = 0.0, **options
) -> subprocess.CompletedProcess:
    """Run a command as `subprocess.run` does, and end all that it started.

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
    """How a process ended, in words, from its exit status: `with exit status 3`, `by signal SIGSEGV`."""
    if status >= 0:
        return f"with exit status {status}"
    names = {number.value: number.name for number in signal.Signals}
    return f"by signal {names.get(-status, -status)}"


def _end(process, mark, starter, grace=0.0):
    """Ask a process and its group to end, wait, then kill those that are left."""
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
    """Wait until a condition is true, or until a time; with `patient` also until the next Ctrl-C."""
    while not is_so() and time.monotonic() < until and not (patient and waiting()):
        time.sleep(LOOK)


def _over(process, mark):
    """Whether the process and its children have ended."""
    return process.poll() is not None and not _others(process.pid, mark)


def _tell(process, mark, name):
    """Send a signal to a process's group, and, unless its leader still runs and passes it on, to those that left the group."""
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
    """The processes of a group without its leader, and those with the mark."""
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
    """A list that is empty where the group has no process, for systems that show no more."""
    if not hasattr(os, "killpg"):
        return []
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return []
    return [-group]
