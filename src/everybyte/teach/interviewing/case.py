"""The case of an interview, a model, a GPU and a setup, with the amounts that its numbers need."""

from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from typing import Any, Self

from ...answers.fit import fit
from ...answers.headroom import PLAYED, Headroom
from ...answers.serving import cache_bytes
from ...ask.choices import DTYPE_BYTES
from ...ask.setup import Setup
from ...catalog import Gpu, model, models
from ...catalog.weights import layers, weights
from ..asking import Run

#: Defaults: the GPUs of part 3, the adapters' rank.
GPUS, RANK = 8, 16
EAGER: dict[str, Any] = {"attention": "eager"}
FLASH: dict[str, Any] = {"attention": "flash"}


class Derived:
    """A derivation in place of a model: its peaks and parameters are known, its dimensions are not."""

    def __init__(self, derivation):
        self.derivation, self.name, self.parameters = derivation, derivation.name, derivation.parameters

    def __getattr__(self, field):
        raise ValueError(f"a derivation of {self.name} does not say its {field.replace('_', ' ')}")

    def replace(self, **_):
        """Raise ValueError: a derivation has no dimension to change."""
        raise ValueError(f"a derivation of {self.name} knows whole steps, and not what each block saves")

    def unlike_reference(self, *_):
        """Why no formula applies to it."""
        return f"a derivation of {self.name} knows whole steps, and not what each operation saves"

    def at(self, setup, rounding):
        """The bytes of a step. Raise ValueError where it was derived under another setup."""
        asked, made = setup.as_dict(), self.derivation.setup.as_dict()
        for field in asked:
            if field not in ("batch", "sequence") and asked[field] != made[field]:
                raise ValueError(
                    f"{self.name} was derived with {field.replace('_', ' ')} {made[field]}, not {asked[field]}"
                )
        return self.derivation.at(setup.batch, setup.sequence, rounding)


#: Changed field -> fields that then go back to their defaults.
_WITH: dict[str, dict[str, object]] = {
    "checkpointing": {"checkpoint_every": 2},
    "loss": {"loss_chunks": 8},
    "precision": {"master_gradients": "bf16"},
    "sharding": {"sharding_units": "block", "replicas": 1, "buckets": "copies"},
}
_ONE = {"gpus": 1, "sharding": "none"} | _WITH["sharding"]


@dataclass(frozen=True, kw_only=True)
class Case(Run):
    """A model, a GPU and a setup. Numbers of one GPU use the setup on one GPU; numbers of several use its GPUs, or 8."""

    gpu: Gpu

    @property
    def one(self) -> Setup:
        """The setup on one GPU."""
        return self.setup.replace(**_ONE)

    @property
    def twin(self) -> Self | None:
        """The case of the same model in the book's own code; None where that is its code, or there is none."""
        if isinstance(self.model, Derived) or self.model.code == "reference" or self.model.name not in models():
            return None
        return replace(self, model=model(self.model.name, "reference"))

    @property
    def tokens(self) -> int:
        """Tokens of a step on one GPU."""
        return self.setup.batch * self.setup.sequence

    @property
    def gpus(self) -> int:
        """The number of GPUs, for numbers of several."""
        return self.setup.gpus if self.setup.gpus > 1 else GPUS

    def having(self, **changes) -> Self:
        """The case on one GPU with some fields changed."""
        usual = {}
        for field in changes:
            usual |= _WITH.get(field, {})
        return replace(self, setup=self.one.replace(**usual | changes))

    def budget(self, setup, rounding=1, rank=0):
        """The budget, or the derivation's bytes."""
        return self.model.at(setup, rounding) if isinstance(self.model, Derived) else super().budget(setup, rounding)

    def scores(self) -> int:
        """Bytes that eager attention saves of a block's scores, beyond flash attention, which has saved tensors of its own."""
        eager, flash = (self.of_block(Run.part, "activations", **attention) for attention in (EAGER, FLASH))
        return eager - flash + self.at("attention.flash", **FLASH)

    def flat(self, whole: bool = False) -> int:
        """Bytes of the flat buffer that FSDP gathers for a block, or for the whole model, in the data type of matrix products."""
        times = layers(self.model)
        numbers = 0
        for w in filter(lambda w: w.count, weights(self.model)):
            number = w.count * (times[w.group] if whole else times[w.group] > 1)
            numbers += int(number) * -(-w.shape[0] // self.gpus) * (w.numbers // w.shape[0])
        return numbers * self.gpus * DTYPE_BYTES[self.setup.dtypes.compute]

    def states(self, **changes) -> int:
        """Bytes of weights, gradients and optimizer states."""
        return sum(self.at(name, **changes) for name in ("weights", "gradients", "optimizer"))

    def shared(self, name: str, sharding: str):
        """A formula's value for the case's GPUs with this sharding."""
        return self.at(name, sharding=sharding, gpus=self.gpus)

    def segment(self, blocks: int) -> int:
        """Bytes of checkpointed inputs, and of one recomputed segment, with segments of some number of blocks."""
        inputs = self.of_block(Run.part, "activations", checkpointing="full")
        block = sum(self.of_block(Run.part, part) for part in ("activations", "casts"))
        return (ceil(self.model.layers / blocks) - 1) * inputs + blocks * block

    def short(self, **changes) -> int:
        """Bytes of activations for the same tokens in sequences of half the length."""
        if self.one.sequence % 2:
            raise ValueError("the sequence is odd")
        return self.part("activations", batch=2 * self.one.batch, sequence=self.one.sequence // 2, **changes)

    def adapters(self) -> int:
        """Parameters of adapters on query, key, value and output."""
        m = self.model
        inner, keys = m.heads * m.head_width, m.kv_heads * m.head_width
        return m.layers * RANK * 2 * (m.width + inner + m.width + keys)

    def cache(self) -> int:
        """Bytes of the keys and values of one token, in 16 bits."""
        if self.model.latent_rank:
            raise ValueError("latent attention caches something else")
        return cache_bytes(self.model, 1)

    def inference(self) -> int:
        """Bytes to generate the case's tokens, in 16 bits."""
        return self.at("weights", precision="bf16") + self.tokens * self.cache()

    def room(self) -> int:
        """Bytes that the GPU leaves PyTorch's allocator."""
        return Headroom().room(self.gpu, self.setup)

    def free(self) -> int:
        """Bytes of these that the step does not reserve."""
        free = self.room() - reserved(self, self.setup)
        if free < 0:
            raise ValueError(f"the step reserves more than {self.gpu.name} has")
        return free


@cache
def reserved(case: Case, setup: Setup) -> int:
    """Bytes that PyTorch's default allocator reserves for a setup's step on the case's GPU, simulated; more than there are if it fails."""
    step = case.budget(setup)
    if getattr(step, "counted", step) is None:
        raise ValueError(f"{case.model.name} is known by its formula alone, and no allocator is simulated")
    found = step.on(case.gpu, memory=Headroom().room(case.gpu, setup), steps=PLAYED, whole=False)
    return found.reserved if found.failed is None else step.on(case.gpu, steps=PLAYED, whole=False).reserved


@cache
def fitted(case: Case, vary: str, setup: Setup) -> int:
    """The largest batch or sequence of a setup that runs on the case's GPU with PyTorch's default allocator, or its fewest GPUs."""
    case.budget(setup)
    derived = isinstance(case.model, Derived)
    found = fit(case.model.derivation if derived else case.model, setup, case.gpu, vary, configuration="")
    if derived and found.fits and found.next is None:
        raise ValueError(found.limit["bound"])
    if found.value is None:
        raise ValueError(f"no {vary} fits {case.gpu.name}")
    return found.value
