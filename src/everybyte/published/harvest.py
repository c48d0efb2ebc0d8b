"""What others measured on GPUs and published, each with the run that predicts it.

`corpus/` has a file of records a source; `scripts/` says runs in their makers' terms. `predicting` runs them.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path

from .. import units
from ..catalog import gpu
from ..catalog.outside import context
from ..common import checks, files

HERE = Path(__file__).parent
#: What was measured: of PyTorch's allocator at most; of it after a step; of the whole GPU, context included; whether it ran at all.
QUANTITIES = ("allocated", "active", "reserved", "states", "device", "fits", "dies")
#: Whether our run is theirs: by all that is published; but for small differences, named; but for something that we cannot say, named.
FIDELITIES = ("exact", "near", "apart")
_STATED = re.compile(r"([\d,]+)(\.\d+)? ([A-Za-z]+)")


@dataclass(frozen=True, kw_only=True)
class Run:
    """What predicts: a script of `scripts/`, rehearsed, or a model of the catalog with a setup, counted by a dry run.

    Attributes:
        gpu: of the catalog. memory: of it, as "95GiB"; "" for the catalog's. settings: as `PYTORCH_ALLOC_CONF`.
        script, options: a file's name and its arguments. gpus: rank 0 of so many. steps: of the optimizer.
        torch, packages: versions that it is rehearsed with, "2.12.1" and "transformers==5.12.1"; "" for what is set up.
        model, code, setup: as `eb.model` and `Setup` take them. whole: whether weights are made whole on the GPU before they are divided.
    """

    gpu: str
    memory: str = ""
    settings: str = ""
    script: str = ""
    options: str = ""
    gpus: int = 1
    steps: int = 3
    torch: str = ""
    packages: str = ""
    model: str = ""
    code: str = ""
    setup: Mapping = field(default_factory=dict)
    whole: bool = True

    def __post_init__(self):
        if bool(self.script) == bool(self.model):
            raise ValueError(f"run: script {self.script!r}, model {self.model!r}; allowed: one of them")
        if self.script:
            checks.one_of("run", "script", self.script, sorted(p.name for p in (HERE / "scripts").glob("[a-z]*.py")))
        checks.whole("run", "gpus", self.gpus, 1, 2**20)
        checks.whole("run", "steps", self.steps, 0, 100)
        gpu(self.gpu)

    @property
    def key(self) -> str:
        """A digest of what the run says and of its script, with what that imports of ours: a prediction is of what still has it."""
        source = _source(self.script) if self.script else ""
        said = {name: value for name, value in asdict(self).items() if value}
        return hashlib.sha256(json.dumps([said, source], sort_keys=True).encode()).hexdigest()[:16]

    @property
    def bytes(self) -> int | None:
        """Of the GPU's memory, where the record says another than the catalog's."""
        return int(units.parse(self.memory)) if self.memory else None


def _source(script):
    """What a script does, without docstrings; after it the files of `scripts/` that it imports, whose names begin with `_`."""
    text = (HERE / "scripts" / script).read_text(encoding="utf-8")
    return files.program(text) + "".join(
        _source(f"{name}.py") for name in re.findall(r"^from (_\w+) import", text, re.M)
    )


@dataclass(frozen=True)
class Predicted:
    """What was predicted of a run, in bytes. oom: it ran out of memory, and the numbers are of what came before.

    Attributes:
        states: allocated after the last step. allocated, reserved: at most. witness: `rehearse` or `dry_run`. torch: its version.
    """

    key: str
    witness: str
    torch: str
    allocated: int
    reserved: int
    states: int
    oom: bool
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Record:
    """A published measurement.

    Attributes:
        id: its name here. source: where it stands. commit: of what ran. versions: of packages, as published.
        stated: the number as printed, with its unit; "" for `fits` and `dies`. quantity: one of `QUANTITIES`.
        fidelity: one of `FIDELITIES`. differs: what our run says otherwise. cause: why the prediction parts, as far as shown.
        run: what predicts it. less: a run whose prediction is taken off, for a published difference.
        estimated: another estimator -> what its makers publish that it says of the same run, as `stated` is.
    """

    id: str
    source: str
    quantity: str
    fidelity: str
    run: Run
    stated: str = ""
    commit: str = ""
    versions: Mapping = field(default_factory=dict)
    differs: str = ""
    cause: str = ""
    less: Run | None = None
    estimated: Mapping = field(default_factory=dict)

    def __post_init__(self):
        who = f"record {self.id}"
        checks.one_of(who, "quantity", self.quantity, QUANTITIES)
        checks.one_of(who, "fidelity", self.fidelity, FIDELITIES)
        if (self.fidelity == "exact") == bool(self.differs):
            raise ValueError(
                f"{who}.differs: {self.differs!r}; allowed: words where the run is not exactly theirs, and else none"
            )
        if (self.quantity in ("fits", "dies")) == bool(self.stated):
            raise ValueError(f"{who}.stated: {self.stated!r}; allowed: a number, or none where it fits or dies")
        for name, said in {"stated": self.stated, **self.estimated}.items():
            match = _STATED.fullmatch(said)
            if said and (match is None or match[3] not in units.UNITS):
                raise ValueError(f"{who}.{name}: {said!r}; allowed: such as '82.4 GiB'")

    @property
    def bytes(self) -> float:
        """The stated number."""
        return units.parse(self.stated)

    @property
    def rounding(self) -> float:
        """Bytes by which printing may have moved it: half of its last digit."""
        number, unit = self.stated.split(" ")
        return units.UNITS[unit] * 10.0 ** -len(number.partition(".")[2]) / 2

    @property
    def runs(self) -> tuple[Run, ...]:
        """What must have been predicted."""
        return (self.run,) if self.less is None else (self.run, self.less)

    def of(self, there: Mapping[str, Predicted]) -> int | bool | None:
        """The prediction in the record's quantity: bytes; for `fits` and `dies`, whether it comes out so. None where there is none."""
        found = [there[run.key] for run in self.runs if run.key in there]
        if len(found) < len(self.runs):
            return None
        if self.quantity in ("fits", "dies"):
            return found[0].oom == (self.quantity == "dies")
        if any(one.oom for one in found):
            return None
        said = [_quantity(self.quantity, run, one) for run, one in zip(self.runs, found, strict=True)]
        return said[0] - sum(said[1:])


def _quantity(name, run, found):
    if name == "device":
        return found.reserved + context(gpu(run.gpu)).most
    return found.allocated if name == "active" else getattr(found, name)


@cache
def corpus() -> dict[str, Record]:
    """All records by id.

    Raises:
        ValueError: naming file, record and field, for what is not allowed there.
    """
    found = {}
    for path in sorted((HERE / "corpus").glob("*.toml")):
        said = tomllib.loads(path.read_text(encoding="utf-8"))
        checks.table(path.name, said, ("runs",), ("defaults", "runs"))
        for id, entry in said["runs"].items():
            if id in found:
                raise ValueError(f"{path.name}, {id}: it is there already; allowed: a name of its own")
            try:
                found[id] = _record(id, said.get("defaults", {}) | entry)
            except (ValueError, TypeError) as error:
                raise ValueError(f"{path.name}, {id}: {error}") from None
    return found


def _record(id, entry):
    here = {name: entry.pop(name) for name in ("gpu", "memory") if name in entry}
    names = {f.name for f in fields(Record)}
    checks.table(f"record {id}", entry, ("source", "quantity", "fidelity", "run"), names)
    runs = {name: Run(**here | entry[name]) for name in ("run", "less") if name in entry}
    return Record(id=id, **entry | runs)
