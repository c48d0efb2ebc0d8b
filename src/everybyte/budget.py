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
        parts: bytes of each part of memory. phases: live bytes at the named moments of a steady step.
        peak: the most bytes that live at once, and peak_at: where; None where not derived.
    """

    model: Model
    setup: Setup
    block: int
    parts: dict[str, int]
    phases: dict[str, int]
    peak: int | None = None
    peak_at: str | None = None

    def as_dict(self) -> dict:
        """As JSON holds it: whole bytes."""
        found = {"peak": self.peak, "peak_at": self.peak_at}
        return {
            "witness": "predict",
            "model": {"name": self.model.name, "parameters": self.model.parameters},
            "setup": self.setup.as_dict(),
            "parts": self.parts,
            "phases": self.phases,
        } | {name: value for name, value in found.items() if value is not None}


PARTS = {"parameters": "weights", "buffers": "buffers", "gradients": "gradients", "optimizer": "optimizer"}
PHASES = {"rest": "phase.rest", "after_step": "phase.after_step"}


@cache
def _program():
    from .formulas import formula
    from .formulas.registry import compile_together

    return compile_together([formula(name).in_blocks() for name in (*PARTS.values(), *PHASES.values())])


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
    parts = dict(zip(PARTS, values, strict=False))
    return Budget(model, setup, block, parts, dict(zip(PHASES, values[len(parts) :], strict=True)))
