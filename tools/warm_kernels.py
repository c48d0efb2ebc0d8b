"""Kernels that start with the book's imports done: forked from a process that has done them once.

A notebook's kernel spends most of its life on `import torch` and `import sympy`. Each still has a process, a namespace, a
working folder and a process group of its own, and nothing has been called in the process that it is forked from: what a
fresh kernel would compute, it computes.

    warm_kernels.install()  # from here on every kernel that this process starts is such a one, where the system can fork
"""

import atexit
import json
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

#: What notebooks import, by themselves or through `everybyte`: modules that only define.
MODULES = (
    "ipykernel.kernelapp", "ipywidgets", "anywidget", "numpy", "sympy", "matplotlib.figure", "torch", "torch.distributed.fsdp",
    "everybyte.budget", "everybyte.comparison", "everybyte.deriving", "everybyte.draw", "everybyte.dryrun", "everybyte.explore",
    "everybyte.formulas", "everybyte.lab", "everybyte.rehearsal", "everybyte.settling", "everybyte.teach",
)  # fmt: skip
#: Read when a process starts, so that a kernel with other values cannot come from ours.
_AT_START = ("PYTHONPATH", "PYTHONHASHSEED", "PYTHONSTARTUP", "OMP_NUM_THREADS")


class Forked:
    """A kernel's process, with what Jupyter asks of a `subprocess.Popen`."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int):
        self.pid = pid

    def poll(self) -> int | None:
        """None while it lives; its status is known to its parent alone."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return 0
        return None

    def wait(self) -> int:
        """Jupyter waits only after `poll` has said that it has ended."""
        return 0

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@cache
def _parent() -> subprocess.Popen:
    command = [sys.executable, "-P", str(Path(__file__).resolve())]
    # Matplotlib reads its backend when it is imported; this is the one that a kernel would set.
    environment = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"} | os.environ
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )

    def end():
        process.stdin.close()
        process.wait(30)

    atexit.register(end)
    return process


def launch(original):
    """What stands in for Jupyter's `launch_kernel`, which it falls back to."""

    def launch_kernel(cmd: list[str], *args, **options):
        environment = options.get("env") or dict(os.environ)
        python, *arguments = cmd
        same = all(environment.get(name) == os.environ.get(name) for name in _AT_START)
        if python != sys.executable or "ipykernel_launcher" not in arguments[:3] or args or not same:
            return original(cmd, *args, **options)
        arguments = arguments[arguments.index("ipykernel_launcher") + 1 :]
        asked = {"arguments": arguments, "env": environment, "cwd": str(options.get("cwd") or os.getcwd())}
        process = _parent()
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        return Forked(int(process.stdout.readline()))

    return launch_kernel


def install() -> None:
    """From here on start kernels warm, where the system can fork."""
    if not hasattr(os, "fork") or sys.platform == "darwin":  # there forking after such imports is not safe
        return
    from jupyter_client.provisioning import local_provisioner

    if local_provisioner.launch_kernel.__module__ != __name__:
        local_provisioner.launch_kernel = launch(local_provisioner.launch_kernel)


def _become_kernel(asked: dict) -> None:
    """In the child: what `python -m ipykernel_launcher` would be."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.environ.clear()
    os.environ.update(asked["env"], JPY_PARENT_PID=str(os.getppid()))
    os.chdir(asked["cwd"])
    sys.argv = ["ipykernel_launcher", *asked["arguments"]]
    from ipykernel.kernelapp import IPKernelApp

    IPKernelApp.launch_instance(sys.argv[1:])


def _serve() -> None:
    """Import, then fork one kernel for each line that comes; end with what is left of them when no more can."""
    import gc
    from importlib import import_module

    for module in MODULES:
        import_module(module)
    gc.collect()
    gc.freeze()
    children = set()

    def reap(*_):
        for pid in list(children):
            if os.waitpid(pid, os.WNOHANG)[0]:
                children.discard(pid)

    signal.signal(signal.SIGCHLD, reap)
    for line in sys.stdin:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        pid = os.fork()
        if not pid:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            _become_kernel(json.loads(line))
            os._exit(0)
        os.setpgid(pid, pid)  # before Jupyter hears of it, which signals the kernel's whole group
        children.add(pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        print(pid, flush=True)
    for pid in list(children):
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    _serve()
