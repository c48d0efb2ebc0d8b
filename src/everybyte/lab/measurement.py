"""The third witness: what one device said of one training step, in whole bytes."""

import math
from dataclasses import MISSING, dataclass, fields
from datetime import datetime

from .. import checks, units
from ..catalog import Model, models
from ..setup import Setup
from ..tables import Table
from .recipe import Recipe

#: The version of the JSON. A reader refuses any other.
SCHEMA = 1
#: Who says it: a GPU (or CPU), or PyTorch's CUDA code on a GPU that is not there.
WITNESSES = ("measure", "rehearse")
STATUSES = ("measured", "oom", "skipped", "failed")
PHASES = ("rest", "after_forward", "after_backward", "step", "after_step")
#: The phases within which the most bytes are counted.
WITHIN = ("forward", "backward", "step")


@dataclass(frozen=True, eq=False, kw_only=True)
class Measurement:
    """One training step on a device. Bytes are whole; `phases`, `requested`, `peaks` and `peak` are above `baseline`.

    Attributes:
        model, setup: what ran. rounding: what the device's allocator rounds each tensor up to a multiple of; 1 for none.
        status: `measured`; `oom`, where the device's memory did not suffice, a result as well; `skipped`, where it was not
            tried, or `failed`, where the process died or hung. reason: why, for these two.
        phases: live bytes at the moments of one steady step, and the most in the optimizer's step (`step`).
        requested: the same, each tensor as asked for, not the block that the allocator found for it.
        peaks: the most live bytes in forward, backward and the optimizer's step.
        peak: the most of all. peak_at: where it is in the order of allocations, in a dry run's words; None if not asked for.
        baseline: bytes that lived before the model did. workspace: bytes of cuBLAS's workspaces, which stay from the first
            matrix product on.
        allocated_peak, requested_peak, active_peak, reserved_peak: the most bytes of each of the allocator's counts, with
            the baseline. retries: how often it had to give memory back before it could serve a request. segments: how many
            it had from the driver after the steps.
        driver_before, driver_used: bytes in use on the whole device before the model and after the steps, as CUDA (`cuda`)
            and NVML (`nvml`, None without its Python binding) count them: the context and other processes too.
        out_of_memory: for `oom`: `of` whom (PyTorch's allocator, or a library), bytes asked for (`requested`, as precise as PyTorch's message), `free`, and `at` what stage.
        reserved_at_end: what the allocator had when `driver_used` was asked for.
        steps: how many were timed; 0 for a step that was counted alone. step_ms: their median; step_ms_quartiles: the first
            and the third; clocks: the GPU's clock, power, its limit and temperature after them. tokens_per_s, flops (of a step, the model's), mfu: their share of
            the catalog's dense 16-bit peak; None for fp32 and unknown devices.
        loss: of every step, on the next windows of the book's text, the same for every configuration of one shape; None
            where not finite. skipped_steps: by loss scaling. A vocabulary under 256 has random tokens, always the same.
        history: `allocations` of one step, the places `at` which `live` bytes are given (the extremes are among them), and
            `marks`: allocations made when a moment last came.
        learning: of a training run: its `recipe` (with as many steps as there was time for of those `asked`), and `validation`:
            steps taken, the loss on prose that is not trained on, and seconds of training until then. `loss` is of every step.
        ranks: of many GPUs measured at once, what each found: its `rank`, and some of the fields here, which are rank 0's.
        witness: `measure`; `rehearse` where the device was a rehearsal's, so that no time means anything.
        device, versions, settings: what it ran on and with. date: UTC. fingerprint: of the reference step's source.
    """

    model: Model
    setup: Setup
    status: str
    device: dict
    date: str
    fingerprint: str
    reason: str | None = None
    rounding: int = 512
    phases: dict[str, int] | None = None
    requested: dict[str, int] | None = None
    peaks: dict[str, int] | None = None
    peak: int | None = None
    peak_at: str | None = None
    baseline: int | None = None
    workspace: int | None = None
    allocated_peak: int | None = None
    requested_peak: int | None = None
    active_peak: int | None = None
    reserved_peak: int | None = None
    retries: int | None = None
    segments: int | None = None
    driver_before: dict | None = None
    driver_used: dict | None = None
    out_of_memory: dict | None = None
    steps: int | None = None
    reserved_at_end: int | None = None
    step_ms: float | None = None
    step_ms_quartiles: list | None = None
    clocks: dict | None = None
    tokens_per_s: float | None = None
    flops: int | None = None
    mfu: float | None = None
    loss: list | None = None
    skipped_steps: int | None = None
    history: dict | None = None
    learning: dict | None = None
    ranks: list | None = None
    versions: dict | None = None
    settings: dict | None = None
    witness: str = "measure"

    @property
    def oom(self) -> bool:
        """Whether the device ran out of memory."""
        return self.status == "oom"

    @property
    def timed(self) -> bool:
        """Whether its milliseconds mean anything: it was timed, on a device that computes, with collectives that move."""
        fake = (self.settings or {}).get("collectives") == "fake"
        return self.step_ms is not None and self.witness == "measure" and not fake

    def as_dict(self) -> dict:
        """As JSON holds it. No device knows the parts, so `parts` is empty."""
        said = {f.name: getattr(self, f.name) for f in fields(self)}
        head = {"schema": SCHEMA, "witness": self.witness, "status": self.status, "oom": self.oom}
        said = head | said | {"model": model_as_dict(self.model), "setup": self.setup.as_dict(), "parts": {}}
        said["phases"] = self.phases or {}
        optional = {f.name for f in fields(self) if f.default is None} - {"phases", "peak_at", "mfu"}
        return {name: value for name, value in said.items() if value is not None or name not in optional}

    @classmethod
    def from_dict(cls, said: dict) -> "Measurement":
        """From JSON.

        Raises:
            ValueError: where a field is missing, of another kind or unknown, or the schema is another.
        """
        if said.get("schema") != SCHEMA:
            raise _wrong("schema", said.get("schema"), SCHEMA)
        known = {f.name for f in fields(cls)}
        for name in said.keys() - known - {"schema", "oom", "parts"}:
            raise _wrong(name, said[name], "no such field")
        checks.one_of("Measurement", "status", said.get("status"), STATUSES)
        checks.one_of("Measurement", "witness", said.get("witness", "measure"), WITNESSES)
        if said.get("oom", said["status"] == "oom") is not (said["status"] == "oom"):
            raise _wrong("oom", said["oom"], said["status"] == "oom")
        values = {name: value for name, value in said.items() if name in known and value is not None}
        if not values.get("phases"):
            values.pop("phases", None)
        for name in sorted(_NEEDED[said["status"]] | values.keys()):
            check, allowed = _KINDS[name]
            if not check(values.get(name)):
                raise _wrong(name, values.get(name), allowed)
        for name in values["setup"].keys() - {f.name for f in fields(Setup)}:
            raise _wrong("setup", name, "the fields of Setup")
        values |= {"model": model_from_dict(values["model"]), "setup": Setup(**values["setup"])}
        return cls(**values)

    def table(self) -> Table:
        """What was measured, or why it was not."""
        device = f"{self.device['name']}, {self.date[:10]}"
        if self.status in ("skipped", "failed"):
            return Table([device, ""], [[self.status, self.reason]])
        rows = [[name, value, units.text(value)] for name, value in (self.phases or {}).items()]
        if self.peak is not None:
            rows.append([f"peak, at {self.peak_at}" if self.peak_at else "peak", self.peak, units.text(self.peak)])
        names = ("baseline", "workspace", "requested_peak", "allocated_peak", "active_peak", "reserved_peak")
        rows += [[n, getattr(self, n), units.text(getattr(self, n))] for n in names if getattr(self, n) is not None]
        if self.out_of_memory:
            for name in ("requested", "free"):
                if self.out_of_memory[name] is not None:
                    size = self.out_of_memory[name]
                    rows.append([f"out of memory in {self.out_of_memory['at']}, {name}", size, units.text(size)])
            rows.append(
                ["what to do", "a smaller batch, or checkpointing", "`everybyte fit --plan` says what fits a GPU"]
            )
        elif self.timed:
            rows.append(["milliseconds a step", self.step_ms, ""])
            rows.append(["tokens a second", self.tokens_per_s, ""])
            if self.mfu is not None:
                rows.append(["model FLOP/s utilization", self.mfu, f"{self.mfu:.1%}"])
        return Table([device, "bytes", ""], rows)

    def __repr__(self):
        return repr(self.table())

    def _repr_html_(self):
        return self.table()._repr_html_()


def model_as_dict(model: Model) -> dict:
    """A model as JSON holds it: its name, its parameters, and the dimensions that a plain GPT-2 has not.

    Where the catalog has the model, its source and published count are left to the catalog.
    """
    plain = Model(**{f.name: getattr(model, f.name) for f in fields(Model) if f.default is MISSING})
    left_out = {"name"} | ({"published", "source"} if models().get(model.name) == model else set())
    dimensions = {f.name: getattr(model, f.name) for f in fields(Model) if f.name not in left_out}
    # A default may depend on another field, so what follows from others is always said.
    said = {f.name for f in fields(Model) if f.default in (MISSING, None)} - {"published"}
    dimensions = {name: v for name, v in dimensions.items() if name in said or v != getattr(plain, name)}
    return {"name": model.name, "parameters": int(model.parameters), "dimensions": dimensions}


def model_from_dict(said: dict) -> Model:
    """The model of `model_as_dict`; where the catalog has it, the catalog's.

    Raises:
        ValueError: where a field is missing or wrong, or the parameters are not those of the dimensions.
    """
    if not isinstance(said, dict) or set(said) != {"name", "parameters", "dimensions"}:
        raise _wrong("model", said, "name, parameters and dimensions")
    dimensions = said["dimensions"]
    required = {f.name for f in fields(Model) if f.default is MISSING} - {"name"}
    if not isinstance(dimensions, dict) or not required <= set(dimensions) <= {f.name for f in fields(Model)} - {
        "name"
    }:
        raise _wrong("model", dimensions, "the fields of Model")
    model = Model(name=said["name"], **dimensions)
    if said["parameters"] != model.parameters:
        raise _wrong("model", said["parameters"], f"the {model.parameters} parameters of these dimensions")
    known = models().get(model.name)
    return known if known and known.replace(source="") == model else model


def _whole(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _number(value):
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _text(value):
    return isinstance(value, str)


def _object(value):
    return isinstance(value, dict)


def _object_of(names, check):
    return lambda value: _object(value) and set(value) == set(names) and all(map(check, value.values()))


def _whole_or_none(value):
    return value is None or _whole(value)


def _out_of_memory(value):
    sizes = _object_of(("requested", "free"), _whole_or_none)
    said = _object(value) and _text(value.get("at")) and _text(value.get("of", ""))
    return said and sizes({k: v for k, v in value.items() if k not in ("at", "of")})


def _losses(value):
    return isinstance(value, list) and len(value) > 0 and all(v is None or _number(v) for v in value)


def _history(value):
    if not _object(value) or set(value) != {"allocations", "marks", "at", "live"}:
        return False
    at, live = value["at"], value["live"]
    lists = all(isinstance(v, list) and all(map(_whole, v)) for v in (at, live))
    return lists and len(at) == len(live) > 0 and _whole(value["allocations"]) and _object(value["marks"])


def _learning(value):
    if not _object(value) or set(value) != {"recipe", "asked", "validation"}:
        return False
    rows = value["validation"]
    return (
        _recipe(value["recipe"])
        and _whole(value["asked"])
        and isinstance(rows, list)
        and bool(rows)
        and all(map(_validated, rows))
    )


def _recipe(value):
    if not _object(value) or value.keys() - {f.name for f in fields(Recipe)}:
        return False
    try:
        Recipe(**value)
    except ValueError:
        return False
    return True


def _validated(row):
    if not isinstance(row, list) or len(row) != 3:
        return False
    return _whole(row[0]) and (row[1] is None or _number(row[1])) and _number(row[2])


def _device(value):
    return _object(value) and {"name", "type", "gpu", "memory"} <= set(value) and _text(value["name"])


def _ranks(value):
    return isinstance(value, list) and all(_object(one) and _whole(one.get("rank")) for one in value)


def _date(value):
    try:
        return datetime.fromisoformat(value).tzinfo is not None
    except (TypeError, ValueError):
        return False


def _fingerprint(value):
    return _text(value) and len(value) == 64 and not set(value) - set("0123456789abcdef")


def _kinds():
    """Field -> (check of a value, what is allowed in words)."""
    peaks = [f"{count}_peak" for count in ("allocated", "requested", "active", "reserved")]
    whole = [
        "rounding",
        "peak",
        "baseline",
        "workspace",
        *peaks,
        "retries",
        "segments",
        "reserved_at_end",
        "steps",
        "flops",
        "skipped_steps",
    ]
    yield from dict.fromkeys(whole, (_whole, "a whole number, 0 or more")).items()
    yield from dict.fromkeys(("step_ms", "tokens_per_s", "mfu"), (_number, "a number, 0 or more")).items()
    yield from dict.fromkeys(("model", "setup", "versions", "settings"), (_object, "an object")).items()
    for field, names in {"phases": PHASES, "requested": PHASES, "peaks": WITHIN}.items():
        yield field, (_object_of(names, _whole), f"whole bytes for each of {', '.join(names)}")
    yield "step_ms_quartiles", (lambda v: isinstance(v, list) and all(map(_number, v)), "a list of numbers")
    yield "clocks", (lambda v: _object(v) and all(map(_number, v.values())), "an object of numbers")
    for field in ("driver_before", "driver_used"):
        yield field, (_object_of(("cuda", "nvml"), _whole_or_none), "bytes for cuda and nvml, or null")
    yield "out_of_memory", (_out_of_memory, "bytes requested and free, or null, and at what stage")
    yield "loss", (_losses, "a list of numbers, null where not finite")
    yield "history", (_history, "allocations, marks, and as many places at as live bytes")
    yield "learning", (_learning, "a recipe, the steps asked for, and rows of step, loss and seconds")
    yield "ranks", (_ranks, "a list of objects, each with its rank")
    yield "device", (_device, "an object with at least name, type, gpu and memory")
    yield "date", (_date, "a date and time with its zone, ISO 8601")
    yield "fingerprint", (_fingerprint, "64 hexadecimal digits")
    yield from dict.fromkeys(("status", "witness", "reason", "peak_at"), (_text, "text")).items()


_KINDS = dict(_kinds())
_ALWAYS = {f.name for f in fields(Measurement) if f.default is MISSING}
_SOMETIMES = {
    "out_of_memory", "reason", "peak_at", "history", "learning", "ranks", "witness", "segments", "reserved_at_end", "clocks",
    "mfu", "step_ms", "step_ms_quartiles", "tokens_per_s", "flops",
}  # fmt: skip
_NEEDED = {
    "measured": _KINDS.keys() - _SOMETIMES,
    "oom": _ALWAYS
    | {"out_of_memory", "allocated_peak", "reserved_peak", "retries", "baseline", "versions", "settings"},
    "skipped": _ALWAYS | {"reason"},
    "failed": _ALWAYS | {"reason"},
}


def _wrong(field, value, allowed):
    shown = repr(value)
    shown = shown if len(shown) < 80 else shown[:77] + "..."
    return ValueError(f"Measurement.{field}: {shown} is not as it must be; allowed: {allowed}")
