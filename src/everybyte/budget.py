"""The first witness: a training step's memory, predicted by formula alone."""

from dataclasses import dataclass, field, replace
from functools import cache, cached_property

from . import checks
from .catalog import Model
from .setup import DTYPE_BYTES, Setup


@dataclass(frozen=True)
class Budget:
    """A prediction in bytes. What the book has not derived for a model's architecture is absent, not zero.

    Attributes:
        model, setup: what is predicted. block: bytes that each tensor is rounded up to a multiple of.
        moments: bytes of each part at each named moment of a steady step.
        parts: bytes of each part at the peak; they sum to it. `workspace`, what kernels take for themselves, is 0 until it is
            measured: `formulas.workspaces` says what their sources say. phases: live bytes at the moments, and the most in the
            optimizer's step (`step`).
        peak: the most bytes that live at once, and peak_at: where; None where not derived.
        host: bytes of each part in the memory of the CPU, for each GPU, from backward to the optimizer's step; empty without
            offload. As PyTorch asks for them: what it pins, its allocator rounds up to a power of two.
    """

    model: Model
    setup: Setup
    block: int
    moments: dict[str, dict[str, int]]
    parts: dict[str, int]
    phases: dict[str, int]
    peak: int | None = None
    peak_at: str | None = None
    host: dict[str, int] = field(default_factory=dict)

    def parts_at(self, moment: str) -> dict[str, int]:
        """Bytes of each part at a moment: `rest`, `after_forward`, `after_backward` or `after_step`."""
        checks.one_of("Budget", "moment", moment, self.moments)
        return self.moments[moment]

    def timeline(self) -> dict[str, list[int]]:
        """Live bytes while each operation that takes something runs, by part. With the plain loss, a dry run's.

        But what the optimizer takes tensor by tensor stands as one operation that takes the most of it.

        Raises:
            ValueError: where the step is not derived for the model's architecture, or with that setup.
        """
        return self._course[1]

    @property
    def operations(self) -> list[tuple[str, str, str]]:
        """(name, moment, block) of each place of the timeline: rest, operations, marks, rest."""
        return self._course[0]

    @property
    def marks(self) -> dict[str, int]:
        """A moment's name -> its place in the timeline."""
        return self._course[2]

    @cached_property
    def live(self) -> list[int]:
        """Live bytes at each place of the timeline."""
        return [sum(parts) for parts in zip(*self.timeline().values(), strict=True)]

    @cached_property
    def peak_operation(self) -> int:
        """The place in the timeline of the first operation at which the most bytes live."""
        return self.live.index(max(self.live))

    @cached_property
    def _course(self):
        if unlike := not_derived(self.model, self.setup):
            raise ValueError(unlike)
        from .formulas.walking import Shape, unroll

        sections = sections_of(self.model, self.setup, self.block)
        return unroll(sections, Shape.of(self.model, self.setup), self.moments["rest"])

    def as_dict(self) -> dict:
        """As JSON holds it: whole bytes."""
        found = {"peak": self.peak, "peak_at": self.peak_at, "host": self.host or None}
        return {
            "witness": "predict",
            "model": {"name": self.model.name, "parameters": int(self.model.parameters)},
            "setup": self.setup.as_dict(),
            "parts": self.parts,
            "phases": self.phases,
        } | {name: value for name, value in found.items() if value is not None}


_STATES = {"parameters": "weights", "buffers": "buffers", "optimizer": "optimizer"}
#: The formula of each part at the moments that every architecture shares.
_REST = {**_STATES, "gradients": "gradients.buffer"}
_AFTER_STEP = {**_STATES, "gradients": "gradients", "activations": "batch.tokens", "loss": "loss.kept"}


@cache
def _states_program():
    from .formulas import formula
    from .formulas.registry import compile_expressions

    names = list(dict.fromkeys([*_REST.values(), *_AFTER_STEP.values()]))
    program = compile_expressions(formula(name).in_blocks().expr for name in names)
    return lambda *args: dict(zip(names, program(*args), strict=True))


@cache
def _ledger_program(chunked, checkpointing, accumulated, kind, arrays=False):
    from .formulas.walking import compile_ledgers

    return compile_ledgers(chunked, checkpointing, accumulated, arrays, kind.ledger)


@cache
def _rest_program(kind):
    from .formulas.ledger import rounded
    from .formulas.registry import compile_expressions

    parts = kind.rest(rounded)
    program = compile_expressions(parts.values())
    return lambda *args: dict(zip(parts, program(*args), strict=True))


@cache
def _host_program():
    from .formulas import formula
    from .formulas.registry import compile_expressions

    parts = ("parameters", "weights"), ("gradients", "gradients"), ("optimizer", "optimizer")
    program = compile_expressions(formula(f"fsdp.{name}").expr for _, name in parts)
    return lambda *args: dict(zip((part for part, _ in parts), program(*args), strict=True))


def budget(model: Model, setup: Setup, block: int = 1) -> Budget:
    """Predict the memory of one steady training step.

    Args:
        block: round each tensor up to a multiple of so many bytes: 512 as CUDA's allocator does.

    Raises:
        ValueError: where the setup does not fit the model, or its sharding is not derived for such a model.
    """
    checks.whole("budget", "block", block, 1, 2**30)
    checks.kind("budget", "model", model, Model)
    checks.kind("budget", "setup", setup, Setup)
    setup.check_model(model)
    values = _states_program()(model, setup, block)
    rest = {part: values[name] for part, name in _REST.items()}
    if setup.distributed:
        rest |= _shared_rest(model, setup, block)
    if model.unlike_llama() is None:
        rest["buffers"] = values["buffers"] = 0  # its eager attention makes the mask anew
    if not_derived(model, setup):
        moments = {"rest": rest, "after_step": {part: values[name] for part, name in _AFTER_STEP.items()}}
        return Budget(model, setup, block, moments, {}, {m: sum(parts.values()) for m, parts in moments.items()})
    found = _whole_step(model, setup, block, rest)
    return found if setup.offload == "none" else replace(found, host=_host_program()(model, setup, 1))


def not_derived(model: Model, setup: Setup) -> str | None:
    """Why the model's whole step with the setup is not derived, in words; None where it is: a GPT's, a Llama's on one GPU."""
    unlike = model.unlike_llama()
    if unlike is None and not setup.distributed:
        return f"Setup.dropout: {setup.dropout} with {model.name}, a Llama; allowed: 0.0" if setup.dropout else None
    unlike_gpt = model.unlike_gpt()
    return unlike if unlike and unlike_gpt and model.norm == "rmsnorm" else unlike_gpt  # of the two the nearer


def _shared_rest(model, setup, block):
    """What stands between steps otherwise than on one GPU."""
    from .formulas.sharding import Kind, buckets

    if unlike := model.unlike_gpt():
        raise ValueError(unlike)
    found = {"unsharded": 0, "communication": 0}
    if not setup.ddp:
        found |= _rest_program(Kind.of(setup))(model, setup, block)
    else:
        sizes = buckets(model, DTYPE_BYTES[setup.dtypes.weights])
        found["gradients" if setup.buckets == "views" else "communication"] = sum(-(-b // block) * block for b in sizes)
    return found


def _whole_step(model, setup, block, rest):
    from .formulas.walking import Shape, walk
    from .formulas.workspaces import COUNTED

    moments, parts, peak, peak_at, step = {"rest": rest}, rest, 0, "rest", 0

    def see(moment, name, live):
        nonlocal parts, peak, peak_at, step
        total = sum(live.values())
        if moment == "optimizer step" or name is None and moment == "after_backward":
            step = max(step, total)
        if name is None:
            moments[moment] = dict(live)
        elif total > peak:
            parts, peak, peak_at = dict(live), total, moment

    walk(sections_of(model, setup, block), Shape.of(model, setup), rest, see)
    totals = {moment: sum(live.values()) for moment, live in moments.items()}
    totals["step"] = step
    order = ("rest", "after_forward", "after_backward", "step", "after_step")
    parts = parts | {"workspace": COUNTED}
    return Budget(model, setup, block, moments, parts, {name: totals[name] for name in order}, peak, peak_at)


#: Where a peak may be, in the order of the step.
PEAKS = ("forward", "loss forward", "loss backward", "backward", "optimizer step")


def peaks(model: Model, setup: Setup, batch, sequence, block: int = 1):
    """The peaks of many steps at once, over numpy arrays of batches and sequences, which broadcast.

    Args:
        batch, sequence: whole numbers from 1; the setup's own are not read.

    Returns:
        (peak, peak_at), arrays of their common shape: bytes, and the place in `PEAKS` of where each is.

    Raises:
        ValueError: where the setup or a sequence does not fit the model, its step is not derived, or the loss is chunked.
    """
    import numpy

    from .formulas.walking import Shape, walk

    if unlike := not_derived(model, setup):
        raise ValueError(unlike)
    checks.one_of("peaks", "setup.loss", setup.loss, ("plain",))
    batch, sequence = numpy.broadcast_arrays(*(numpy.asarray(x, dtype="int64") for x in (batch, sequence)))
    for name, values in (("batch", batch), ("sequence", sequence)):
        for extreme in (values.min(), values.max()):
            setup.replace(**{name: int(extreme)}).check_model(model)
    peak, peak_at = numpy.zeros(batch.shape, "int64"), numpy.zeros(batch.shape, "int8")

    def see(moment, name, live):
        nonlocal peak, peak_at
        if name is not None:
            total = sum(live.values())
            higher = total > peak
            peak, peak_at = numpy.where(higher, total, peak), numpy.where(higher, PEAKS.index(moment), peak_at)

    rest = budget(model, setup, block).moments["rest"]
    sections = sections_of(model, setup, block, arrays=True, batch=batch, sequence=sequence)
    walk(sections, Shape.of(model, setup), rest, see)
    return peak, peak_at


def sections_of(model: Model, setup: Setup, block: int, arrays: bool = False, **named) -> dict:
    """The ledgers of a step with their numbers: section -> [(moment, name, [(part, bytes taken)], [(part, bytes gone)])].

    Args:
        arrays: whether `named`, symbols by name in code that replace what the setup says, are numpy arrays.
    """
    from .formulas.llama_ledger import LlamaKind
    from .formulas.sharding import Kind

    checkpointing = "segments" if setup.segment else setup.checkpointing
    kind = LlamaKind() if model.unlike_gpt() else Kind.of(setup)
    program = _ledger_program(setup.loss == "chunked", checkpointing, setup.accumulation > 1, kind, arrays)
    return program(model, setup, block, **named)
