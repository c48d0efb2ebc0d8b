"""What a worker answers: as the only GPU, as one of many, or as the first of many, alone."""

import os
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from ..ask.setup import Setup
from .measurement import model_from_dict
from .run import describe, find, run

#: Seconds that a rank waits for the others in a collective; NCCL's first one also makes its connections.
PATIENCE, FIRST = 40, 180
#: Ranks that a CPU may be given at once.
PROCESSES = 8


@contextmanager
def group(setup: Setup, device: torch.device, real: bool = False):
    """Within it, this process is a rank of `setup.gpus`: one of several that were started, else the first, alone.

    Alone, collectives move nothing, yet all of rank 0's tensors are there. Where they must be `real`, as to learn,
    several GPUs alone are refused. It gives the name of what carries the collectives.

    Raises:
        ValueError: where torchrun started another number, or PyTorch was built without what they need.
    """
    if not setup.distributed:
        yield None
        return
    backend = "nccl" if device.type == "cuda" else "gloo"
    if "TORCHELASTIC_RUN_ID" in os.environ:
        started = int(os.environ["WORLD_SIZE"])
        if started != setup.gpus:
            raise ValueError(f"Setup.gpus: {setup.gpus}, and torchrun started {started}; allowed: as many")
        if not dist.is_backend_available(backend):
            raise ValueError(f"Setup.gpus: {setup.gpus} need {backend}, and this PyTorch has none; allowed: 1")
        dist.init_process_group(backend, timeout=timedelta(seconds=FIRST if backend == "nccl" else PATIENCE))
    elif real:
        if setup.gpus > 1:
            said = f"Setup.gpus: {setup.gpus}, alone, learn nothing of one another"
            raise ValueError(f"{said}; allowed: as many processes, or 1")
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
    """What was `found` for a request, and whether this process is `clean` again; or the `error` of bad input."""
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
