"""The first witness: a training step's memory, predicted by formula alone."""

from dataclasses import dataclass
from functools import cache

from . import checks
from .catalog import Model
from .setup import Setup


@dataclass(frozen=True)
class Budget:
    """A prediction in bytes. What the book has not derived yet is absent, not zero.

    Attributes:
        model, setup: what is predicted. block: bytes that each tensor is rounded up to a multiple of.
        moments: bytes of each part at each named moment of a steady step.
        parts: bytes of each part at the peak. phases: live bytes at the moments, and the most in the optimizer's step.
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
#: The formula of each part at each moment.
MOMENTS = {
    "rest": {**_STATES, "gradients": "gradients.buffer"},
    "after_step": {**_STATES, "gradients": "gradients", "activations": "batch.tokens", "loss": "loss.kept"},
}


@cache
def _program():
    from .formulas import formula
    from .formulas.registry import compile_together

    names = dict.fromkeys(name for parts in MOMENTS.values() for name in parts.values())
    program = compile_together([formula(name).in_blocks() for name in names])
    return lambda *args: dict(zip(names, program(*args), strict=True))


def budget(model: Model, setup: Setup, block: int = 1) -> Budget:
    """Predict the memory of one steady training step.

    Args:
        block: round each tensor up to a multiple of so many bytes: 512 as CUDA's allocator does.

    Raises:
        ValueError: where the setup does not fit the model.
    """
    checks.whole("budget", "block", block, 1, 2**30)
    setup.check_model(model)
    values = _program()(model, setup, block)
    moments = {m: {part: values[name] for part, name in parts.items()} for m, parts in MOMENTS.items()}
    return Budget(model, setup, block, moments, {}, {moment: sum(parts.values()) for moment, parts in moments.items()})
