"""The same step on as many GPUs as the setup says, a process each, started and ended by torchrun."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from ..ask.setup import Setup
from ..catalog import Model
from ..common import children
from .measurement import Measurement
from .process import LAST_LINES, Failed, Worker, request, surroundings, written

#: Seconds that torchrun may take to end its processes, and that a worker may take to say how many GPUs there are.
GRACE, START = 35.0, 120.0
#: What a measurement keeps of every rank.
KEPT = (
    "phases", "requested", "peaks", "peak", "peak_at", "allocated_peak", "active_peak", "reserved_peak", "step_ms", "loss",
)  # fmt: skip


def measure_ranks(
    model: Model, setup: Setup, device: str | None, timeout: float, command=("-m", "everybyte.lab.ranks"), **options
) -> Measurement:
    """Measure on all of the setup's GPUs at once: rank 0's measurement, with what each rank found in its `ranks`.

    Where a rank runs out of memory the measurement is that rank's.

    Raises:
        ValueError: where there are fewer GPUs, or a rank refuses.
        Failed: where a rank dies: torchrun ends the others.
    """
    with Worker() as worker:
        there = worker.ask(START, ask="gpus", device=device)["found"]
    if setup.gpus > there:
        raise ValueError(
            f"Setup.gpus: {setup.gpus}, and this machine has room for {there}; allowed: at most as many, or the first of "
            "any number alone (`alone=True`, --alone), over collectives that move nothing"
        )
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as errors:
        asked = request(model, setup, device, options) | {"launcher": os.getpid()}
        (Path(folder) / "request.json").write_text(json.dumps(asked), encoding="utf-8")
        _torchrun([f"--nproc-per-node={setup.gpus}", *command, folder], timeout, errors, {"TMPDIR": folder})
        said = {rank: _read(Path(folder) / f"{rank}.json") for rank in range(setup.gpus)}
        for answer in said.values():
            if "error" in answer:
                raise ValueError(answer["error"])
        found = {rank: answer["found"] for rank, answer in said.items() if "found" in answer}
        for rank, one in found.items():
            if one["status"] == "oom":
                return Measurement.from_dict(one | {"ranks": [{"rank": rank, "status": "oom"}]})
        if len(found) < setup.gpus:
            missing = ", ".join(str(rank) for rank in range(setup.gpus) if rank not in found)
            raise Failed(f"of {setup.gpus} ranks these died or were ended: {missing}{_last_words(errors)}")
    ranks = [{"rank": rank} | {name: one[name] for name in KEPT if name in one} for rank, one in found.items()]
    return Measurement.from_dict(found[0] | {"ranks": ranks})


def _torchrun(arguments, timeout, errors, variables):
    """Run torchrun until it ends; whatever ends us, or `timeout` seconds, end it and its processes.

    `variables`: of the environment, where it puts files that it leaves when it is ended among them.
    """
    environment = {"OMP_NUM_THREADS": "1"} | surroundings(variables)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=0", *arguments]
    child = children.Child(command, environment, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
    try:
        child.finish(timeout, GRACE)
    except subprocess.TimeoutExpired:
        raise Failed(f"the ranks gave no answer within {timeout:g} s and were ended") from None


def _read(path):
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _last_words(errors):
    lines = [line for line in written(errors) if line.strip()]
    told = [line for line in lines if "Error" in line or "Signal" in line or "exitcode" in line] or lines
    return "".join(f"\n  {line.strip()}" for line in told[-LAST_LINES:])
