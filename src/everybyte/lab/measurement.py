"""The third witness: what one device said of one training step, in whole bytes."""

import re
from dataclasses import MISSING, dataclass, fields
from datetime import datetime
from typing import Annotated

from .. import units
from ..ask.setup import Setup
from ..catalog import Model, models
from ..common import checks
from ..common.tables import Table
from ..step.course import PHASES
from .recipe import Recipe
from .shapes import Kind, fits, kinds, number, whole

#: The version of the JSON. A reader refuses any other.
SCHEMA = 1
#: Who says it: a GPU (or CPU), or PyTorch's CUDA code on a GPU that is not there.
WITNESSES = ("measure", "rehearse")
STATUSES = ("measured", "oom", "skipped", "failed")
#: The phases within which the most bytes are counted.
WITHIN = ("forward", "backward", "step")


def _some(shape):
    """A list of one at least."""
    return lambda value: fits(value, [shape, ...]) and len(value) > 0


def _so(question):
    """What answers a question, with no where asking it fails."""

    def answer(value):
        try:
            return bool(question(value))
        except (TypeError, ValueError):
            return False

    return answer


def _history(value):
    said = {"allocations": whole, "marks": dict, "at": _some(whole), "live": _some(whole)}
    return fits(value, said) and len(value["at"]) == len(value["live"])


_OUT = {"requested": (whole, None), "free": (whole, None), "at": str, "of?": str}
_LEARNING = {"recipe": _so(lambda v: Recipe(**v)), "asked": whole, "validation": _some([whole, (number, None), number])}
_DEVICE = {"name": str, "type": object, "gpu": object, "memory": object, ...: object}
#: The types of fields, with what a record may say there.
Whole = Annotated[int, Kind(whole, "a whole number, 0 or more")]
Number = Annotated[float, Kind(number, "a number, 0 or more")]
Text = Annotated[str, Kind(str, "text")]
Object = Annotated[dict, Kind(dict, "an object")]
Phases = Annotated[dict[str, int], Kind(dict.fromkeys(PHASES, whole), f"whole bytes for each of {', '.join(PHASES)}")]
Peaks = Annotated[dict[str, int], Kind(dict.fromkeys(WITHIN, whole), f"whole bytes for each of {', '.join(WITHIN)}")]
Quartiles = Annotated[list, Kind([number, ...], "a list of numbers")]
Clocks = Annotated[dict, Kind({...: number}, "an object of numbers")]
Used = Annotated[dict, Kind(dict.fromkeys(("cuda", "nvml"), (whole, None)), "bytes for cuda and nvml, or null")]
OutOfMemory = Annotated[dict, Kind(_OUT, "bytes requested and free, or null, and at what stage")]
Losses = Annotated[list, Kind(_some((number, None)), "a list of numbers, null where not finite")]
History = Annotated[dict, Kind(_history, "allocations, marks, and as many places at as live bytes")]
Learning = Annotated[dict, Kind(_LEARNING, "a recipe, the steps asked for, and rows of step, loss and seconds")]
Ranks = Annotated[list, Kind([{"rank": whole, ...: object}, ...], "a list of objects, each with its rank")]
Device = Annotated[dict, Kind(_DEVICE, "an object with at least name, type, gpu and memory")]
Date = Annotated[str, Kind(_so(lambda v: datetime.fromisoformat(v).tzinfo), "a date and time with its zone, ISO 8601")]
Digest = Annotated[str, Kind(_so(lambda v: re.fullmatch("[0-9a-f]{64}", v)), "64 hexadecimal digits")]


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

    model: Annotated[Model, Kind(dict, "an object")]
    setup: Annotated[Setup, Kind(dict, "an object")]
    status: Text
    device: Device
    date: Date
    fingerprint: Digest
    reason: Text | None = None
    rounding: Whole = 512
    phases: Phases | None = None
    requested: Phases | None = None
    peaks: Peaks | None = None
    peak: Whole | None = None
    peak_at: Text | None = None
    baseline: Whole | None = None
    workspace: Whole | None = None
    allocated_peak: Whole | None = None
    requested_peak: Whole | None = None
    active_peak: Whole | None = None
    reserved_peak: Whole | None = None
    retries: Whole | None = None
    segments: Whole | None = None
    driver_before: Used | None = None
    driver_used: Used | None = None
    out_of_memory: OutOfMemory | None = None
    steps: Whole | None = None
    reserved_at_end: Whole | None = None
    step_ms: Number | None = None
    step_ms_quartiles: Quartiles | None = None
    clocks: Clocks | None = None
    tokens_per_s: Number | None = None
    flops: Whole | None = None
    mfu: Number | None = None
    loss: Losses | None = None
    skipped_steps: Whole | None = None
    history: History | None = None
    learning: Learning | None = None
    ranks: Ranks | None = None
    versions: Object | None = None
    settings: Object | None = None
    witness: Text = "measure"

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
            if not fits(values.get(name), _KINDS[name].shape):
                raise _wrong(name, values.get(name), _KINDS[name].allowed)
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


_KINDS = kinds(Measurement)
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
