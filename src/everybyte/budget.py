"""The first witness: a training step's memory, predicted by formula alone."""

from dataclasses import dataclass
from functools import cache

from . import checks
from .catalog import Model
from .setup import Setup


@dataclass(frozen=True)
class Budget:
    """A prediction in bytes. What the book has not derived for a model's architecture is absent, not zero.

    Attributes:
        model, setup: what is predicted. block: bytes that each tensor is rounded up to a multiple of.
        moments: bytes of each part at each named moment of a steady step.
        parts: bytes of each part at the peak; they sum to it. phases: live bytes at the moments, and the most in the
            optimizer's step (`step`).
        peak: the most bytes that live at once, and peak_at: where; None where not derived.
    """

    model: Model
    setup: Setup
    block: int
    moments: dict[str, dict[str, int]]
    parts: dict[str, int]
    phases: dict[str, int]
    peak: int | None = None
    peak_at: str | None = None

    def parts_at(self, moment: str) -> dict[str, int]:
        """Bytes of each part at a moment: `rest`, `after_forward`, `after_backward` or `after_step`."""
        checks.one_of("Budget", "moment", moment, self.moments)
        return self.moments[moment]

    def as_dict(self) -> dict:
        """As JSON holds it: whole bytes."""
        found = {"peak": self.peak, "peak_at": self.peak_at}
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
def _ledger_program(chunked):
    from .formulas.step import compile_ledger

    return compile_ledger(chunked)


def budget(model: Model, setup: Setup, block: int = 1) -> Budget:
    """Predict the memory of one steady training step.

    Args:
        block: round each tensor up to a multiple of so many bytes: 512 as CUDA's allocator does.

    Raises:
        ValueError: where the setup does not fit the model.
    """
    checks.whole("budget", "block", block, 1, 2**30)
    setup.check_model(model)
    values = _states_program()(model, setup, block)
    rest = {part: values[name] for part, name in _REST.items()}
    if model.unlike_gpt():
        moments = {"rest": rest, "after_step": {part: values[name] for part, name in _AFTER_STEP.items()}}
        return Budget(model, setup, block, moments, {}, {m: sum(parts.values()) for m, parts in moments.items()})
    return _whole_step(model, setup, block, rest)


def _whole_step(model, setup, block, rest):
    from .formulas.step import walk

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

    chunked, tokens = setup.loss == "chunked", setup.batch * setup.sequence
    chunks = -(-tokens // -(-tokens // setup.loss_chunks)) if chunked else None
    walk(_ledger_program(chunked)(model, setup, block), model.layers, rest, see, chunks)
    totals = {moment: sum(live.values()) for moment, live in moments.items()}
    totals["step"] = step
    order = ("rest", "after_forward", "after_backward", "step", "after_step")
    return Budget(model, setup, block, moments, parts, {name: totals[name] for name in order}, peak, peak_at)
