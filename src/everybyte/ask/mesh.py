"""Ways to divide one step among GPUs beside its batch: by layers, by tokens, by the columns of matrices, by experts."""

from dataclasses import dataclass, fields
from typing import Literal, final, get_args

from ..common import checks
from .schedules import Schedule

Rotation = Literal["all-gather", "all-to-all", "ulysses"]
#: A field -> the values that it may have.
CHOICES = {"schedule": get_args(Schedule), "rotation": get_args(Rotation)}
#: Dimensions of the mesh from outer to inner, where data parallelism is between the first and the second.
DIMENSIONS = ("pipeline", "context", "tensor")
#: A model's fields of which each GPU has a part, where matrices are divided.
DIVIDED = ("heads", "kv_heads", "ffn_width", "expert_width", "vocabulary", "learned_positions")
#: The most of each dimension.
MOST = 2**20


def divided(model) -> dict[str, int]:
    """The sizes of a model that tensor parallelism divides, by `DIVIDED`; where there are experts, they are its MLPs."""
    return {name: getattr(model, name) for name in DIVIDED if not (model.experts and name == "ffn_width")}


def worst_routing(model, parts: int) -> float:
    """The most rows that can come to one of `parts` GPUs' experts, over those that it sends.

    A token's experts are different ones, and a GPU has experts / parts of them: the parts, or where a token visits more experts than a
    GPU has, experts / experts_per_token.
    """
    return min(parts, model.experts / model.experts_per_token)


class Part:
    """A model's fields as those of one GPU of `parts` that divide its matrices."""

    def __init__(self, model, parts: int):
        self._model, self._parts = model, parts

    def __getattr__(self, name):
        found = getattr(self._model, name)
        return found // self._parts if name in DIVIDED else found


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class Mesh:
    """Into how many parts each dimension of a step is cut; what is left of the GPUs trains on batches of its own.

    The mesh's order, from GPUs that are far apart to neighbors: pipeline, data, context, tensor, as torchtitan's.

    Attributes:
        pipeline: stages of consecutive blocks, each on GPUs of its own.
        context: parts of each sequence. Keys and values go around a ring, or attention swaps heads for tokens.
        tensor: parts of each matrix, by columns or rows.
        expert: parts of the experts of each mixture; it divides the GPUs of data and context. With `tensor` each expert's matrices are
            cut too.
        sequence_parallel: with `tensor` only: whether what stands between the divided matrices is divided by tokens.
        loss_parallel: with `tensor` only: whether logits stay divided by the vocabulary.
        schedule: with `pipeline` only: the order of the micro-batches' forwards and backwards.
        stages: with `pipeline` only: how many each GPU has.
        rotation: with `context` only: how attention sees other GPUs' tokens. Keys and values come all at once (`all-gather`) or around the
            ring (`all-to-all`), as PyTorch's; or each GPU has all tokens of some heads (`ulysses`), as DeepSpeed's.
        routing: with `expert` only: rows that come to a GPU's experts, over those that it sends: 1 where routers are balanced,
            a capacity factor, or at most `worst_routing`, where every token of every GPU visits all it can of this one's experts.
            `Router.routing` has each GPU's.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    pipeline: int = 1
    context: int = 1
    tensor: int = 1
    expert: int = 1
    sequence_parallel: bool = True
    loss_parallel: bool = True
    schedule: Schedule = "1f1b"
    stages: int = 1
    rotation: Rotation = "all-gather"
    routing: float = 1.0

    def __post_init__(self):
        for name in (*DIMENSIONS, "expert", "stages"):
            checks.whole("Mesh", name, getattr(self, name), 1, MOST)
        for name in ("sequence_parallel", "loss_parallel"):
            checks.flag("Mesh", name, getattr(self, name))
        for name, allowed in CHOICES.items():
            checks.one_of("Mesh", name, getattr(self, name), allowed)
        number = isinstance(self.routing, int | float) and not isinstance(self.routing, bool)
        if not number or not 0 < self.routing <= self.expert:
            raise ValueError(
                f"Mesh.routing: {checks.shown(self.routing)} is no number above 0 and up to {self.expert}, the GPUs that experts are divided "
                "among; allowed: 1.0 where routers are balanced"
            )
        object.__setattr__(self, "routing", float(self.routing))
        for field in fields(self):
            dimension, value = OF.get(field.name), getattr(self, field.name)
            if dimension and value != field.default and getattr(self, dimension) == 1:
                raise ValueError(
                    f"Mesh.{field.name}: {value!r} needs {dimension} from 2 on, not 1; allowed: {field.default!r}"
                )

    @property
    def size(self) -> int:
        """GPUs that train on one batch together."""
        return self.pipeline * self.context * self.tensor

    @property
    def alone(self) -> bool:
        """Whether it divides nothing."""
        return self.size == self.expert == 1

    @classmethod
    def read(cls, text: str) -> "Mesh":
        """From a command's text: `pipeline=4 tensor=8 schedule=1f1b`, each left out at its default."""
        said = checks.words("Mesh", text, [f.name for f in fields(cls)])
        truth = {"true": True, "false": False}
        flags = {name: truth.get(str(said[name]).lower(), said[name]) for name in said if name.endswith("_parallel")}
        return cls(**said | flags)

    def _said(self):
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}

    def __str__(self):
        return " ".join(f"{name}={value}" for name, value in self._said().items()) or "none"

    def __repr__(self):
        return f"Mesh({', '.join(f'{name}={value!r}' for name, value in self._said().items())})"

    @property
    def divided(self) -> list[str]:
        """The dimensions that it divides."""
        return [name for name in (*DIMENSIONS, "expert") if getattr(self, name) > 1]

    def rank(self, number: int, data: int) -> dict[str, int]:
        """Dimension -> place in it of one GPU of `data` times `size`."""
        places = {}
        for name, size in (("tensor", self.tensor), ("context", self.context), ("data", data)):
            number, places[name] = divmod(number, size)
        return {"pipeline": number, **dict(reversed(places.items()))}


#: A field -> the dimension without which it says nothing.
OF = {
    "sequence_parallel": "tensor", "loss_parallel": "tensor", "schedule": "pipeline", "stages": "pipeline",
    "rotation": "context", "routing": "expert",
}  # fmt: skip
