"""Any training script on a GPU that does nothing: started, watched, and asked what its allocator saw."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path

from .. import checks
from . import devices, place, watch
from .result import ScriptRehearsal

PACKAGE = Path(__file__).resolve().parents[1]
INSIDE = Path(__file__).resolve().parent / "inside" / "sitecustomize.py"
#: Optimizer steps after which a script is ended, unless another number is said: by then every peak has been.
STEPS = 5
#: Seconds that a script may take to end once it was asked to.
GRACE = 10.0


@contextmanager
def surroundings(where: "place.Place", variables: dict[str, str]):
    """Within it: the environment variables of a rehearsed process, and a folder of its own for what it needs and says."""
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
        sources = Path(folder) / "sources"
        sources.mkdir()
        (sources / "everybyte").symlink_to(PACKAGE)  # this package alone, not what is installed beside it
        (sources / "sitecustomize.py").symlink_to(INSIDE)
        reports = Path(folder) / "reports"
        reports.mkdir()
        paths = [str(sources), *filter(None, [os.environ.get("PYTHONPATH")])]
        libraries = [str(where.stubs), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "CUDA_VISIBLE_DEVICES")}
        yield kept | variables | {
            "PYTHONPATH": os.pathsep.join(paths),
            "PATH": os.pathsep.join([str(where.folder / "bin"), os.environ.get("PATH", os.defpath)]),
            "VIRTUAL_ENV": str(where.folder),
            "LD_LIBRARY_PATH": os.pathsep.join(libraries),
        }, reports  # fmt: skip


def rehearse_script(
    command: Sequence[str],
    gpu: str = "h200",
    *,
    gpus: int = 1,
    alone: bool = False,
    steps: int = STEPS,
    memory: int | None = None,
    snapshot: str | os.PathLike | None = None,
    folder: str | os.PathLike | None = None,
    quiet: bool = False,
) -> ScriptRehearsal:
    """Run a training script, unmodified, on a GPU of the catalog that is not there.

    Args:
        command: `["python", "train.py", ...]`, `["torchrun", ...]`, `["accelerate", "launch", ...]`, found in the rehearsal's
            environment. gpu: the catalog's name.
        gpus: how many the machine is to have. alone: run rank 0 of so many in one process; its collectives move nothing.
        steps: of an optimizer, after which each process ends; 0 lets it run to its own end.
        memory: bytes of each GPU, in place of the catalog's.
        snapshot: a file for the allocator's history at the peak, as PyTorch's viewer takes it.
        folder: of the environment. quiet: send what the script prints to standard error.

    Raises:
        ValueError: where there is no environment, no such command in it, or no process of it used a GPU.
    """
    checks.whole("rehearse", "gpus", gpus, 1, 2**20 if alone else devices.MOST)
    checks.whole("rehearse", "steps", steps, 0, 2**31)
    if memory is not None:
        checks.whole("rehearse", "memory", memory, 2 * devices.CONTEXT, 2**40)
    if not command:
        raise ValueError("rehearse.command: nothing to run; allowed: everybyte rehearse -- python train.py ...")
    where = place.find(folder)
    found = devices.find(gpu, where.manifest["capabilities"])
    variables = devices.environment(found, 1 if alone else gpus, memory) | {watch.STEPS: str(steps)}
    if snapshot:
        variables[watch.SNAPSHOTS] = str(Path(snapshot).absolute())
    if alone:
        said = {
            "RANK": 0,
            "LOCAL_RANK": 0,
            "WORLD_SIZE": gpus,
            "LOCAL_WORLD_SIZE": 1,
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": 29500,
        }
        variables |= {watch.ALONE: str(gpus)} | {name: str(value) for name, value in said.items()}
    with surroundings(where, variables) as (environment, reports):
        environment[watch.REPORTS] = str(reports)
        start = time.monotonic()
        status = _run(_program(command, where, environment["PATH"]), environment, quiet)
        seconds = time.monotonic() - start
        read = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(reports.glob("*.json"))]
    processes = sorted((said for said in read if said["devices"]), key=lambda said: said["rank"])
    if not processes:
        raise ValueError(_nobody(command, status, read))
    return ScriptRehearsal(command=list(command), gpu=found, status=status, seconds=seconds, processes=processes)


def _program(command, where, path):
    """The command, its program found in the rehearsal's environment first."""
    name, *rest = command
    if name == "torchrun" and not (where.folder / "bin" / "torchrun").exists():
        return [str(where.python), "-m", "torch.distributed.run", *rest]
    program = shutil.which(name, path=path)
    if program is None:
        instead = f"python {name}" if name.endswith(".py") else "python, torchrun"
        raise ValueError(f"rehearse.command: there is no {name!r} in {where.folder.name} nor on the path; allowed: {instead}, "
                         f"or what {where.folder.name}/bin/pip has installed")  # fmt: skip
    return [program, *rest]


def _run(command, environment, quiet):
    """The exit status of a command; whatever ends us ends it and its children."""
    out = sys.stderr if quiet else None
    process = subprocess.Popen(command, env=environment, stdout=out, start_new_session=True)
    before = _ended_by_sigterm()
    try:
        return process.wait()
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _ended_by_sigterm():
    """Let SIGTERM end this process as Ctrl-C does, its children with it; the handler before, where it was Python's usual one."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        return signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    return None


def _nobody(command, status, read):
    how = f"it ended by signal {signal.Signals(-status).name}" if status < 0 else f"it ended with exit status {status}"
    if read:
        return f"rehearse.command: {' '.join(command[:3])} put nothing on a GPU; {how}"
    return (
        f"rehearse.command: {' '.join(command[:3])} did not import the rehearsal's PyTorch; {how}; allowed: a script, run by the "
        "environment's own python"
    )
