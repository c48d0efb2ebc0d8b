"""A process of its own for measuring: it takes its memory with it when it ends, however it ends."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

from .. import checks, children, files
from ..catalog import Model
from ..setup import Setup
from .devices import check as check_device
from .measurement import Measurement, model_as_dict
from .recipe import Recipe

SOURCES = str(Path(__file__).resolve().parents[2])
#: Lines of a worker's standard error that are told when it fails.
LAST_LINES = 8
#: What makes an allocator's segments grow: PyTorch's name for it, and the older one.
EXPANDABLE = dict.fromkeys(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), "expandable_segments:True")
#: No module is taken from the folder that a process of ours happens to start in.
APART = {"PYTHONSAFEPATH": "1"}
#: The variable that tells a worker whose it is.
PARENT = "EVERYBYTE_PARENT"
_ENDED = None


class Failed(RuntimeError):
    """A worker died, hung, or said what no worker says."""


class Worker:
    """A process that measures, one request after another. Use it as a context: at its end the process is ended.

    Args:
        command: what to run; by default this package's worker.
        environment: variables besides this process's.
    """

    def __init__(
        self,
        command: Sequence[str] = (sys.executable, "-u", "-m", "everybyte.lab.worker"),
        environment: Mapping[str, str] | None = None,
    ):
        paths = [SOURCES, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._errors = tempfile.TemporaryFile()
        self._child = children.Child(
            command,
            os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | dict(environment or {}) | APART | {PARENT: str(os.getpid())},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, encoding="utf-8", errors="replace",
        )  # fmt: skip
        self.process = self._child.process
        self._requests = cast(IO[str], self.process.stdin)  # a pipe, as asked for
        self._said = cast(IO[str], self.process.stdout)
        self._answers = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in self._said:
            self._answers.put(line)
        self._answers.put(_ENDED)

    def ask(self, timeout: float, **request) -> dict:
        """What the worker answers to a request.

        Raises:
            ValueError: where the worker refuses the request.
            Failed: where it ends, or gives no answer within `timeout` seconds; it is ended then.
        """
        try:
            if self._requests.closed:
                raise BrokenPipeError
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()
            line = self._answers.get(timeout=min(timeout, threading.TIMEOUT_MAX))
        except BrokenPipeError:
            line = _ENDED
        except queue.Empty:
            self.end()
            raise Failed(f"the worker gave no answer within {timeout:g} s and was ended{self._last_words()}") from None
        except BaseException:  # Ctrl-C above all
            self.end()
            raise
        if line is _ENDED:
            status = self.process.wait()
            self.end()
            raise Failed(f"the worker ended {children.how(status)}{self._last_words()}")
        try:
            answer = files.parsed(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or not answer.keys() & {"found", "error"}:
            self.end()
            raise Failed(f"the worker said {line.strip()[:200]!r}, which is no answer{self._last_words()}")
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer

    def _last_words(self):
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()[-LAST_LINES:]
        return "".join(f"\n  {line}" for line in ["; its last lines:", *lines]).replace("\n  ;", ";") if lines else ""

    def end(self) -> None:
        """End the process and its children, now; once more does nothing."""
        self._child.end()
        with contextlib.suppress(OSError):  # of a request that nobody read
            self._requests.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.end()


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
        device: `cuda`, `cuda:1`, ...; by default the first GPU. `cpu` runs the same step on the CPU and counts the storages
            of its tensors (`rounding` 1): no kernel's own memory, and the CPU's choice of kernels.
        warm_up, steps: how many steps to take before, and how many to time.
        points: the most places of the timeline to keep; 0 for no timeline, and no `peak_at`.
        tf32: whether fp32 matrix products may round their factors to TF32.
        limit: bytes that the step may take, to run out on purpose.
        expandable: whether the allocator maps memory into segments that grow (`expandable_segments:True`), in a process of its own.
        recipe: of a training run on prose, in place of `steps`: each step is one of its steps.
        alone: of many GPUs measure the first, on one device: its collectives move nothing, and all its tensors are there.
        timeout: seconds until the process is ended.

    Raises:
        ValueError: for bad input, for a setup that does not fit the model, and where there is no such device, or too few.
        Failed: where the process dies, with its exit status and last lines, or takes longer than `timeout`.
    """
    check_request(model, setup, warm_up=warm_up, steps=steps, points=points, tf32=tf32, limit=limit, recipe=recipe)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise ValueError(f"measure.timeout: {timeout!r} is not a number of seconds above 0")
    check_device(device)
    checks.flag("measure", "alone", alone)
    checks.flag("measure", "expandable", expandable)
    options: dict[str, Any] = {"warm_up": warm_up, "steps": steps, "points": points, "tf32": tf32, "limit": limit}
    if recipe:
        options["recipe"] = recipe.as_dict()
    if setup.gpus > 1 and not alone:
        if expandable:
            raise ValueError(
                "measure.expandable: True, for one GPU alone; allowed: False, or PYTORCH_ALLOC_CONF in your shell"
            )
        from .torchrun import measure_ranks

        return measure_ranks(model, setup, device, timeout, **options)
    with Worker(environment=EXPANDABLE if expandable else None) as worker:
        return ask(worker, model, setup, device, timeout, **options)[0]


def ask(worker: Worker, model: Model, setup: Setup, device: str | None, timeout: float, **options):
    """The measurement that a worker makes, and whether the worker is fit for another."""
    answer = worker.ask(
        timeout, ask="measure", device=device, model=model_as_dict(model), setup=setup.as_dict(), options=options
    )
    return Measurement.from_dict(answer["found"]), answer["clean"]


def check_request(
    model, setup, *, warm_up=2, steps=5, points=0, tf32=False, limit=None, recipe=None, alone=False
) -> None:
    """Raise ValueError where a worker could only fail, before one is started.

    `alone`: it is the first of all GPUs, and collectives move nothing.
    """
    if not isinstance(model, Model):
        raise ValueError(
            f"measure.model: {model!r} is not a Model; allowed: everybyte.model(name) or everybyte.Model(...)"
        )
    if not isinstance(setup, Setup):
        raise ValueError(f"measure.setup: {setup!r} is not a Setup; allowed: everybyte.Setup(...)")
    if unlike := model.unlike_reference():
        raise ValueError(unlike)
    if not alone:
        setup.check_undivided("measure")
    elif len(setup.mesh.divided) > 1 or {"pipeline", "expert"} & set(setup.mesh.divided):
        raise ValueError(
            f"rehearse.setup: mesh {setup.mesh} is not rehearsed; allowed: tensor or context alone, or none"
        )
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
