"""Run any training script on a pretended GPU, and collect its processes' reports."""

import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..catalog import Gpu
from ..common import checks, children, terminal
from . import compiled, devices, history, place, reports, sizes, watch
from .result import ScriptRehearsal

PACKAGE = Path(__file__).resolve().parents[1]
INSIDE = Path(__file__).resolve().parent / "inside" / "sitecustomize.py"
#: Default number of optimizer steps after which a script is ended: by then its peak has been reached.
STEPS = 5
STREAMS = ("early", "late", "both")
#: Bytes of a hidden output that are shown where a script fails: the last ones.
SHOWN = 8000
#: Seconds that a script and its children get to end after they were asked to.
GRACE = 10.0


@contextmanager
def surroundings(where: "place.Place", variables: dict[str, str]):
    """A context that gives (the environment variables of a rehearsed process, the folder for its reports)."""
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
        sources = Path(folder) / "sources"
        sources.mkdir()
        (sources / "everybyte").symlink_to(PACKAGE)  # this package alone, not what is installed beside it
        (sources / "sitecustomize.py").symlink_to(INSIDE)
        said = Path(folder) / "reports"
        said.mkdir()
        paths = [str(sources), *filter(None, [os.environ.get("PYTHONPATH")])]
        libraries = [str(where.stubs), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "CUDA_VISIBLE_DEVICES")}
        yield kept | variables | {
            "PYTHONPATH": os.pathsep.join(paths),
            "PATH": os.pathsep.join([str(where.folder / "bin"), os.environ.get("PATH", os.defpath)]),
            "VIRTUAL_ENV": str(where.folder),
            "LD_LIBRARY_PATH": os.pathsep.join(libraries),
            # Never a GPU's own caches. Triton's holds kernels alone, and is kept; Inductor's holds choices, and begins empty.
            compiled.TRITON: str(where.folder / "compiled" / "triton"),
            compiled.INDUCTOR: str(Path(folder) / history.INDUCTOR),
        }, said  # fmt: skip


def rehearse_script(
    command: Sequence[str],
    gpu: str | Gpu = "h200",
    *,
    gpus: int = 1,
    alone: bool = False,
    steps: int = STEPS,
    memory: int | None = None,
    rows: float = 1.0,
    routing: str = "balanced",
    streams: str = "early",
    padded: bool = False,
    snapshot: str | os.PathLike | None = None,
    owners: bool = False,
    folder: str | os.PathLike | None = None,
    quiet: bool = False,
    cwd: str | os.PathLike | None = None,
    hidden: bool = False,
    environment: Mapping[str, str] | None = None,
) -> ScriptRehearsal:
    """Run a training script, unmodified, on a pretended GPU. Where Ctrl-C or a signal ends it, what is known goes to standard error.

    Args:
        command: `["python", "train.py", ...]`, `["torchrun", ...]`, `["accelerate", "launch", ...]`, found in the rehearsal's
            environment. gpu: of the catalog, by name too.
        gpus: how many GPUs to pretend. alone: run rank 0 of `gpus` ranks in one process; its collectives move nothing.
        steps: optimizer steps after which each process is ended; 0 for never. memory: bytes of each GPU, in place of the catalog's.
        rows: the share of the rows that `x[mask]`, `nonzero` and their like find, which data decide; by default all.
        routing: where a mixture's router sends tokens, which data decide too: `balanced`, as many to each expert, or `worst`, each
            token to the first experts.
        streams: when work that one stream waits for is done, and a block of another stream comes back: `early`, at once, or `late`, not
            before the script waits; `both` runs it twice where that matters, and says of `reserved` both.
        padded: whether compiled code pads matrices wherever Inductor times whether to: a GPU may choose either.
        snapshot: a file for the allocator's history at the peak, in the format of PyTorch's viewer. owners: whether the result says of each
            of its blocks to whom it belongs, for `ScriptRehearsal.timeline`.
        folder: of the environment. quiet: send the script's output to standard error. cwd: the folder to run it in. hidden: keep its output
            back, and send it there where the script fails otherwise than by memory.
        environment: variables that the script has beside this process's.

    Raises:
        ValueError: where there is no environment, no such command in it, or no process of it is known to have used a GPU.
        reports.Lost: where the rehearsal could not follow the script.
    """
    _check(command, gpus, alone, steps, padded, rows, routing, streams)
    where = place.find(folder)
    found = devices.find(gpu, where.manifest["capabilities"])
    asked = {watch.STEPS: steps, watch.ROWS: rows, watch.ROUTING: routing, watch.WORKSPACE: _workspace(found)}
    asked |= {compiled.PADDED: 1} if padded else {}
    asked |= {watch.SNAPSHOTS: Path(snapshot).absolute()} if snapshot else {}
    asked |= {watch.OWNERS: 1} if owners else {}
    asked |= _first_rank(gpus) if alone else {}
    if packages := where.manifest.get("packages"):
        asked[watch.PACKAGES] = " ".join(packages)
    variables = dict(environment or {}) | devices.environment(found, 1 if alone else gpus, memory)
    variables |= {name: str(value) for name, value in asked.items()}
    output = "hidden" if hidden else "aside" if quiet else "shown"
    more = {"rows": rows, "routing": routing, "node": min(gpus, found.node)}
    run = partial(_run, command, where, found, variables, output, cwd, **more)
    first = run(streams="early" if streams == "both" else streams)
    return replace(run(streams="late"), early=first) if streams == "both" and first.streams_differ else first


def _check(command, gpus, alone, steps, padded, rows, routing, streams):
    """Whether a rehearsal can be asked for so. Raises ValueError."""
    checks.whole("rehearse", "gpus", gpus, 1, 2**20 if alone else devices.MOST)
    checks.whole("rehearse", "steps", steps, 0, 2**31)
    checks.flag("rehearse", "padded", padded)
    checks.probability("rehearse", "rows", rows, one=True)
    checks.one_of("rehearse", "routing", routing, sizes.ROUTINGS)
    checks.one_of("rehearse", "streams", streams, STREAMS)
    if not command:
        raise ValueError("rehearse.command: nothing to run; allowed: everybyte rehearse -- python train.py ...")


def _first_rank(gpus):
    """Variables of the first of so many ranks, which runs alone."""
    said = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": gpus, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "localhost"}
    return said | {"MASTER_PORT": _free_port(), watch.ALONE: gpus}


@contextmanager
def _kept_back(output):
    """A context that gives the command's streams, and a function that shows what was kept back."""
    if output != "hidden":
        yield {"stdout": sys.stderr if output == "aside" else None}, lambda: None
        return
    with tempfile.TemporaryFile() as file:

        def show():
            file.seek(max(0, file.tell() - SHOWN))
            terminal.note(file.read().decode(errors="replace"))

        yield {"stdout": file, "stderr": file}, show


def _run(command, where, gpu, variables, output, cwd, **asked):
    """Run a command on the stubs. asked: what its result says that was asked for."""
    late = {"REHEARSAL_LATE": str(int(asked["streams"] == "late"))}
    with (
        surroundings(where, variables | late) as (environment, folder_of_reports),
        _kept_back(output) as (streams, show),
    ):
        environment[watch.REPORTS] = str(folder_of_reports)
        start = time.monotonic()
        words = _program(command, where, environment["PATH"], cwd)

        def told(status):
            seconds = time.monotonic() - start
            read, faults = reports.read(folder_of_reports)
            reports.check_followed(read)
            processes, others = reports.with_a_gpu([reports.survived(said, status) for said in read])
            if not processes:
                raise ValueError(reports.nobody(" ".join(command[:3]), status, read, faults))
            return ScriptRehearsal(
                command=list(command), gpu=gpu, status=status, seconds=seconds, processes=processes, faults=faults, others=others, **asked,
            )  # fmt: skip

        try:
            status = children.Child(words, environment, cwd=cwd, **streams).finish(grace=GRACE)
        except KeyboardInterrupt:
            if output == "hidden":
                raise
            with suppress(ValueError, reports.Lost):  # of what never used a GPU there is nothing to tell
                print(told(-signal.SIGTERM), file=sys.stderr)
            raise
        try:
            found = told(status)
        except Exception:
            show()
            raise
        if status and not found.oom:
            show()
        return found


def _workspace(gpu):
    """Bytes of one of cuBLAS's workspaces: the GPU's, or what CUBLAS_WORKSPACE_CONFIG, as ":4096:8", says in KiB."""
    sizes = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    return sum(1024 * int(size) * int(count) for size, count in sizes) or gpu.cublas_workspace


def _free_port():
    """A port that nobody has: two scripts may be rehearsed alone at once."""
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


def _program(command, where, path, cwd=None):
    """The command with its program's path, looked up in the rehearsal's environment first."""
    name, *rest = command
    if cwd and os.path.dirname(name):
        name = os.path.join(cwd, name)
    if name == "torchrun" and not (where.folder / "bin" / "torchrun").exists():
        return [str(where.python), "-m", "torch.distributed.run", *rest]
    program = shutil.which(name, path=path)
    if program is None:
        instead = f"python {name}" if name.endswith(".py") else "python, torchrun"
        raise ValueError(f"rehearse.command: there is no {name!r} in {where.folder.name} nor on the path; allowed: {instead}, "
                         f"or what {where.folder.name}/bin/pip has installed")  # fmt: skip
    return [program, *rest]
