"""Several steps for the labs' notebooks: measured here on a GPU, or else from the record, or else a sentence that there is none."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .. import units
from ..ask.setup import Setup
from ..catalog import Model
from ..common import checks
from ..common.tables import Table
from .grid import in_fp16
from .measurement import Measurement
from .measuring import check_request, measure_ranks
from .process import Bench, Failed, Worker
from .recipe import Recipe
from .recording import asked, has_bf16
from .records import fingerprint, read, unmeasured

#: A variable: where it is set, no GPU is used, so that the book's stored outputs are the same on every machine.
RECORD_ONLY = "EVERYBYTE_RECORD_ONLY"
#: Where records are looked for, from the working folder: of a lab, of the repository, of a chapter.
FOLDERS = ("records", "labs/records", "../labs/records")
NOT_YET = "Not yet recorded on a GPU"
#: The record that comes with the book.
BOOK = "h200.jsonl"
#: Whose measurements a conclusion is of.
OWN, NOW = "Your own record", "Your own GPU, measured just now"
QUOTED = "No record of your own: `everybyte record` makes one. The book's is quoted"


class _Shown:
    """Shows its table, or the sentence `said` where the table would be empty."""

    def __repr__(self):
        return repr(self.table()) if self._any() else self.said

    def _repr_html_(self):
        return self.table()._repr_html_() if self._any() else None


@dataclass(frozen=True, eq=False, repr=False)
class Runs(_Shown):
    """Steps of one model, by the names that a notebook gives them."""

    said: str  # where the measurements are from, a sentence
    found: dict[str, Measurement | None]  # None for what is not there
    live: bool = False  # whether they were made just now

    @property
    def measured(self) -> dict[str, Measurement]:
        """The completed measurements."""
        return {name: m for name, m in self.found.items() if m is not None and m.status == "measured"}

    def table(self) -> Table:
        """A row each: the most bytes allocated and reserved; on a GPU also time and rates.

        Times are left out where collectives move nothing, and of rehearsals.
        """
        timed = any(m.device["type"] != "cpu" for m in self.measured.values())
        columns = ["", "peak (B)", "size", *(["reserved (B)", "ms a step", "tokens/s", "MFU"] if timed else [])]
        return Table(columns, [[name, *_row(m, timed)] for name, m in self.found.items()], self.said)

    def _any(self):
        return any(self.found.values())


def _row(m, timed):
    if m is None or m.status != "measured":
        said = "not yet recorded" if m is None else f"{m.status}: {m.reason}"
        if m and m.oom:
            out = m.out_of_memory
            wanted, free = ("?" if out[k] is None else units.text(out[k]) for k in ("requested", "free"))
            said = f"out of memory in {out['at']}: {wanted} asked for, {free} free"
        return ["–", said, *["–"] * 4 * timed]
    times = ["–"] * 3
    if m.timed:
        times = [f"{m.step_ms:,.1f}", f"{m.tokens_per_s:,.0f}", "–" if m.mfu is None else f"{m.mfu:.1%}"]
    fallback = ", by the math kernel" if (m.settings or {}).get("attention_kernel") == "math" else ""
    return [m.peak, units.text(m.peak) + fallback, *([m.reserved_peak, *times] if timed else [])]


def runs(
    model: Model | Callable[[Setup], Model],
    setups: Mapping[str, Setup],
    device: str | None = None,
    *,
    records: str | os.PathLike | None = None,
    timeout: float = 600.0,
    **options,
) -> Runs:
    """Several steps of a model, one after another in one process of their own, or from the record.

    Args:
        model: of all steps, or a function of the setup that gives it. setups: name -> setup.
        device: as `measure`'s, and measured there. By default the first GPU where PyTorch can use one and
            `EVERYBYTE_RECORD_ONLY` is not set; else the record of the GPU that has most of them.
        records: the folder of the records; by default the first of `FOLDERS` that exists.
        timeout: seconds for each. options: `warm_up`, `steps`, `points`, `tf32`, `limit`, `expandable` as `measure`'s.

    Raises:
        ValueError: for bad input, and for a `device` that there is not.
    """
    steps = {name: (model(setup) if callable(model) else model, setup) for name, setup in setups.items()}
    steps = {name: (step[0], check_request(*step)) for name, step in steps.items()}
    if device is None and not _gpu():
        return _recorded({name: _step(*step, options) for name, step in steps.items()}, records)
    return _measured(steps, device, timeout, dict.fromkeys(steps, options))


@dataclass(frozen=True, eq=False, repr=False)
class Trainings(_Shown):
    """Training runs of one model, by the names that a notebook gives its setups, each with the same seeds."""

    said: str  # where they are from, a sentence
    found: dict[str, list[Measurement | None]]  # one for each seed, None for what is not there
    live: bool = False  # whether they were made just now

    @property
    def learned(self) -> dict[str, list[Measurement]]:
        """The completed runs."""
        done = {name: [m for m in runs if m is not None and m.learning] for name, runs in self.found.items()}
        return {name: runs for name, runs in done.items() if runs}

    def curves(self, seconds: bool = False) -> dict[str, list[list[tuple]]]:
        """Name -> for each seed (steps, or seconds of training; validation loss), as `draw.learned` takes them."""
        place = 2 if seconds else 0
        rows = {name: list(map(_validation, runs)) for name, runs in self.learned.items()}
        return {name: [[(row[place], row[1]) for row in run] for run in runs] for name, runs in rows.items()}

    def last(self) -> dict[str, list[float]]:
        """Name -> the last validation loss of each seed, nats a byte."""
        return {name: [run[-1][1] for run in runs] for name, runs in self.curves().items()}

    def table(self) -> Table:
        """A row each: the range of the last validation losses over the seeds, seconds of training, the peak."""
        rows = []
        for name, runs in self.learned.items():
            losses, (step, _, seconds) = self.last()[name], _validation(runs[0])[-1]
            spread = "no finite loss" if None in losses else f"{min(losses):.3f} to {max(losses):.3f}"
            timed = f"{seconds:,.1f}" if runs[0].timed else "–"
            rows.append([name, len(losses), step, spread, timed, units.text(runs[0].peak or 0)])
        return Table(["", "seeds", "steps", "validation loss", "seconds", "peak"], rows, self.said)

    def _any(self):
        return bool(self.learned)


def _validation(measurement):
    return measurement.learning["validation"]


def trainings(
    model: Model,
    setups: Mapping[str, Setup],
    recipe: Recipe | Mapping[str, Recipe],
    seeds: Sequence[int] = (0,),
    device: str | None = None,
    *,
    records: str | os.PathLike | None = None,
    timeout: float = 600.0,
    tf32: bool = False,
) -> Trainings:
    """Training runs of a model on prose, with the same windows for all setups: measured here or from the record, as by `runs`.

    Args:
        model, setups: as of `runs`. recipe: of all runs, or name -> recipe. seeds: each setup runs once with each.
        device, records, timeout: as `runs`'s; `cpu` runs a setup of several GPUs in as many processes.

    Raises:
        ValueError: for bad input, and for a `device` that there is not.
    """
    recipes = dict(recipe) if isinstance(recipe, Mapping) else dict.fromkeys(setups, recipe)
    if recipes.keys() != setups.keys():
        raise ValueError(
            f"trainings.recipe: of {', '.join(recipes)}; allowed: one, or one for each of {', '.join(setups)}"
        )
    steps = {name: (model, setup) for name, setup in setups.items()}
    for name, step in steps.items():
        checks.kind("trainings", "recipe", recipes[name], Recipe)
        steps[name] = model, check_request(*step, recipe=recipes[name])
    live = device is not None or _gpu()
    said, found = "", {name: [] for name in steps}
    for seed in seeds:
        seeded = {name: replace(one, seed=seed) for name, one in recipes.items()}
        if live:
            how = {"points": 0, "warm_up": 1, "tf32": tf32}
            each = {name: how | {"recipe": one.as_dict()} for name, one in seeded.items()}
            some = _measured(steps, device, timeout, each)
        else:
            asked_for = {name: {"tf32": tf32, "recipe": str(one)} for name, one in seeded.items()}
            some = _recorded({name: _step(*step, asked_for[name]) for name, step in steps.items()}, records)
        said = some.said if any(some.found.values()) or not said else said
        for name, measurement in some.found.items():
            found[name].append(measurement)
    if not any(map(any, found.values())):
        said = f"{NOT_YET}: no training run of {', '.join(found)}"
    return Trainings(said, found, live)


def _gpu():
    if os.environ.get(RECORD_ONLY):
        return False
    import torch

    return torch.cuda.is_available()  # asks the driver, and takes none of the GPU's memory


def _measured(steps, device, timeout, options):
    """`Runs` of steps that are measured here. steps: name -> (model, setup); options: name -> options."""
    found, bf16 = {}, True
    with Bench(Worker) as bench:
        for name, (model, setup) in steps.items():
            how = options[name]
            try:
                if _as_many_gpus(setup, device, "recipe" in how):
                    alike = {option: value for option, value in how.items() if option != "expandable"}
                    found[name] = measure_ranks(model, setup, device, timeout, **({"points": 400} | alike))
                    continue
                found[name] = bench.measure(model, setup if bf16 else in_fp16(setup), device, timeout, **how)
                if bf16 and not has_bf16(found[name].device) and setup != in_fp16(setup):
                    bf16 = False
                    found[name] = bench.measure(model, in_fp16(setup), device, timeout, **how)
            except Failed as error:
                nobody = {"name": "unknown", "type": "cpu", "gpu": None, "memory": None}
                found[name] = unmeasured("failed", last_line(error), model, setup, nobody)
    first = next((m for m in found.values() if m.status != "failed"), None)
    where = f"on {first.device['name']}" if first and first.device["type"] != "cpu" else "on the CPU"
    instead = "" if bf16 else "; it has no units for bf16: fp16-mixed in place of bf16-mixed"
    return Runs(f"Measured here, {where}{instead}", found, live=True)


def _as_many_gpus(setup, device, learns):
    """Whether the step runs on all of its setup's GPUs: where this machine has them, and always where it learns."""
    import torch

    if learns or setup.gpus == 1:
        return setup.gpus > 1
    return device is None and torch.cuda.is_available() and torch.cuda.device_count() >= setup.gpus


def last_line(error: Exception) -> str:
    """An error in one line: how the process ended, and the last line that it wrote."""
    first, *lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{first.partition(';')[0]}: {lines[-1]}" if lines else first


def _recorded(steps, records):
    """`Runs` from the record that has the most of these steps. steps: name -> what `_step` says of each."""
    most = _most(steps, records)
    first = next(filter(None, most.values()), None)
    if first is None:
        return Runs(f"{NOT_YET}: none of these {len(steps)} steps", most)
    versions = "" if not first.versions else f", PyTorch {first.versions['torch']}, CUDA {first.versions.get('cuda')}"
    return Runs(f"Recorded on {first.device['name']}, {first.date[:10]}{versions}", most)


def _most(steps, records, own=False):
    """Each of these steps in the record that has the most of them; None for what it has not.

    own: whether only the reader's own records count, and in them what was measured.
    """
    most = dict.fromkeys(steps)
    for path in _files(records, "*.jsonl"):
        there = [m for m in read(path).measurements if m.fingerprint == fingerprint() and m.witness == "measure"]
        if own:
            there = [m for m in there if path.name != BOOK and m.status == "measured"]
        there.sort(key=lambda m: m.steps or 0)  # of two, the one with more timed steps is read
        measured = {_step(m.model, m.setup, asked(m)): m for m in there}
        found = {name: measured.get(step) for name, step in steps.items()}
        if sum(map(bool, found.values())) > sum(map(bool, most.values())):
            most = found
    return most


def _step(model, setup, options):
    """What tells steps apart: the model, the setup, and of the options the switches."""
    return model, setup, *(options.get(name) or None for name in ("tf32", "expandable", "limit", "recipe"))


def _files(records, pattern):
    """Files of the named folder of records, or of the first that there is."""
    folder = next((Path(p) for p in ([records] if records else FOLDERS) if Path(p).is_dir()), None)
    return sorted(folder.glob(pattern)) if folder else []


def scripts(of: Runs | None = None, *, records: str | os.PathLike | None = None) -> dict[str, dict]:
    """Name -> what is recorded of a script that a GPU ran: its exit `status`, and what it `printed`. Empty where there is no record.

    Args:
        of: only those of the GPU on which these steps were measured. records: as of `runs`; the scripts' records are in its folder `scripts`, and `tools/beside` makes them.
    """
    paths = _files(records, "scripts/*.jsonl")[:1]
    lines = [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    names = {m.device["name"] for m in of.measured.values()} if of else None
    return {line["name"]: line for line in lines if names is None or (line["told"] or {}).get("device") in names}


def conclusion(runs: Runs, *, records: str | os.PathLike | None = None) -> Table:
    """The steps of a lab as the reader measured them; where that was on no GPU, the book's record of them, and said so.

    Args:
        runs: what `lab.runs` gave for these steps. records: the folder of the records, as of `lab.runs`.

    Returns:
        A row for each step on record: GiB that the allocator had handed out and held at most, and milliseconds where they were taken.
    """
    columns = ["", "allocated", "reserved", "milliseconds a step"]
    said, found = NOW, {name: m for name, m in runs.measured.items() if m.device["type"] != "cpu"}
    if not found:
        return Table(columns, [], NOT_YET)
    if not runs.live:
        most = _most({name: _step(m.model, m.setup, asked(m)) for name, m in found.items()}, records, own=True)
        own = {name: m for name, m in most.items() if m}
        said, found = (OWN, own) if own else (QUOTED, found)
    first = next(iter(found.values()))
    rows = [
        [name, units.text(m.peak or 0), units.text(m.reserved_peak or 0), f"{m.step_ms:,.1f}" if m.timed else "–"]
        for name, m in found.items()
    ]
    return Table(columns, rows, f"{said}: {first.device['name']}, {first.date[:10]}")
