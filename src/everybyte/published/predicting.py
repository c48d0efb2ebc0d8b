"""Predict the corpus again: what is new or has changed is run, and what was predicted is kept, a line a run."""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import median, quantiles
from threading import Lock

from ..answers.headroom import Headroom
from ..ask.setup import Setup
from ..catalog import gpu, model
from ..common import checks, files
from ..common.tables import Shown, Table
from .harvest import FIDELITIES, HERE, Predicted, Record, Run, corpus

STORE = HERE / "predicted.jsonl"
#: How near a prediction is to count as the published number, beside printing: one part in a hundred.
NEAR = 0.01
#: Dry runs have PyTorch's process group, and a process has one.
_ONE = Lock()


def predict(run: Run) -> Predicted:
    """Run it: a script in a rehearsal, a setup in a dry run that is played through the allocator.

    Raises:
        ValueError: where there is no environment of rehearsals, and where the script fails.
    """
    start = time.monotonic()
    if run.script:
        said = _rehearsed(run)
    else:
        with _ONE:
            said = _counted(run)
    return Predicted(key=run.key, seconds=round(time.monotonic() - start, 1), **said)


def _rehearsed(run):
    from ..rehearsal import rehearse_script, versions

    folder = versions.find(run.torch, run.packages.split()) if run.torch or run.packages else None
    command = ["env", f"PYTORCH_CUDA_ALLOC_CONF={run.settings}"] if run.settings else []
    command += ["python", str(HERE / "scripts" / run.script), *run.options.split()]
    found = rehearse_script(
        command,
        run.gpu,
        gpus=run.gpus,
        alone=run.gpus > 1,
        steps=run.steps,
        memory=run.bytes,
        folder=folder,
        quiet=True,
    )
    if found.status and not found.oom:
        raise ValueError(f"{run.script} {run.options}: exit status {found.status}; allowed: 0, or out of memory")
    device = found.processes[0]["devices"][0]
    return {
        "witness": "rehearse", "torch": found.processes[0]["torch"], "oom": found.short, "allocated": device["allocated"],
        "reserved": device["reserved"], "states": device["standing"],
    }  # fmt: skip


def _counted(run):
    import torch

    from ..dryrun import dry_run

    setup, card = Setup(**run.setup), gpu(run.gpu)
    found = dry_run(model(run.model, run.code) if run.code else model(run.model), setup)
    room = Headroom().room(card, setup) if run.bytes is None else run.bytes
    free = found.on(card, run.settings, whole=run.whole)
    bound = found.on(card, run.settings, memory=room, whole=run.whole) if free.reserved > room else free
    return {
        "witness": "dry_run", "torch": torch.__version__, "oom": bound.failed is not None, "allocated": free.allocated,
        "reserved": free.reserved, "states": found.phases["after_step"],
    }  # fmt: skip


def read(path: str | os.PathLike = STORE) -> dict[str, Predicted]:
    """What was predicted, by the run's key.

    Raises:
        ValueError: for the first line that is none, with its number.
    """
    found = {}
    path = Path(path)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            one = Predicted(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path.name}, line {number}: {error}") from None
        found[one.key] = one
    return found


@contextmanager
def executor(workers: int, scheduler: str = "") -> Iterator[Executor]:
    """Where runs go: threads that start processes here, or a Dask cluster by its scheduler's address.

    Raises:
        ValueError: where there is no `distributed`, or nobody answers at the address.
    """
    if not scheduler:
        with ThreadPoolExecutor(workers) as pool:
            yield pool
        return
    try:
        from distributed import Client

        client = Client(scheduler, timeout=10)
    except ImportError:
        raise ValueError(f"scheduler: {scheduler!r} needs Dask; pip install 'everybyte[cluster]'") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"scheduler: {checks.shown(scheduler)}: {error}; allowed: such as tcp://host:8786") from None
    with client:
        yield client.get_executor(pure=False)


def published(
    only: Sequence[str] = (),
    *,
    run: bool = True,
    again: bool = False,
    workers: int = 1,
    scheduler: str = "",
    store: str | os.PathLike = STORE,
    say: Callable[[str], None] = print,
) -> "Beside":
    """The corpus beside its predictions. What has none, or whose run has changed, is predicted, and kept as soon as it is.

    Args:
        only: words that a record's id or source must have one of; by default all records. run: whether to run what is missing.
        again: whether to run what is there too. workers: runs at once. scheduler: of a Dask cluster, in place of this machine.
        store: the file of predictions.

    Raises:
        ValueError: for bad input, and where no record has the words.
    """
    checks.whole("published", "workers", workers, 1, 64)
    wanted = {id: r for id, r in corpus().items() if not only or any(word in f"{id} {r.source}" for word in only)}
    if not wanted:
        raise ValueError(
            f"published.only: {', '.join(only)} is in no record's id or source; allowed: {', '.join(corpus())}"
        )
    kept = read(store)
    there = {} if again else dict(kept)
    todo = {each.key: each for r in wanted.values() for each in r.runs if each.key not in there} if run else {}
    faults = []
    if todo:
        with executor(workers, scheduler) as pool:
            futures = {pool.submit(predict, each): each for each in todo.values()}
            for number, future in enumerate(as_completed(futures), 1):
                each = futures[future]
                name = f"{number} of {len(todo)}: {each.script or each.model} {each.options}".strip()
                try:
                    there[each.key] = kept[each.key] = future.result()
                    _write(store, kept)
                    say(f"{name}, {there[each.key].seconds:.0f} s")
                except Exception as error:  # whatever became of one run, here or on a cluster, the others go on
                    faults.append(f"{name}: {error}")
                    say(faults[-1])
    return Beside(wanted, {each.key: there.get(each.key) for r in wanted.values() for each in r.runs}, faults)


def measured(*words: str) -> Table:
    """What others measured in runs whose records have one of these words, beside what is kept of their predictions: nothing is run.

    Raises:
        ValueError: where no record has the words.
    """
    return published(words, run=False).listed()


def _write(path, kept):
    """The store, whole: runs that no record has go."""
    order = [each.key for r in corpus().values() for each in r.runs]
    lines = [json.dumps(asdict(kept[key])) for key in dict.fromkeys(order) if key in kept]
    with files.whole(Path(path)) as file:
        file.write(("\n".join(lines) + "\n").encode())


@dataclass(frozen=True, eq=False, repr=False)
class Beside(Shown):
    """Records beside their predictions.

    Attributes:
        records: by id. there: predictions by the run's key, None where there is none. faults: in words, the runs that failed.
    """

    records: dict[str, Record]
    there: dict[str, Predicted | None]
    faults: list[str]

    @cached_property
    def found(self) -> dict[str, int | bool | None]:
        """A record's prediction, in its quantity."""
        there = {key: one for key, one in self.there.items() if one is not None}
        return {id: record.of(there) for id, record in self.records.items()}

    def off(self, id: str) -> float | None:
        """How far the prediction is from what was published, as a share of it; 0 where printing hides it; None where there is none."""
        record, said = self.records[id], self.found[id]
        if said is None or not record.stated:
            return None
        apart = said - record.bytes
        return 0.0 if abs(apart) <= record.rounding else apart / record.bytes

    def right(self, id: str) -> bool | None:
        """Of `fits` and `dies`: whether the prediction says so too. None for numbers, and where there is none."""
        said = self.found[id]
        return said if isinstance(said, bool) else None

    def table(self) -> Table:
        """A row for each source and fidelity: how many, how far at the middle, for nine of ten, at the worst."""
        groups: dict = {}
        for id, record in self.records.items():
            groups.setdefault((record.source.split(",")[0].split("@")[0], record.fidelity), []).append(id)
        groups = dict(sorted(groups.items(), key=lambda group: (FIDELITIES.index(group[0][1]), group[0][0])))
        rows = [self._row(source, fidelity, ids) for (source, fidelity), ids in groups.items()]
        for fidelity in FIDELITIES:
            ids = [id for id, record in self.records.items() if record.fidelity == fidelity]
            rows += [self._row("all", fidelity, ids)] if ids else []
        columns = ("source", "our run is theirs", "published", "predicted", "as printed", "within 1 %", "median", "p90", "worst",
                   "fits, dies")  # fmt: skip
        return Table(columns, rows, "What others measured, and what was predicted of it")

    def _row(self, source, fidelity, ids):
        shares = [share for id in ids if (share := self.off(id)) is not None]
        sizes, marks = sorted(map(abs, shares)), [self.right(id) for id in ids if not self.records[id].stated]
        said = [f"{value:.2%}" for value in (median(sizes), ninth(sizes), max(sizes))] if sizes else ["–"] * 3
        judged = [mark for mark in marks if mark is not None]
        return (source, fidelity, len(ids), len(shares) + len(judged), sum(share == 0 for share in shares),
                sum(size <= NEAR for size in sizes), *said, f"{sum(judged)} of {len(judged)}" if marks else "–")  # fmt: skip

    def listed(self) -> Table:
        """A row for each record: what is published of which run, and what is predicted of it."""
        columns = ("record", "our run is theirs", "what", "published", "predicted", "off")
        sources = dict.fromkeys(record.source.split(",")[0] for record in self.records.values())
        title = f"Measured by others: {', '.join(sources)}. Rehearsed: no GPU"
        return Table(columns, list(map(self._said, self.records)), title)

    def _said(self, id):
        record, share, right = self.records[id], self.off(id), self.right(id)
        if share is not None:
            stated = float(record.stated.split()[0].replace(",", ""))
            said = f"{(1 + share) * stated:,.2f}", "as printed" if share == 0 else f"{share:+.1%}"
        else:
            said = {True: "the same", False: "the contrary", None: "–"}[right], ""
        return id, record.fidelity, record.quantity, record.stated or "it " + record.quantity, *said

    def gaps(self, least: float = NEAR) -> Table:
        """Records that part by more than `least`, the furthest first: what is published, what is predicted, and why."""
        far = {id: abs(share) for id in self.records if (share := self.off(id)) is not None and abs(share) > least}
        why = {id: r.cause or r.differs or "not known" for id, r in self.records.items()}
        rows = [(*self._said(id), why[id]) for id in sorted(far, key=far.__getitem__, reverse=True)]
        columns = ("record", "our run is theirs", "what", "published", "predicted", "off", "why")
        return Table(columns, rows, f"Further apart than {least:.0%}")

    def as_dict(self) -> dict:
        """As JSON: a record's published and predicted bytes, and how far apart."""
        return {
            id: {"source": r.source, "fidelity": r.fidelity, "quantity": r.quantity, "stated": r.stated,
                 "published": r.bytes if r.stated else None, "predicted": self.found[id], "off": self.off(id)}
            for id, r in self.records.items()
        }  # fmt: skip


def ninth(sizes):
    """What nine of ten do not exceed."""
    return quantiles(sizes, n=10, method="inclusive")[-1] if len(sizes) > 1 else sizes[0]
