"""Measure a grid of steps on one device into a file; an interruption loses only the running measurement."""

import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from .. import units
from ..ask.setup import Setup
from ..catalog import Model
from ..common import checks
from . import devices
from .grid import Configuration, for_gpu, grid
from .measurement import Measurement
from .measuring import START, check_request
from .process import Bench, Failed, Worker, at_once
from .rates import options
from .recipe import Recipe
from .records import append, fingerprint, read, repair, unmeasured

#: Seconds that one measurement may take.
EACH = 120.0


@dataclass
class Progress:
    """The outcome of a recording."""

    path: Path  # of the record
    there: int = 0  # measurements that it had already
    left: int = 0  # for which there was no time
    found: dict[str, int] = field(default_factory=dict)  # status -> measurements of this recording
    faults: list[str] = field(default_factory=list)  # of lines that were moved aside

    def as_dict(self) -> dict:
        """As JSON."""
        return asdict(self) | {"path": str(self.path)}

    def __str__(self):
        found = ", ".join(f"{count} {status}" for status, count in self.found.items()) or "nothing new"
        lines = [f"{self.path}: {found}, {self.there} there before, {self.left} left for want of time"]
        return "\n".join(lines + [f"moved aside: {fault}" for fault in self.faults])


def record(
    out: str | Path = "labs/records",
    minutes: float = 9.0,
    only: Iterable[str] = (),
    device: str | None = None,
    configurations: Iterable[Configuration] | None = None,
    need: Callable[[Model, Setup], int] | None = None,
    start: Callable[[], Worker] = Worker,
    jobs: int = 1,
) -> Progress:
    """Measure what is not recorded yet of a device, one line of `out`/`<gpu>.jsonl` each, until time is up.

    One worker measures one step after another. A new one replaces it after an out-of-memory, a failure, or where memory of a step
    is left. A later recording retries failed steps, and skips those recorded with the same fingerprint of the reference step.

    Args:
        minutes: after which nothing is started any more, and the running measurement is ended.
        only: names of the grid's groups. configurations: in place of the grid. device: as `measure`'s.
        need: gives the least bytes of a step; where the device has less free, the step is recorded as skipped.
        start: a function that starts a worker; it takes an `environment`.
        jobs: how many steps of which only the memory is asked for are measured at once, those that take little of the device, each by
            a worker of its own, before the others. What the driver counts is then all of theirs, and is left out.

    Raises:
        ValueError: for bad input, or a device that does not exist.
        Failed: where the worker cannot even describe the device.
    """
    if isinstance(minutes, bool) or not isinstance(minutes, int | float) or not minutes > 0:
        raise ValueError(f"record.minutes: {minutes!r} is not a number above 0")
    devices.check(device)
    checks.whole("record", "jobs", jobs, 1, 64)
    asked = configurations if configurations is not None else grid(only)
    wanted = [replace(one, setup=check_request(one.model, one.setup)) for one in asked]
    return _Recording(time.monotonic() + 60 * minutes, device, need, start, jobs).run(wanted, Path(out))


class _Recording:
    def __init__(self, deadline, device, need, start, jobs):
        self.deadline, self.device, self.need, self.start = deadline, device, need, start
        self.jobs, self.writing = jobs, threading.Lock()

    def run(self, wanted, folder):
        from tqdm import tqdm

        with Bench(self.start) as bench:
            self.found = found = bench.worker().ask(START, ask="device", device=self.device)["found"]
            wanted = for_gpu(wanted, bf16=has_bf16(found))
            folder.mkdir(parents=True, exist_ok=True)
            self.progress = progress = Progress(folder / f"{found['gpu'] or devices.slug(found['name'])}.jsonl")
            progress.faults = repair(progress.path)
            there = _there(progress.path)
            todo = [c for c in wanted if (c.model, c.setup, *c.asked.values()) not in there]
            progress.there, progress.left = len(wanted) - len(todo), len(todo)
            beside, alone = [], []
            for configuration in todo:
                (beside if self.jobs > 1 and self._is_light(configuration) else alone).append(configuration)
            with tqdm(total=len(todo), unit="step", smoothing=0.1) as self.bar:
                if beside:
                    bench.end()
                    at_once(self.start, self.jobs, partial(self._one, alone=False), beside, self._stop)
                for configuration in alone:
                    if not self._one(bench, configuration):
                        break
        return progress

    def _is_light(self, configuration):
        """Whether only its memory is asked for, and so little that as many steps fit beside one another."""
        plain, free = configuration.steps == 0 and configuration.limit is None, self.found["free"]
        if not plain or configuration.expandable or self.need is None or free is None:
            return False
        return self.need(configuration.model, configuration.setup) < free / (2 * self.jobs)

    def _stop(self):
        """Nothing is started any more, and no failure is noted."""
        self.deadline = 0

    def _one(self, bench, configuration, alone=True):
        """Measure one and keep it; False where time is up."""
        model, setup, progress, bar = configuration.model, configuration.setup, self.progress, self.bar
        if alone:
            bar.set_postfix_str(f"{configuration.group}: {model.name}, {setup.precision}")
        measurement = self._measurement(bench, configuration)
        if measurement is None:
            return False
        if not alone:  # the driver counts all that run
            measurement = replace(measurement, driver_before=None, driver_used=None)
        said = (measurement.settings or {}) | {"asked": configuration.asked}
        with self.writing:
            append(progress.path, replace(measurement, settings=said))
            if measurement.status == "failed":
                bar.write(f"{model.name}, {setup}: {measurement.reason}", file=sys.stderr)
            progress.found[measurement.status] = progress.found.get(measurement.status, 0) + 1
            progress.left -= 1
            bar.update()
        return True

    def _measurement(self, bench, configuration):
        """The measurement of a configuration; None where time is up."""
        model, setup, device = configuration.model, configuration.setup, self.found

        def without(status, reason):
            return unmeasured(status, reason, model, setup, device, 512 if device["type"] == "cuda" else 1)

        if setup.dtypes.compute == "bf16" and not has_bf16(device):
            reason = f"{device['name']} has no units for bf16: fp16-mixed and fp32 are measured on it"
            return without("skipped", reason)
        needed = self.need(model, setup) if self.need and configuration.limit is None else 0
        if device["free"] is not None and needed > device["free"]:
            reason = f"it needs {units.text(needed)} at least, and {units.text(device['free'])} were free"
            return without("skipped", reason)
        left = self.deadline - time.monotonic()
        if left <= 0:
            return None
        try:
            how = options(configuration) | {"expandable": configuration.expandable}
            return bench.measure(model, setup, self.device, min(EACH, left), **how)
        except (Failed, ValueError) as error:
            return None if time.monotonic() >= self.deadline else without("failed", str(error))


def _there(path):
    """The configurations of a record that need not be measured again."""
    if not path.exists():
        return set()
    measured = (m for m in read(path).measurements if m.fingerprint == fingerprint() and m.status != "failed")
    return {(m.model, m.setup, *asked(m).values()) for m in measured}


def asked(measurement: Measurement) -> dict:
    """How a recorded step was measured, beside its model and setup."""
    plain = Configuration("", measurement.model, measurement.setup, measurement.steps or 0).asked
    if measurement.learning:  # some of its steps are counted, and not timed
        plain |= {"steps": measurement.learning["asked"], "recipe": str(Recipe(**measurement.learning["recipe"]))}
    return plain | (measurement.settings or {}).get("asked", {})


def has_bf16(device: dict) -> bool:
    """Whether a device has bf16 units, by its compute capability; True for a CPU and where it is unknown."""
    return float(device.get("capability") or 8) >= 8
