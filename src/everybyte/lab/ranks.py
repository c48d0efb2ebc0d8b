"""A worker's answers: as the only GPU, as one of several ranks, or as rank 0 alone."""

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
#: The most ranks on a CPU.
PROCESSES = 8


@contextmanager
def group(setup: Setup, device: torch.device, real: bool = False):
    """A context in which this process is a rank of `setup.gpus`; it gives the name of the backend, or None.

    It is one of several ranks that were started, or else rank 0 alone: then its tensors exist and its collectives move nothing.
    Where collectives must be `real`, as for learning, rank 0 of several alone is refused.

    Raises:
        ValueError: where torchrun started another number of ranks, or PyTorch lacks the backend.
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
    """What `run` returns, in the process group of its setup."""
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
    """The answer to a request: `found`, with `clean`, whether nothing of the step is left; or the `error` of bad input."""
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
