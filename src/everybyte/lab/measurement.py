"""A measurement: one training step on a device, in whole bytes."""

import math
import re
from dataclasses import MISSING, dataclass, fields
from datetime import datetime
from typing import Annotated, Any, get_args, get_type_hints

from ..ask.setup import Setup
from ..catalog import Model, models
from ..common import checks
from ..common.tables import Shown, Table, sized
from ..step.course import PHASES
from .recipe import Recipe

#: The version of the JSON. Any other is refused.
SCHEMA = 1
#: Where it was measured: on a GPU or CPU; or on the pretended GPU of a rehearsal.
WITNESSES = ("measure", "rehearse")
STATUSES = ("measured", "oom", "skipped", "failed")
#: The phases of which the most bytes are recorded.
WITHIN = ("forward", "backward", "step")


# Shapes of JSON values, as data.


@dataclass(frozen=True, eq=False)
class Kind:
    """What a field may be: its `shape`, and that in words, `allowed`. It stands in `Annotated[int, Kind(...)]`."""

    shape: Any
    allowed: str


def fits(value: object, shape: Any) -> bool:
    """Whether a JSON value has a shape.

    Args:
        shape: a type; None; a function that gives True or False; a tuple of shapes, of which one must fit;
            `[shape, ...]`, a list of any length; `[shape, shape]`, a list of exactly these; `{name: shape}`, an object
            with exactly these names, where `name?` may be missing and `...` stands for all other names.
    """
    if isinstance(shape, tuple):
        return any(fits(value, one) for one in shape)
    if isinstance(shape, list):
        each = shape[:1] * len(value) if isinstance(value, list) and shape[-1] is ... else shape
        return isinstance(value, list) and len(value) == len(each) and all(map(fits, value, each))
    if isinstance(shape, dict):
        known = {name.removesuffix("?"): one for name, one in shape.items() if name is not ...}
        if not isinstance(value, dict) or not shape.keys() & known.keys() <= value.keys():
            return False
        return (... in shape or value.keys() <= known.keys()) and all(
            fits(each, known.get(name, shape.get(...))) for name, each in value.items()
        )
    if isinstance(shape, type):
        return isinstance(value, shape)
    return value is None if shape is None else shape(value)


def some(shape: Any):
    """The shape of a list with at least one entry."""
    return lambda value: fits(value, [shape, ...]) and len(value) > 0


def whole(value: object) -> bool:
    """Whether it is a whole number, 0 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def number(value: object) -> bool:
    """Whether it is a number, 0 or more."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _so(question):
    """A shape of `fits`: values for which `question` is true and raises no error."""

    def answer(value):
        try:
            return bool(question(value))
        except (TypeError, ValueError):
            return False

    return answer


def _history(value):
    said = {"allocations": whole, "marks": dict, "at": some(whole), "live": some(whole)}
    return fits(value, said) and len(value["at"]) == len(value["live"])


_OUT = {"requested": (whole, None), "free": (whole, None), "at": str, "of?": str}
_LEARNING = {"recipe": _so(lambda v: Recipe(**v)), "asked": whole, "validation": some([whole, (number, None), number])}
_DEVICE = {"name": str, "type": object, "gpu": object, "memory": object, ...: object}
#: Types of fields, with the values that a record may have.
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
Losses = Annotated[list, Kind(some((number, None)), "a list of numbers, null where not finite")]
History = Annotated[dict, Kind(_history, "allocations, marks, and as many places at as live bytes")]
Learning = Annotated[dict, Kind(_LEARNING, "a recipe, the steps asked for, and rows of step, loss and seconds")]
Ranks = Annotated[list, Kind([{"rank": whole, ...: object}, ...], "a list of objects, each with its rank")]
Device = Annotated[dict, Kind(_DEVICE, "an object with at least name, type, gpu and memory")]
Date = Annotated[str, Kind(_so(lambda v: datetime.fromisoformat(v).tzinfo), "a date and time with its zone, ISO 8601")]
Digest = Annotated[str, Kind(_so(lambda v: re.fullmatch("[0-9a-f]{64}", v)), "64 hexadecimal digits")]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Measurement(Shown):
    """One training step on a device. Bytes are whole; `phases`, `requested`, `peaks` and `peak` exceed `baseline`."""

    model: Annotated[Model, Kind(dict, "an object")]
    setup: Annotated[Setup, Kind(dict, "an object")]
    # `measured`; `oom`, a result as well; `skipped`, where it was not tried; `failed`, where it died or hung.
    status: Text
    device: Device
    date: Date  # UTC
    fingerprint: Digest  # of the reference step's source
    reason: Text | None = None  # why it was skipped or failed
    rounding: Whole = 512  # of each tensor in the device's allocator, to a multiple of so many bytes; 1 for none
    # Live bytes at moments of one steady step, and the most in the optimizer's step (`step`).
    phases: Phases | None = None
    requested: Phases | None = None  # the same, of each tensor as asked for, not of the block that it got
    peaks: Peaks | None = None  # the most live bytes in forward, backward and the optimizer's step
    peak: Whole | None = None  # the most of all
    peak_at: Text | None = None  # where it is in the order of allocations, in a dry run's words; None if not asked for
    baseline: Whole | None = None  # bytes that lived before the model
    workspace: Whole | None = None  # bytes of cuBLAS's workspaces, which stay after its first product
    # The most bytes of each of the allocator's counts, with the baseline.
    allocated_peak: Whole | None = None
    requested_peak: Whole | None = None
    active_peak: Whole | None = None
    reserved_peak: Whole | None = None
    retries: Whole | None = None  # how often the allocator gave memory back before it could serve a request
    segments: Whole | None = None  # how many it had from the driver after the steps
    # Bytes in use on the whole device, by CUDA and by NVML (None without its Python binding): other processes' too. None where several
    # steps were measured at once.
    driver_before: Used | None = None  # before the model
    driver_used: Used | None = None  # after the steps
    # Whose memory ran out (`of`), bytes `requested`, as precise as PyTorch's message, and `free`, and `at` what stage.
    out_of_memory: OutOfMemory | None = None
    steps: Whole | None = None  # how many were timed; 0 for a step that was counted alone
    reserved_at_end: Whole | None = None  # bytes that the allocator had when `driver_used` was asked for
    step_ms: Number | None = None  # the timed steps' median
    step_ms_quartiles: Quartiles | None = None  # the first and the third
    clocks: Clocks | None = None  # the GPU's clock, power, its limit, and temperature after the timed steps
    tokens_per_s: Number | None = None
    flops: Whole | None = None  # of a step, the model's
    mfu: Number | None = None  # their share of the catalog's dense 16-bit peak; None for fp32 and unknown devices
    # Of every step, None where not finite, on the next windows of the book's text, the same for every configuration of
    # one shape; a vocabulary under 256 has random tokens, always the same.
    loss: Losses | None = None
    skipped_steps: Whole | None = None  # by loss scaling
    # `allocations` of one step, the places `at` which `live` bytes are given, the extremes among them, and `marks`: how
    # many allocations there were when a moment last came.
    history: History | None = None
    # Of a training run: its `recipe`, with as many steps as there was time for of those `asked`; and `validation`:
    # steps taken, the loss on prose that is not trained on, and seconds of training until then.
    learning: Learning | None = None
    # Of many GPUs measured at once: each one's `rank`, and some of the fields here, rank 0's.
    ranks: Ranks | None = None
    versions: Object | None = None
    settings: Object | None = None
    witness: Text = "measure"  # or `rehearse`, on a rehearsal's device, where no time means anything

    @property
    def oom(self) -> bool:
        """Whether the device ran out of memory."""
        return self.status == "oom"

    @property
    def timed(self) -> bool:
        """Whether its milliseconds are real: timed on a real device, with collectives that move data."""
        fake = (self.settings or {}).get("collectives") == "fake"
        return self.step_ms is not None and self.witness == "measure" and not fake

    def as_dict(self) -> dict:
        """As JSON. A device does not know parts of memory, so `parts` is empty."""
        head = {"schema": SCHEMA, "witness": self.witness, "status": self.status, "oom": self.oom}
        said = head | {f.name: getattr(self, f.name) for f in fields(self)}
        said |= {"model": model_as_dict(self.model), "setup": self.setup.as_dict(), "parts": {}}
        said["phases"] = self.phases or {}
        optional = {f.name for f in fields(self) if f.default is None} - {"peak_at", "mfu"}
        return {name: value for name, value in said.items() if value is not None or name not in optional}

    @classmethod
    def from_dict(cls, said: dict) -> "Measurement":
        """From JSON.

        Raises:
            ValueError: for a missing or unknown field, a value of another type, or another schema.
        """
        if said.get("schema") != SCHEMA:
            raise _wrong("schema", said.get("schema"), SCHEMA)
        for name in said.keys() - _KINDS.keys() - {"schema", "oom", "parts"}:
            raise _wrong(name, said[name], "no such field")
        checks.one_of("Measurement", "status", said.get("status"), STATUSES)
        checks.one_of("Measurement", "witness", said.get("witness", "measure"), WITNESSES)
        if said.get("oom", said["status"] == "oom") is not (said["status"] == "oom"):
            raise _wrong("oom", said["oom"], said["status"] == "oom")
        values = {name: value for name, value in said.items() if name in _KINDS and value is not None}
        if not values.get("phases"):
            values.pop("phases", None)
        for name in sorted(_NEEDED[said["status"]] | values.keys()):
            if not fits(values.get(name), _KINDS[name].shape):
                raise _wrong(name, values.get(name), _KINDS[name].allowed)
        for name in values["setup"].keys() - {f.name for f in fields(Setup)}:
            raise _wrong("setup", name, "the fields of Setup")
        return cls(**values | {"model": model_from_dict(values["model"]), "setup": Setup(**values["setup"])})

    def table(self) -> Table:
        """The measured numbers, or why nothing was measured."""
        device = f"{self.device['name']}, {self.date[:10]}"
        if self.status in ("skipped", "failed"):
            return Table([device, ""], [[self.status, self.reason]])
        bytes_of: dict[str, int | None] = dict(self.phases or {})
        bytes_of |= {f"peak, at {self.peak_at}" if self.peak_at else "peak": self.peak}
        names = ("baseline", "workspace", "requested_peak", "allocated_peak", "active_peak", "reserved_peak")
        bytes_of |= {name: getattr(self, name) for name in names}
        if out := self.out_of_memory:
            bytes_of |= {f"out of memory in {out['at']}, {name}": out[name] for name in ("requested", "free")}
        rows: list = [sized(name, size) for name, size in bytes_of.items() if size is not None]
        if out:
            advice = "a smaller batch, or checkpointing", "`everybyte fit --plan` says what fits a GPU"
            rows.append(["what to do", *advice])
        elif self.timed:
            rows += [["milliseconds a step", self.step_ms, ""], ["tokens a second", self.tokens_per_s, ""]]
            rows += [["model FLOP/s utilization", self.mfu, f"{self.mfu:.1%}"]] if self.mfu is not None else []
        return Table([device, "bytes", ""], rows)


_HINTS = get_type_hints(Measurement, include_extras=True).items()
_PARTS = ((name, part) for name, hint in _HINTS for part in (hint, *get_args(hint)))
#: Field -> its `Kind`, from the annotations.
_KINDS: dict[str, Kind] = {name: part.__metadata__[0] for name, part in _PARTS if hasattr(part, "__metadata__")}
_ALWAYS = {f.name for f in fields(Measurement) if f.default is MISSING}
_SOMETIMES = {
    "out_of_memory", "reason", "peak_at", "history", "learning", "ranks", "witness", "segments", "reserved_at_end",
    "clocks", "mfu", "step_ms", "step_ms_quartiles", "tokens_per_s", "flops", "driver_before", "driver_used",
}  # fmt: skip
_RAN_OUT = {"out_of_memory", "allocated_peak", "reserved_peak", "retries", "baseline", "versions", "settings"}
#: Status -> the fields that it must have.
_NEEDED = {
    "measured": _KINDS.keys() - _SOMETIMES,
    "oom": _ALWAYS | _RAN_OUT,
    "skipped": _ALWAYS | {"reason"},
    "failed": _ALWAYS | {"reason"},
}


def model_as_dict(model: Model) -> dict:
    """A model as JSON: its name, its parameters, and the dimensions that are not GPT-2's defaults.

    Source and published count are left out where the catalog has the model.
    """
    plain = Model(**{f.name: getattr(model, f.name) for f in fields(Model) if f.default is MISSING})
    # A default may depend on another field, so what follows from others is always said.
    always = {f.name for f in fields(Model) if f.default in (MISSING, None)} - {"published"}
    always |= {f.name for f in fields(Model) if getattr(model, f.name) != getattr(plain, f.name)}
    left_out = {"name"} | ({"published", "source"} if models("reference").get(model.name) == model else set())
    dimensions = {f.name: getattr(model, f.name) for f in fields(Model) if f.name in always - left_out}
    return {"name": model.name, "parameters": int(model.parameters), "dimensions": dimensions}


def model_from_dict(said: dict) -> Model:
    """The model from `model_as_dict`; the catalog's own, where it has the model.

    Raises:
        ValueError: where a field is missing or wrong, or the parameters are not those of the dimensions.
    """
    if not isinstance(said, dict) or set(said) != {"name", "parameters", "dimensions"}:
        raise _wrong("model", said, "name, parameters and dimensions")
    dimensions = said["dimensions"]
    known = {f.name for f in fields(Model)} - {"name"}
    required = {f.name for f in fields(Model) if f.default is MISSING} - {"name"}
    if not isinstance(dimensions, dict) or not required <= dimensions.keys() <= known:
        raise _wrong("model", dimensions, "the fields of Model")
    model = Model(name=said["name"], **dimensions)
    if said["parameters"] != model.parameters:
        raise _wrong("model", said["parameters"], f"the {model.parameters} parameters of these dimensions")
    ours = models("reference").get(model.name)
    return ours if ours and ours.replace(source="") == model else model


def _wrong(field, value, allowed):
    shown = repr(value)
    shown = shown if len(shown) < 80 else shown[:77] + "..."
    return ValueError(f"Measurement.{field}: {shown} is not as it must be; allowed: {allowed}")
