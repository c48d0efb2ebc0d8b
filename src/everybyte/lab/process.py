"""Worker processes that measure: when one ends, in whatever way, its memory is free."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, cast

from ..ask.setup import Setup
from ..catalog import Model
from ..common import children, files
from .measurement import Measurement, model_as_dict

SOURCES = str(Path(__file__).resolve().parents[2])
#: A worker's command, and a variable that keeps it from importing modules of its working folder.
COMMAND, APART = (sys.executable, "-u", "-m", "everybyte.lab.worker"), {"PYTHONSAFEPATH": "1"}
#: Lines of a failed worker's standard error that the error shows.
LAST_LINES = 8
#: Variables that let the allocator's segments grow: PyTorch's present name and the older one.
EXPANDABLE = dict.fromkeys(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), "expandable_segments:True")
#: The variable with the process number of a worker's parent.
PARENT = "EVERYBYTE_PARENT"
_ENDED = None


class Failed(RuntimeError):
    """A worker died, hung, or gave an invalid answer."""


class Worker(children.Ending):
    """A process that measures, one request after another. As a context it ends the process at its end.

    Args:
        command: what to run; by default this package's worker.
        environment: variables in addition to this process's.
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
        """The worker's answer to a request.

        Raises:
            ValueError: where the worker refuses the request.
            Failed: where the worker ends, or does not answer within `timeout` seconds and is ended.
        """
        try:
            line = _ENDED
            if not self._requests.closed:
                with contextlib.suppress(BrokenPipeError):  # a worker that has ended is heard all the same
                    self._requests.write(json.dumps(request) + "\n")
                    self._requests.flush()
                line = self._answers.get(timeout=min(timeout, threading.TIMEOUT_MAX))
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
        """End the worker; return the error with its last lines."""
        self.end()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()[-LAST_LINES:]
        last = "; its last lines:" + "".join(f"\n  {line}" for line in lines) if lines else ""
        return Failed(f"the worker {how}{last}")

    def end(self) -> None:
        """End the process and its children now. A second call does nothing."""
        self._child.end()
        with contextlib.suppress(OSError):  # of a request that nobody read
            self._requests.close()


class Bench(children.Ending):
    """Holds one worker at a time, and replaces one that failed or has memory of a step left.

    Args:
        start: a function that starts a worker; it takes an `environment`.
    """

    def __init__(self, start: Callable[..., Worker] = Worker):
        self._start, self._expandable = start, False
        self._worker: Worker | None = None

    def worker(self, expandable: bool = False) -> Worker:
        """The present worker, or a new one. expandable: whether its allocator's segments grow."""
        if expandable != self._expandable:
            self.end()
        if self._worker is None:
            self._worker = self._start(environment=EXPANDABLE) if expandable else self._start()
            self._expandable = expandable
        return self._worker

    def measure(self, *what, expandable: bool = False, **options) -> Measurement:
        """The measurement by the worker, with the arguments of `ask`."""
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


def at_once(
    start: Callable[..., Worker], jobs: int, one: Callable, wanted: Iterable, stop: Callable = lambda: None
) -> None:
    """Call `one(bench, item)` for each of the wanted, `jobs` at once, each on a `Bench` of its own.

    When this ends, in whatever way, the workers have ended. stop: called before that, where an error or Ctrl-C ends it.
    """
    with contextlib.ExitStack() as ending:
        pool = ending.enter_context(ThreadPoolExecutor(jobs))
        free = [ending.enter_context(Bench(start)) for _ in range(jobs)]  # they end before the pool does

        def on_one(item):
            bench = free.pop()
            one(bench, item)
            free.append(bench)

        asked = [pool.submit(on_one, item) for item in wanted]
        try:
            for running in asked:
                running.result()
        except BaseException:
            stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def ask(worker: Worker, model: Model, setup: Setup, device: str | None, timeout: float, **options):
    """(a worker's measurement, whether the worker can take another request)."""
    said = {"device": device, "model": model_as_dict(model), "setup": setup.as_dict(), "options": options}
    answer = worker.ask(timeout, ask="measure", **said)
    return Measurement.from_dict(answer["found"]), answer["clean"]
