"""A process of its own for measuring: it takes its memory with it when it ends, however it ends."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, cast

from ..ask.setup import Setup
from ..catalog import Model
from ..common import children, files
from .measurement import Measurement, model_as_dict

SOURCES = str(Path(__file__).resolve().parents[2])
#: What a worker runs. No module is taken from the folder that it happens to start in.
COMMAND, APART = (sys.executable, "-u", "-m", "everybyte.lab.worker"), {"PYTHONSAFEPATH": "1"}
#: Lines of a worker's standard error that are told when it fails.
LAST_LINES = 8
#: What makes an allocator's segments grow: PyTorch's name for it, and the older one.
EXPANDABLE = dict.fromkeys(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), "expandable_segments:True")
#: The variable that tells a worker whose it is.
PARENT = "EVERYBYTE_PARENT"
_ENDED = None


class Failed(RuntimeError):
    """A worker died, hung, or said what no worker says."""


class Worker(children.Ending):
    """A process that measures, one request after another. Use it as a context: at its end the process is ended.

    Args:
        command: what to run; by default this package's worker.
        environment: variables besides this process's.
    """

    def __init__(self, command: Sequence[str] = COMMAND, environment: Mapping[str, str] | None = None):
        paths = os.pathsep.join(filter(None, [SOURCES, os.environ.get("PYTHONPATH")]))
        variables = {"PYTHONPATH": paths, **(environment or {}), **APART, PARENT: str(os.getpid())}
        self._errors = tempfile.TemporaryFile()
        self._child = children.Child(
            command, os.environ | variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            encoding="utf-8", errors="replace",
        )  # fmt: skip
        self.process = self._child.process
        self._requests = cast(IO[str], self.process.stdin)  # a pipe, as asked for
        self._answers = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in cast(IO[str], self.process.stdout):
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
            raise self._failed(f"gave no answer within {timeout:g} s and was ended") from None
        except BaseException:  # Ctrl-C above all
            self.end()
            raise
        if line is _ENDED:
            raise self._failed(f"ended {children.how(self.process.wait())}")
        try:
            answer = files.parsed(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or not answer.keys() & {"found", "error"}:
            raise self._failed(f"said {line.strip()[:200]!r}, which is no answer")
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer

    def _failed(self, how):
        """The error of a worker that is ended here, with its last lines."""
        self.end()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()[-LAST_LINES:]
        last = "; its last lines:" + "".join(f"\n  {line}" for line in lines) if lines else ""
        return Failed(f"the worker {how}{last}")

    def end(self) -> None:
        """End the process and its children, now; once more does nothing."""
        self._child.end()
        with contextlib.suppress(OSError):  # of a request that nobody read
            self._requests.close()


class Bench(children.Ending):
    """A place for one worker at a time. One that failed, or kept something of a step, is ended: a fresh one follows.

    Args:
        start: starts a worker, given an `environment` where it needs one.
    """

    def __init__(self, start: Callable[..., Worker] = Worker):
        self._start, self._expandable = start, False
        self._worker: Worker | None = None

    def worker(self, expandable: bool = False) -> Worker:
        """The worker that is there, or a fresh one. `expandable`: one whose allocator's segments grow."""
        if expandable != self._expandable:
            self.end()
        if self._worker is None:
            self._worker = self._start(environment=EXPANDABLE) if expandable else self._start()
            self._expandable = expandable
        return self._worker

    def measure(self, *what, expandable: bool = False, **options) -> Measurement:
        """What `ask` asks of a worker."""
        clean = False
        try:
            measurement, clean = ask(self.worker(expandable), *what, **options)
        finally:  # Ctrl-C too: the process ends and its memory is free
            if not clean:
                self.end()
        return measurement

    def end(self) -> None:
        """End the worker, if there is one."""
        if self._worker is not None:
            self._worker.end()
        self._worker = None


def ask(worker: Worker, model: Model, setup: Setup, device: str | None, timeout: float, **options):
    """The measurement that a worker makes, and whether the worker is fit for another."""
    said = {"device": device, "model": model_as_dict(model), "setup": setup.as_dict(), "options": options}
    answer = worker.ask(timeout, ask="measure", **said)
    return Measurement.from_dict(answer["found"]), answer["clean"]
