"""What a plan asks about a model that the theory does not derive: memory and work of its steps, counted by dry runs."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from ..ask.choices import DTYPE_BYTES
from ..ask.setup import Setup
from ..common import terminal
from ..dryrun import Trace
from ..dryrun.modules import own, workload
from .looks import inputs, subject

#: As CUDA's allocator does.
_ROUNDING = 512


class Counting:
    """Dry runs of one model under many setups, each made once.

    Args:
        model: a Hugging Face config, or a function that makes a `torch.nn.Module`. batch: as for `derive`.
        sizes: of letters of the reader's own. vary: one of them that has no size yet.

    Raises:
        ValueError: a letter of the reader's own without a size.
    """

    def __init__(self, model, batch=None, sizes: Mapping[str, int] | None = None, vary: str = ""):
        self.subject, self._sizes, self.further = subject(model, batch), dict(sizes or {}), vary
        if batch is not None and not callable(batch):
            inputs(batch, 1, 1, **self._sizes)  # says which letter has none
        if strange := sorted(set(self.subject.further) ^ {*self._sizes, *vary}):
            raise ValueError(f"fit: letter {strange[0]!r}; allowed: a size for each letter that the batch is made of")
        self._traces: dict[tuple, Trace] = {}
        self._bar = terminal.bar(desc="dry runs", unit="")

    @cached_property
    def described(self):
        """What stands for the model in a result: its name and its parameters."""
        return next(iter(self._traces.values())).model

    @property
    def own(self) -> dict:
        """What a setup has that leaves it unsaid: the model's own."""
        return own(self.subject.model)

    def trace(self, setup: Setup, **varied: int) -> Trace:
        """The dry run under a setup, with a size for what varies; of more than three accumulated batches, of three."""
        setup, sizes = setup.replace(accumulation=min(setup.accumulation, 3)), self._letters(setup) | varied
        if (key := (setup, *sizes.items())) not in self._traces:
            self._traces[key] = self.subject.trace(setup, None, sizes)
            self._bar.update()
        return self._traces[key]

    def _letters(self, setup):
        return {"B": setup.batch, "S": setup.sequence} | self._sizes

    def at(self, setup: Setup, rounding: int = 1, **varied: int) -> Trace:
        """The same, each tensor rounded up, as a witness says it."""
        return replace(self.trace(setup, **varied), rounding=rounding, sizes=varied)

    def computes(self, setup: Setup) -> bool:
        """Whether the model runs in the setup's precision: a module of one's own may be given, or made in, another data type."""
        try:
            return self.subject.batch is None or bool(self.trace(setup))
        except ValueError:
            return False

    def takes(self, setup: Setup) -> bool:
        """Whether the model can do what the setup says; nothing is run."""
        model = self.subject.model
        try:
            workload(model, *self.subject.asked(setup, self._letters(setup)))
        except ValueError:
            return False
        return setup.checkpointing == "none" or _checkpoints(model)

    def top(self, setup: Setup) -> tuple[int, str]:
        """(peak, where): each tensor rounded up as CUDA's allocator does."""
        trace = self.at(setup, _ROUNDING)
        return trace.peak, trace.peak_at

    def rest(self, setup: Setup) -> int:
        """Bytes between steps: no step with these data types takes less."""
        return self.trace(setup).phases["rest"]

    def flops(self, setup: Setup) -> int:
        """Floating-point operations of a step's matrix products."""
        return self._all_batches(setup, lambda trace: trace.flops)

    def made(self, setup: Setup) -> int:
        """Bytes of all tensors that forward and backward make, one after another."""
        return self._all_batches(setup, _made)

    def updated(self, setup: Setup) -> int:
        """Bytes that the optimizer's step and the sum of the gradients read and write."""
        width = DTYPE_BYTES[setup.dtypes.weights]
        each = {"bf16": width, "fp32": 4, "both": width + 4}[setup.kept_gradients]
        numbers = self.trace(setup).parts_at("after_backward")["gradients"] // each
        return setup.update_bytes * numbers + 2 * width * (setup.accumulation - 1) * numbers

    def _all_batches(self, setup, read):
        """A sum over accumulated batches: of two, plus what a third adds for each further one."""
        if setup.accumulation <= 3:
            return read(self.trace(setup))
        two, three = (read(self.trace(setup.replace(accumulation=n))) for n in (2, 3))
        return two + (setup.accumulation - 2) * (three - two)


def _made(trace):
    """Bytes of the tensors that forward and backward make."""
    phases = [phase for _, phase, _ in trace.operations]
    return sum(a.bytes for a in trace.allocations if phases[a.birth] in ("forward", "backward") and not a.host)


def _checkpoints(config) -> bool:
    """Whether the language model of a configuration can checkpoint its layers."""
    from transformers.models.auto import modeling_auto

    for mapping in (modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING, modeling_auto.MODEL_FOR_MASKED_LM_MAPPING):
        if module := mapping.get(type(config), None):
            return bool(module.supports_gradient_checkpointing)
    return False
