"""Measure one step on this machine, by one worker per GPU."""

import os
import socket
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from threading import TIMEOUT_MAX
from typing import Any

from ..ask.setup import Setup
from ..catalog import Model
from ..common import checks
from .devices import check as check_device
from .measurement import Measurement
from .process import COMMAND, EXPANDABLE, Failed, Worker, ask
from .recipe import Recipe

#: Seconds that a worker may take to start and describe its device; that ranks get to end after one has failed.
START, GRACE = 120.0, 1.0
#: Fields of every rank that a measurement keeps.
KEPT = (
    "phases", "requested", "peaks", "peak", "peak_at", "allocated_peak", "active_peak", "reserved_peak", "step_ms",
    "loss",
)  # fmt: skip


def measure(
    model: Model,
    setup: Setup,
    device: str | None = None,
    *,
    warm_up: int = 2,
    steps: int = 5,
    points: int = 400,
    tf32: bool = False,
    limit: int | None = None,
    alone: bool = False,
    expandable: bool = False,
    recipe: Recipe | None = None,
    timeout: float = 600.0,
) -> Measurement:
    """Measure one steady training step on this machine: the reference step, on real tensors, in a process of its own.

    Out of memory is a result. Ctrl-C ends the process and frees what it held. A setup of many GPUs runs on as many, a
    process each (`ranks` says what each found); or `alone`, the first of them on one GPU.

    Args:
        device: `cuda`, `cuda:1`, ...; by default the first GPU. `cpu` runs the same step on the CPU and counts the
            storages of its tensors (`rounding` 1): no kernel's own memory, and the CPU's choice of kernels.
        warm_up: steps before; steps: timed steps.
        points: the most points of the timeline that are kept; 0 for no timeline and no `peak_at`.
        tf32: whether fp32 matrix products may round their factors to TF32.
        limit: bytes that the step may take, for instance to run out of memory on purpose.
        expandable: whether the allocator maps memory into segments that grow (`expandable_segments:True`).
        recipe: of a training run on prose, whose steps are measured in place of `steps`.
        alone: measure rank 0 alone, on one device: all its tensors exist, and its collectives move nothing.
        timeout: seconds after which the process is ended.

    Raises:
        ValueError: for bad input, a setup that does not fit the model, a device that does not exist, or too few GPUs.
        Failed: where the process dies, with its exit status and last lines, or takes longer than `timeout`.
    """
    options: dict[str, Any] = {"warm_up": warm_up, "steps": steps, "points": points, "tf32": tf32, "limit": limit}
    setup = check_request(model, setup, recipe=recipe, **options)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise ValueError(f"measure.timeout: {timeout!r} is not a number of seconds above 0")
    check_device(device)
    checks.flag("measure", "alone", alone)
    checks.flag("measure", "expandable", expandable)
    options["recipe"] = recipe and recipe.as_dict()
    if setup.gpus > 1 and not alone:
        if expandable:
            raise ValueError(
                "measure.expandable: True, for one GPU alone; allowed: False, or PYTORCH_ALLOC_CONF in your shell"
            )
        return measure_ranks(model, setup, device, timeout, **options)
    with Worker(environment=EXPANDABLE if expandable else None) as worker:
        return ask(worker, model, setup, device, timeout, **options)[0]


class _RanOut(Exception):
    """A rank ran out of memory, so the others would wait forever. Its argument is that rank's measurement."""


def measure_ranks(
    model: Model, setup: Setup, device: str | None, timeout: float, command: Sequence[str] = COMMAND, **options
) -> Measurement:
    """Measure on all of the setup's GPUs at once, with one worker each: rank 0's measurement, with `ranks` of all.

    Where a rank runs out of memory, it is that rank's measurement.

    Raises:
        ValueError: where there are fewer GPUs, or a rank refuses.
        Failed: where a rank dies; the others are ended.
    """
    with Worker() as worker:
        there = worker.ask(START, ask="gpus", device=device)["found"]
    if setup.gpus > there:
        raise ValueError(
            f"Setup.gpus: {setup.gpus}, and this machine has room for {there}; allowed: at most as many, or the first "
            "of any number alone (`alone=True`, --alone), over collectives that move nothing"
        )

    def measured(rank, worker):
        where = device if device == "cpu" else f"cuda:{rank}"
        found = ask(worker, model, setup, where, TIMEOUT_MAX, **options)[0]
        if found.oom:
            raise _RanOut(replace(found, ranks=[{"rank": rank, "status": "oom"}]))
        return found

    with ThreadPoolExecutor(setup.gpus) as pool, ExitStack() as ending:  # the pool ends once its workers have
        workers = [ending.enter_context(Worker(command, variables)) for variables in _ranks(setup.gpus)]
        asked = [pool.submit(measured, rank, worker) for rank, worker in enumerate(workers)]
        done, left = wait(asked, min(timeout, TIMEOUT_MAX), FIRST_EXCEPTION)
        if left and not any(one.exception() for one in done):
            raise Failed(f"the ranks gave no answer within {timeout:g} s and were ended")
        wait(asked, GRACE)
        errors = [one.exception() if one.done() else Failed("was ended") for one in asked]
    for error in errors:
        if isinstance(error, ValueError):
            raise error
    for error in errors:
        if isinstance(error, _RanOut):
            return error.args[0]
    if missing := {rank: error for rank, error in enumerate(errors) if error}:
        how = "".join(f"\n  rank {rank}: {error}" for rank, error in missing.items())
        raise Failed(f"of {setup.gpus} ranks these died or were ended: {', '.join(map(str, missing))}{how}")
    found = [one.result() for one in asked]
    kept = [{name: value for name in KEPT if (value := getattr(one, name)) is not None} for one in found]
    return replace(found[0], ranks=[{"rank": rank} | one for rank, one in enumerate(kept)])


def _ranks(gpus):
    """For each rank the environment variables of torchrun, by which PyTorch finds the other ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": gpus, "LOCAL_WORLD_SIZE": gpus}
    shared |= {"TORCHELASTIC_RUN_ID": "everybyte", "TORCHELASTIC_USE_AGENT_STORE": False}
    shared |= {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", 1)}
    each = [shared | {"RANK": rank, "LOCAL_RANK": rank} for rank in range(gpus)]
    return [{name: str(value) for name, value in one.items()} for one in each]


def check_request(model, setup, *, warm_up=2, steps=5, points=0, tf32=False, limit=None, recipe=None, alone=False):
    """The setup, with what it leaves unsaid as the model has it. Raise ValueError where a worker could only fail, before one is started.

    alone: rank 0 is measured alone, and collectives move nothing.
    """
    for field, value, kind, allowed in (
        ("model", model, Model, "everybyte.model(name) or everybyte.Model(...)"),
        ("setup", setup, Setup, "everybyte.Setup(...)"),
    ):
        if not isinstance(value, kind):
            raise ValueError(f"measure.{field}: {value!r} is not a {kind.__name__}; allowed: {allowed}")
    if unlike := model.unlike_reference():
        raise ValueError(unlike)
    if not alone:
        setup.check_undivided("measure")
    elif len(setup.mesh.divided) > 1 or "pipeline" in setup.mesh.divided:
        raise ValueError(
            f"rehearse.setup: mesh {setup.mesh} is not rehearsed; allowed: tensor, context or expert alone, or none"
        )
    setup = setup.of(model.own)
    setup.check_model(model)
    checks.whole("measure", "warm_up", warm_up, 1, 1000)
    checks.whole("measure", "steps", steps, 1, 1000)
    if points != 0:
        checks.whole("measure", "points", points, 4, 100_000)
    checks.flag("measure", "tf32", tf32)
    if limit is not None:
        checks.whole("measure", "limit", limit, 1)
    if recipe is not None:
        checks.kind("measure", "recipe", recipe, Recipe)
        recipe.check(setup)
        if model.vocabulary < 256:
            raise ValueError(
                f"Model.vocabulary: {model.vocabulary} has no place for every byte of prose; allowed: 256 or more"
            )
    return setup
