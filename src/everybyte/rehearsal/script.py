"""Any training script on a GPU that does nothing: started, watched, and asked what its allocator saw."""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path

from ..common import checks, children
from . import devices, place, reports, watch
from .result import ScriptRehearsal

PACKAGE = Path(__file__).resolve().parents[1]
INSIDE = Path(__file__).resolve().parent / "inside" / "sitecustomize.py"
#: Optimizer steps after which a script is ended, unless another number is said: by then every peak has been.
STEPS = 5
#: Seconds that a script, and what it has started, may take to end once they were asked to.
GRACE = 10.0


@contextmanager
def surroundings(where: "place.Place", variables: dict[str, str]):
    """Within it: the environment variables of a rehearsed process, and a folder of its own for what it needs and says."""
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
        }, said  # fmt: skip


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
        ValueError: where there is no environment, no such command in it, or no process of it is known to have used a GPU.
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
    with surroundings(where, variables) as (environment, folder_of_reports):
        environment[watch.REPORTS] = str(folder_of_reports)
        start = time.monotonic()
        words = _program(command, where, environment["PATH"])
        status = children.Child(words, environment, stdout=sys.stderr if quiet else None).finish(grace=GRACE)
        seconds = time.monotonic() - start
        read, faults = reports.read(folder_of_reports)
    processes = sorted((said for said in read if said["devices"]), key=lambda said: said["rank"])
    if not processes:
        raise ValueError(reports.nobody(" ".join(command[:3]), status, read, faults))
    return ScriptRehearsal(
        command=list(command), gpu=found, status=status, seconds=seconds, processes=processes, faults=faults
    )


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
