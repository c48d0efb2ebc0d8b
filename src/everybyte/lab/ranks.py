"""One of many GPUs: `python -m everybyte.lab.ranks FOLDER`, started by torchrun, or the first of them all alone.

Each rank reads `FOLDER/request.json` and writes what it found to `FOLDER/RANK.json`, beside and then renamed.
"""

import json
import os
import sys
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from ..ask.setup import Setup
from ..common import files
from .measurement import model_from_dict
from .process import end_with
from .run import describe, find, run

#: Seconds that a rank waits for the others in one collective: who is dead by then is not waited for any longer. NCCL's first
#: one makes its connections.
PATIENCE, FIRST = 40, 180
#: Ranks that a CPU may be given at once.
PROCESSES = 8


@contextmanager
def group(setup: Setup, device: torch.device, real: bool = False):
    """Within it, this process is a rank of `setup.gpus`: torchrun's, where that started it; else the first, all alone.

    `real`: not with collectives that move nothing, by which nothing is learned. Alone, collectives move nothing, yet every tensor of rank 0's is there. Gives the name of what carries them.

    Raises:
        ValueError: where torchrun started another number, or PyTorch was built without what they need.
    """
    if not setup.distributed:
        yield None
        return
    if "TORCHELASTIC_RUN_ID" in os.environ:
        started = int(os.environ["WORLD_SIZE"])
        if started != setup.gpus:
            raise ValueError(f"Setup.gpus: {setup.gpus}, and torchrun started {started}; allowed: as many")
        backend = "nccl" if device.type == "cuda" else "gloo"
        if not dist.is_backend_available(backend):
            raise ValueError(f"Setup.gpus: {setup.gpus} need {backend}, and this PyTorch has none; allowed: 1")
        dist.init_process_group(backend, timeout=timedelta(seconds=FIRST if backend == "nccl" else PATIENCE))
    elif real:
        if setup.gpus > 1:
            raise ValueError(
                f"Setup.gpus: {setup.gpus}, alone, learn nothing of one another; allowed: as many processes, or 1"
            )
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, rank=0, world_size=1, store=dist.HashStore())
    else:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        backend = "fake"
        dist.init_process_group(backend, rank=0, world_size=setup.gpus, store=FakeStore())
    try:
        yield backend
    finally:
        dist.destroy_process_group()


def run_as_rank(model, setup: Setup, device: torch.device, **options) -> tuple[dict, bool]:
    """What `run` finds, in the group of its setup."""
    if setup.ddp:  # its buckets are rebuilt at the second step, in the order in which gradients came
        options["warm_up"] = max(2, options.get("warm_up", 2))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with group(setup, device, real=options.get("recipe") is not None) as backend:
        found, clean = run(model, setup, device, **options)
    if backend:
        found["settings"] = found["settings"] | {"collectives": backend, "gpus": setup.gpus}
    return found, clean


def answer(request: dict) -> dict:
    """What a request is answered with: what was `found` and whether this process is as `clean` as before; or the `error` of bad input."""
    try:
        device = find(request["device"])
        if request["ask"] == "device":
            return {"found": describe(device)}
        if request["ask"] == "gpus":
            return {"found": torch.cuda.device_count() if device.type == "cuda" else PROCESSES}
        model, setup = model_from_dict(request["model"]), Setup(**request["setup"])
        found, clean = run_as_rank(model, setup, device, **request["options"])
    except ValueError as error:
        return {"error": str(error)}
    return {"found": found | {"model": request["model"], "setup": request["setup"]}, "clean": clean}


def main(folder: Path) -> int:
    """Measure as one rank; the exit status. A rank that ran out of memory ends with 3: the others wait for it in vain."""
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    end_with(os.getppid(), request["launcher"])
    device = "cpu" if request["device"] == "cpu" else f"cuda:{os.environ['LOCAL_RANK']}"
    said = answer(request | {"ask": "measure", "device": device})
    _write(folder / f"{os.environ['RANK']}.json", said)
    return 2 if "error" in said else 3 if said["found"]["status"] == "oom" else 0


def _write(path, said):
    with files.whole(path) as file:
        file.write(json.dumps(said, allow_nan=False).encode())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
