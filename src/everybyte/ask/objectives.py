"""What a model is aligned for: which loss a training step has, and what stands beside the policy in it."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final, get_args

from ..catalog import Model
from ..catalog.weights import summed
from ..common import checks
from ..rules import OBJECTIVE, check
from .setup import Setup

Method = Literal["dpo", "ppo", "grpo", "value"]
#: What a step's loss is.
METHODS = get_args(Method)
#: Where a reference's log-probabilities come from: made before, and given to the step; or made in it, before or after the policy's; or
#: there is none.
Reference = Literal["before", "first", "after", "none"]
REFERENCES = get_args(Reference)
#: What a method has where nobody says; of others `before`.
_USUAL: dict[str, Reference] = {"dpo": "after", "grpo": "none"}


@final
@dataclass(frozen=True)
class Scorer:
    """A model whose output head is one row, so that it gives each token one number: a value or a reward model.

    As `AutoModelForTokenClassification` with one label and no bias. Its other fields are its model's.
    """

    model: Model
    outputs: ClassVar[int] = 1
    tied: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The model's, and what it is."""
        return f"{self.model.name} with one score a token"

    @property
    def parameters(self) -> int:
        """How many it has."""
        return summed(self, lambda weight: weight.numbers)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.model, name)


@final
@dataclass(frozen=True)
class Objective:
    """A model with another loss than the next token's: `eb.budget`, `eb.dry_run` and `eb.compare` take it in a model's place.

    | method | one example of `Setup.batch` | loss |
    |---|---|---|
    | `dpo` | a pair: two sequences, chosen and rejected, both in one forward | minus the log-sigmoid of the margin |
    | `ppo` | a sequence, with log-probabilities and advantages of each token from before | the clipped surrogate |
    | `grpo` | a sequence, with log-probabilities of each token from before, and one advantage | the same; with a reference `before` less a divergence from it |
    | `value` | a sequence, with a value and a return of each token from before | PPO's other step: the value model's clipped square |

    The first three take a token's log-probability from all logits at once: `logits.log_softmax(-1).gather(-1,
    targets)`, in fp32 under autocast, else in the logits' data type. (trl 1.16 has these losses over a head that scores
    in tiles, which is not derived.)

    Sources: Rafailov et al. 2023, arXiv:2305.18290, equation 7; Schulman et al. 2017, arXiv:1707.06347, equation 7; Ouyang et al.
    2022, arXiv:2203.02155; Shao et al. 2024, arXiv:2402.03300, equations 3 and 4.

    Attributes:
        model: the policy; for `value` the model whose body the value model has, with one row for its head. method: one
            of `METHODS`.
        reference: for `dpo`, when the frozen reference runs: in the step, `after` the policy's forward, as is usual, or
            `first`; or `before` training, which gives its log-probabilities to the step. In the step it has weights in
            the data type of matrix products; with `Setup.adapters` it is the policy with its adapters switched off. For
            `grpo` there is `none`, as TRL has it (`beta` 0, trl 1.16, trainer/grpo_config.py), or it scores `before`; for
            the other methods what was scored `before` is given.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    model: Model
    method: Method
    reference: Reference = None  # type: ignore[assignment]  # the method's usual one

    def __post_init__(self):
        checks.kind("Objective", "model", self.model, Model)
        checks.one_of("Objective", "method", self.method, METHODS)
        if self.reference is None:
            object.__setattr__(self, "reference", _USUAL.get(self.method, "before"))
        checks.one_of("Objective", "reference", self.reference, REFERENCES)
        if self.reference == "none" and self.method != "grpo":
            raise ValueError(
                f"Objective.reference: 'none' with {self.method}; allowed: with grpo, whose divergence may be left out"
            )
        if self.method != "dpo" and self.in_step:
            raise ValueError(
                f"Objective.reference: {self.reference!r} with {self.method}, which learns from log-probabilities that were made when "
                f"the batch was; allowed: 'before'{', ' + repr('none') if self.method == 'grpo' else ''}, or method 'dpo'"
            )

    @property
    def in_step(self) -> bool:
        """Whether a reference runs in the step."""
        return self.reference in ("first", "after")

    @property
    def name(self) -> str:
        """The model's name, with the method."""
        return f"{self.model.name}, {self.method}"

    @property
    def trained(self) -> Model | Scorer:
        """What the step trains."""
        return Scorer(self.model) if self.method == "value" else self.model

    @property
    def parameters(self) -> int:
        """How many it has."""
        return self.trained.parameters

    @property
    def layers(self) -> int:
        """Its blocks."""
        return self.model.layers

    @property
    def family(self) -> str | None:
        """The book's reference of the policy."""
        return self.model.family

    @property
    def own(self) -> dict[str, Any]:
        """The model's own values, where a setup says none; without its dropout, which trainers with these losses switch off."""
        return self.model.own | {"dropout": 0.0}

    @property
    def sequences(self) -> int:
        """How many sequences one example is."""
        return 2 if self.method == "dpo" else 1

    def check(self, setup: Setup) -> None:
        """Raise ValueError where a setup's step with this loss is neither derived nor run, naming the field."""
        checks.kind("Objective", "setup", setup, Setup)
        check(OBJECTIVE, setup, self)
        if unlike := self.model.unlike_reference():
            raise ValueError(f"{unlike}; with objective {self.method!r} the book's reference is run")
        if self.model.experts and self.in_step:
            raise ValueError(
                f"Objective.reference: {self.reference!r} with {self.model.name}, a mixture of experts, is not derived; allowed: 'before'"
            )
