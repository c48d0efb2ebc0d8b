"""Processes that start with the book's imports done: forked from one that has done them once, for a whole run of the tests.

A notebook's kernel, and one of many ranks, spends most of its life on `import torch` and `import sympy`. Each still has a process,
a namespace, a working folder and a process group of its own, and nothing has been called in the process that it is forked
from: what a fresh process would compute, it computes.

    warm.begin()    # in the process that everything else is started by: costs nothing before the first is asked for
    warm.kernels()  # from here on every kernel that this process starts is such a one, where the system can fork
    warm.started(["-m", "json.tool"], stdout=file).wait()
"""

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path

#: What is imported first: modules that only define.
MODULES = (
    "ipykernel.kernelapp", "ipywidgets", "anywidget", "numpy", "sympy", "matplotlib.figure", "torch", "torch._dynamo",
    "torch.distributed.fsdp", "torch.distributed.pipelining", "torch.distributed.tensor.parallel",
    "torch.distributed.tensor.experimental", "torch.testing._internal.distributed.fake_pg", "everybyte.theory.budget",
    "everybyte.answers.comparison", "everybyte.deriving", "everybyte.draw.figures", "everybyte.dryrun", "everybyte.explore", "everybyte.formulas",
    "everybyte.lab", "everybyte.rehearsal", "everybyte.published.settling", "everybyte.teach",
)  # fmt: skip
#: Read when a process starts, so that one with other values cannot come from ours.
_AT_START = ("PYTHONPATH", "PYTHONHASHSEED", "PYTHONSTARTUP", "OMP_NUM_THREADS")
_HERE = {name: os.environ.get(name) for name in _AT_START}
#: Where the process that forks them listens: said by the process that began it to those that it starts.
PLACE = "EVERYBYTE_WARM"


class Started:
    """A process that was forked for us, with what is asked of a `subprocess.Popen`."""

    stdin = stdout = stderr = None

    def __init__(self, line: socket.socket, pid: int):
        self.pid, self.returncode = pid, None
        self._line = line

    def poll(self) -> int | None:
        """Its exit status, minus a signal's number where one ended it; None while it lives."""
        if self.returncode is None and select.select([self._line], [], [], 0)[0]:
            self.returncode = int(self._line.recv(64) or -signal.SIGKILL)  # nothing is said: who forked it is gone
            self._line.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status. Raises `subprocess.TimeoutExpired` where it has not ended within so many seconds."""
        if self.returncode is None and not select.select([self._line], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self.poll()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def can_fork() -> bool:
    """Whether this system can: elsewhere forking after such imports is not safe, or not to be had."""
    return hasattr(os, "fork") and sys.platform != "darwin"


@cache
def begin() -> None:
    """Start the process that forks the others, once in a run; it ends with this one."""
    if PLACE in os.environ or not can_fork():
        return
    folder = tempfile.TemporaryDirectory()
    os.environ[PLACE] = str(Path(folder.name) / "warm")
    command = [sys.executable, "-P", str(Path(__file__).resolve())]
    # Matplotlib reads its backend when it is imported; this is the one that a kernel would set.
    environment = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"} | os.environ
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    process.stdout.readline()  # it listens

    def end():
        process.stdin.close()
        process.wait(30)
        folder.cleanup()

    atexit.register(end)


def started(arguments: Sequence[str], environment=None, cwd=None, stdin=None, stdout=None, stderr=None) -> Started:
    """What `python *arguments` would be, a script or `-m` and a module.

    `stdin`, `stdout`, `stderr`: files; by default nothing is read, and what is said goes nowhere.
    """
    begin()
    asked = {"arguments": list(arguments), "env": dict(environment or os.environ), "cwd": str(cwd or os.getcwd())}
    line = socket.socket(socket.AF_UNIX)
    line.connect(os.environ[PLACE])
    with open(os.devnull, "r+b") as nothing:
        files = [(nothing if given is None else given).fileno() for given in (stdin, stdout, stderr)]
        socket.send_fds(line, [b"."], files)
        line.sendall(json.dumps(asked).encode() + b"\n")
        return Started(line, int(line.recv(64)))


def launch(original):
    """What stands in for Jupyter's `launch_kernel`, which it falls back to."""

    def launch_kernel(cmd: list[str], *args, **options):
        environment = options.get("env") or dict(os.environ)
        python, *arguments = cmd
        same = all(environment.get(name) == value for name, value in _HERE.items())
        if python != sys.executable or "ipykernel_launcher" not in arguments[:3] or args or not same:
            return original(cmd, *args, **options)
        return started(["-m", *arguments[arguments.index("ipykernel_launcher") :]], environment, options.get("cwd"))

    return launch_kernel


def kernels() -> None:
    """From here on start kernels warm, where the system can fork."""
    if not can_fork():
        return
    from jupyter_client.provisioning import local_provisioner

    if local_provisioner.launch_kernel.__module__ != __name__:
        local_provisioner.launch_kernel = launch(local_provisioner.launch_kernel)


def _be(arguments: list[str]) -> None:
    """What Python is with these arguments."""
    first, *rest = arguments
    if first != "-m":
        sys.argv = arguments
        runpy.run_path(first, run_name="__main__")
    elif rest[0] == "ipykernel_launcher":  # which wants no folder on the path: the server has none there
        from ipykernel import kernelapp

        sys.argv = rest
        os.environ["JPY_PARENT_PID"] = str(os.getppid())
        kernelapp.IPKernelApp.launch_instance(rest[1:])
    else:
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)


def _become(asked: dict, files: list[int]) -> int:
    """In the child: be it to its end; the exit status that Python would give."""
    for descriptor, file in enumerate(files):
        os.dup2(file, descriptor)
        os.close(file)
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    status = 0
    try:
        _be(asked["arguments"])
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    return status


@cache
def _imported() -> None:
    for module in MODULES:
        import_module(module)
    gc.collect()
    gc.freeze()


def _asked(line: socket.socket) -> tuple[dict, list[int]]:
    """What somebody asks for, and the three files that they give."""
    files = socket.recv_fds(line, 1, 3)[1]
    with line.makefile("rb") as said:
        return json.loads(said.readline()), files


def _serve() -> None:
    """Fork a process for each that is asked for, the imports done; end with what is left of them when nobody can ask any more."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(os.environ[PLACE])
    listening.listen(64)
    ended, note = os.pipe()
    os.set_blocking(note, False)
    signal.set_wakeup_fd(note)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    print(flush=True)  # listening
    children: dict[int, socket.socket] = {}
    while True:
        ready = select.select([listening, ended, 0], [], [])[0]
        if ended in ready:
            os.read(ended, 4096)
            for pid in list(children):
                child, status = os.waitpid(pid, os.WNOHANG)
                if child:
                    with children.pop(pid) as line, suppress(OSError):  # whoever asked may be gone
                        line.sendall(str(os.waitstatus_to_exitcode(status)).encode())
        if listening in ready:
            line, _ = listening.accept()
            asked, files = _asked(line)
            _imported()
            pid = os.fork()
            if not pid:
                os.setpgid(0, 0)  # here too: whichever of the two runs first
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for open_here in (listening, line, *children.values()):
                    open_here.close()
                os.close(ended)
                os.close(note)
                os._exit(_become(asked, files))
            with suppress(ProcessLookupError, PermissionError):
                os.setpgid(pid, pid)  # before anybody hears of it, who may signal its whole group
            children[pid] = line
            for file in files:
                os.close(file)
            line.sendall(str(pid).encode())
        if 0 in ready:
            break
    for pid in children:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    _serve()
