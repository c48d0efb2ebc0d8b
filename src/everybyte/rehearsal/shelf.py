"""The labs' grid, rehearsed: one file per GPU with one line per step, checked when read."""

import json
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from ..ask.setup import Setup
from ..catalog import Model, gpu, models
from ..catalog import model as named
from ..common import checks, files
from ..lab.grid import Configuration, grid
from ..lab.measurement import PHASES, model_as_dict, model_from_dict
from ..lab.process import Failed, at_once
from ..lab.records import fingerprint
from . import devices, place, steps
from .result import Rehearsal

#: The version of the files' format. Any other is refused.
SCHEMA = 1
#: GPUs whose grid is shipped, and the folders where the files may be: from the working folder, or in this clone.
GPUS = ("h200", "a100-80gb", "rtx-4090")
FOLDERS = ("rehearsals", "labs/rehearsals", "../labs/rehearsals", place.PROJECT / "labs/rehearsals")
#: Workers at once, and the seconds that one step may take.
WORKERS, EACH = 2, 180.0
_NUMBERS = ("requested", "allocated", "reserved", "segments", "workspace")


@dataclass(frozen=True)
class Shelf:
    """A file of rehearsals.

    Attributes:
        path: the file. head: its first line: GPU, versions, fingerprint of the reference step. found: (model, setup) -> rehearsal.
    """

    path: Path
    head: dict
    found: dict[tuple[Model, Setup], Rehearsal]

    @property
    def stale(self) -> bool:
        """Whether the reference step has changed since."""
        return self.head["fingerprint"] != fingerprint()


def head_of(gpu_name: str, versions: dict) -> dict:
    """The first line of a file, as JSON."""
    found = gpu(gpu_name)
    return {
        "rehearsals": SCHEMA, "witness": "rehearse", "gpu": found.name, "memory": found.memory, "torch": versions["torch"],
        "cuda": versions["cuda"], "fingerprint": fingerprint(),
    }  # fmt: skip


def line_of(rehearsal: Rehearsal) -> dict:
    """A rehearsal as JSON: the setup's fields that are not at their defaults, models of the catalog by name."""
    model = model_as_dict(rehearsal.model)
    known = models("reference").get(rehearsal.model.name) == model_from_dict(model)
    said = {"model": rehearsal.model.name if known else model, "setup": rehearsal.setup.changed()}
    said |= {name: getattr(rehearsal, name) for name in _NUMBERS}
    if rehearsal.oom:
        return said | {"out_of_memory": rehearsal.out_of_memory}
    return said | {"phases": [rehearsal.phases[name] for name in PHASES], "at": rehearsal.peak_at}


def _rehearsal_of(said, head):
    if not isinstance(said, dict) or not {"model", "setup", *_NUMBERS} <= said.keys():
        raise ValueError("it is no rehearsal's line")
    for name in _NUMBERS:
        if said[name] is not None:
            checks.whole("Rehearsal", name, said[name], 0, 2**60)
    out = said.get("out_of_memory")
    phases = said.get("phases", [])
    if out is None and (len(phases) != len(PHASES) or not all(isinstance(v, int) for v in phases)):
        raise ValueError(f"Rehearsal.phases: {phases!r}; allowed: bytes for each of {', '.join(PHASES)}")
    return Rehearsal(
        model=named(said["model"], "reference") if isinstance(said["model"], str) else model_from_dict(said["model"]),
        setup=Setup(**said["setup"]), gpu=gpu(head["gpu"]), phases=dict(zip(PHASES, phases, strict=False)), out_of_memory=out,
        peak_at=said.get("at"), versions={"torch": head["torch"], "cuda": head["cuda"]}, fingerprint=head["fingerprint"],
        **{name: said[name] for name in _NUMBERS},
    )  # fmt: skip


def read(path: str | os.PathLike) -> Shelf:
    """The rehearsals of a file.

    Raises:
        ValueError: for the first invalid line, with its number.
    """
    path = Path(path)
    first, *lines = path.read_text(encoding="utf-8").splitlines() or [""]
    found, number = {}, 1
    try:
        head = json.loads(first)
        if not isinstance(head, dict) or head.get("rehearsals") != SCHEMA:
            raise ValueError(f"it does not say rehearsals: {SCHEMA}")
        for line in lines:
            number += 1
            rehearsal = _rehearsal_of(json.loads(line), head)
            found[rehearsal.model, rehearsal.setup] = rehearsal
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path.name}, line {number}: {error}") from error
    return Shelf(path, head, found)


def shipped(gpu_name: str = "h200", folder: str | os.PathLike | None = None) -> Shelf | None:
    """The shipped rehearsals of a GPU; None where there are none."""
    folders = [folder] if folder else FOLDERS
    paths = [Path(place_) / f"{gpu_name}.jsonl" for place_ in folders]
    return next((read(path) for path in paths if path.exists()), None)


def rehearse_grid(
    gpu_name: str = "h200",
    out: str | os.PathLike = "labs/rehearsals",
    *,
    only: Iterable[str] = (),
    configurations: Iterable[Configuration] | None = None,
    workers: int = WORKERS,
    folder: str | os.PathLike | None = None,
    say: Callable[[str], None] = print,
) -> Shelf:
    """Rehearse the labs' grid on a GPU of the catalog into `out`/GPU.jsonl. Steps that the file has are not run again.

    A file of another PyTorch or another reference step is replaced.

    Raises:
        ValueError: for bad input, and where there is no environment for it.
    """
    checks.whole("rehearse", "workers", workers, 1, 64)
    where = place.find(folder)
    found = devices.find(gpu_name, where.manifest["capabilities"])
    cuda = where.manifest["cuda"]
    head = head_of(found.name, {"torch": where.manifest["torch"], "cuda": f"{cuda // 1000}.{cuda // 10 % 100}"})
    wanted = list(configurations) if configurations is not None else peaks(only)
    path = Path(out) / f"{found.name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    there, head = _there(path, head)
    todo = [c for c in wanted if (c.model, c.setup) not in there]
    with steps.starter(where, found) as start:
        failed = _all(start, found, path.with_suffix(".jsonl.part"), head, there, todo, workers, say)
    order = {(c.model, c.setup): number for number, c in enumerate(peaks())}
    if configurations is None and not only:  # what the grid has no longer goes
        there = {step: there[step] for step in there if step in order}
    kept = sorted(there, key=lambda step: order.get(step, len(order)))
    _write(path, head, [there[step] for step in kept])
    say(f"{path}: {len(there)} rehearsed, {len(todo)} of them now, {len(failed)} failed")
    for configuration, reason in failed:
        say(f"{configuration.model.name}, {configuration.setup}: {reason}")
    return read(path)


def recheck(
    gpu_name: str = "h200",
    out: str | os.PathLike = "labs/rehearsals",
    *,
    count: int = 48,
    workers: int = WORKERS,
    folder: str | os.PathLike | None = None,
    say: Callable[[str], None] = print,
) -> Shelf:
    """Rehearse `count` steps of a file again, evenly spread, with the present reference step.

    It is for a change of the reference step that should change no step of the grid, such as a new optimizer. Where every step
    agrees, the file gets the present fingerprint, and its first line says how many steps were `rechecked`.

    Raises:
        ValueError: where a step differs, or PyTorch or the GPU is another: then run `rehearse_grid`.
    """
    path = Path(out) / f"{gpu_name}.jsonl"
    there = read(path)
    checks.whole("rehearse", "recheck", count, 1, len(there.found))
    chosen = list(there.found)[:: max(1, len(there.found) // count)]
    wanted = [Configuration("recheck", model, setup) for model, setup in chosen]
    with TemporaryDirectory() as beside:
        again = rehearse_grid(gpu_name, beside, configurations=wanted, workers=workers, folder=folder, say=say)
    same = {name: again.head[name] for name in again.head.keys() - {"fingerprint"}}
    different = [
        step for step in chosen if step not in again.found or _decided(again.found[step]) != _decided(there.found[step])
    ]
    if different or any(there.head[name] != value for name, value in same.items()):
        what = f"{different[0][0].name}, {different[0][1]}" if different else "PyTorch or the GPU"
        raise ValueError(
            f"rehearse.recheck: {len(different)} of {len(chosen)} steps come out otherwise, first {what}; allowed: --grid, anew"
        )
    _write(path, again.head | {"rechecked": len(chosen)}, there.found.values())
    say(f"{path}: {len(chosen)} of {len(there.found)} rehearsed again, and each asks for what stands there")
    return read(path)


def _decided(rehearsal):
    """The numbers that must agree: allocated and reserved bytes also depend on earlier steps in the same worker, and are not."""
    if rehearsal.oom:
        return "out of memory"
    said = line_of(rehearsal)
    return {name: said[name] for name in ("requested", "workspace", "phases", "at")}


def peaks(only: Iterable[str] = ()) -> list[Configuration]:
    """The grid's steps, each once; variants that are no field of the setup (limit, expandable, TF32) are left out."""
    plain = [c for c in grid(only) if not (c.expandable or c.limit or (c.tf32 and not c.recipe))]
    return list({(c.model, c.setup): c for c in reversed(plain)}.values())[::-1]


def _there(path, head):
    """(the rehearsals that a file with this head has already, its first line)."""
    part = path.with_suffix(".jsonl.part")
    for old in (part, path):
        if old.exists():
            try:
                shelf = read(old)
            except ValueError:
                continue
            if {name: said for name, said in shelf.head.items() if name != "rechecked"} == head:
                return dict(shelf.found), shelf.head
    return {}, head


def _write(path, head, rehearsals):
    lines = [json.dumps(said) for said in (head, *map(line_of, rehearsals))]
    with files.whole(path) as file:
        file.write(("\n".join(lines) + "\n").encode())
    path.with_suffix(".jsonl.part").unlink(missing_ok=True)


def _all(start, gpu, part, head, there, wanted, workers, say):
    """Rehearse the wanted into `there`; return (configuration, why) of those that failed. Each line is written as soon as its step is done."""
    failed, done, lock = [], count(1), threading.Lock()
    with part.open("w", encoding="utf-8", buffering=1) as file:

        def write(said):
            file.write(json.dumps(said) + "\n")

        def one(bench, configuration):
            clean, found = False, None
            try:
                found, clean = steps.one(bench.worker(), configuration.model, configuration.setup, gpu, EACH)
            except (Failed, ValueError) as error:
                failed.append((configuration, str(error).strip().splitlines()[-1]))
            finally:
                if not clean:
                    bench.end()
            with lock:
                if found:
                    there[found.model, found.setup] = found
                    write(line_of(found))
                if (number := next(done)) % 25 == 0:
                    say(f"{number} of {len(wanted)}")

        for said in (head, *map(line_of, there.values())):
            write(said)
        at_once(start, workers, one, wanted)
    return failed
