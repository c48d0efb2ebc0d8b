"""The recipe of a training run: steps, learning rates, gradient clipping, validation."""

from dataclasses import asdict, dataclass
from math import cos, pi

from ..ask.setup import Setup
from ..common import checks
from ..rules import CLIPPED, check


@dataclass(frozen=True)
class Recipe:
    """A training run on the prose of the labs.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    steps: int = 1000  # of the optimizer
    warm_up: int = 100  # steps over which the rate rises; then it falls to a tenth along half a cosine
    learning_rate: float = 1e-3
    clip: float = 1.0  # the norm that gradients are scaled down to
    seed: int = 0  # of weights and windows
    evaluations: int = 10  # how often the validation loss is taken, at equal distances
    windows: int = 64  # that it is taken on
    pretrained: int = 0  # steps that all weights take by AdamW on the book's text before: what is then fine-tuned

    def __post_init__(self):
        checks.whole("Recipe", "steps", self.steps, 10, 1_000_000)
        checks.whole("Recipe", "warm_up", self.warm_up, 1, self.steps - 1)
        for field in ("learning_rate", "clip"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
                raise ValueError(f"Recipe.{field}: {value!r} is no number above 0")
        checks.whole("Recipe", "seed", self.seed, 0, 2**31)
        checks.whole("Recipe", "evaluations", self.evaluations, 1, self.steps)
        checks.whole("Recipe", "windows", self.windows, 1, 10_000)
        checks.whole("Recipe", "pretrained", self.pretrained, 0, 1_000_000)

    def rate(self, step: int) -> float:
        """The learning rate of a step, from 0.

        Source: Brown et al., Language Models are Few-Shot Learners (2020), appendix B.
        """
        if step < self.warm_up:
            return self.learning_rate * (step + 1) / self.warm_up
        done = min(1.0, (step - self.warm_up) / max(1, self.steps - 1 - self.warm_up))
        return self.learning_rate * (0.1 + 0.45 * (1 + cos(pi * done)))

    def check(self, setup: Setup) -> None:
        """Raise ValueError where a setup does not allow gradient clipping, or the pretraining that the recipe has."""
        check(CLIPPED, setup)
        if self.pretrained and setup.distributed:
            many = f"{setup.gpus} gpus and sharding {setup.sharding!r}"
            raise ValueError(f"Recipe.pretrained: {self.pretrained} with {many}; allowed: 0, or one GPU")

    def as_dict(self) -> dict:
        """As JSON."""
        return asdict(self)

    def __str__(self):
        return ", ".join(f"{name} {value}" for name, value in asdict(self).items())
