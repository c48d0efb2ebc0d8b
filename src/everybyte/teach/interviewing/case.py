"""What the numbers of the interview are for: a model, a GPU and a setup, and what each number asks of them."""

from dataclasses import dataclass
from functools import cache
from math import ceil, sqrt

from ...answers.fit import fit
from ...answers.headroom import ROUNDING, Headroom
from ...answers.plan import work
from ...ask.setup import DTYPE_BYTES, Lora, Setup
from ...catalog import Gpu, Model
from ...catalog.weights import layers, weights
from ...formulas import formula
from ...theory.budget import budget

#: Where nothing else is chosen: the GPUs of part 3, adapters' rank.
GPUS, RANK = 8, 16
EAGER, FLASH = {"attention": "eager"}, {"attention": "flash"}


class Derived:
    """A derivation in a model's place: its peaks and its parameters are known, its dimensions are not."""

    def __init__(self, derivation):
        self.derivation, self.name, self.parameters = derivation, derivation.name, derivation.parameters

    def __getattr__(self, field):
        raise ValueError(f"a derivation of {self.name} does not say its {field.replace('_', ' ')}")

    def replace(self, **_):
        """Nothing: a derivation has no dimension to change."""
        raise ValueError(f"a derivation of {self.name} knows whole steps, and not what each block saves")

    def unlike_reference(self, *_):
        """Why no formula is for it."""
        return f"a derivation of {self.name} knows whole steps, and not what each operation saves"

    def at(self, setup, rounding):
        """The bytes of a step; ValueError where it was derived under another setup."""
        asked, made = setup.as_dict(), self.derivation.setup.as_dict()
        for field in asked:
            if field not in ("batch", "sequence") and asked[field] != made[field]:
                raise ValueError(
                    f"{self.name} was derived with {field.replace('_', ' ')} {made[field]}, not {asked[field]}"
                )
        return self.derivation.at(setup.batch, setup.sequence, rounding)


@cache
def _budget(model, setup, rounding=1):
    return model.at(setup, rounding) if isinstance(model, Derived) else budget(model, setup, rounding)


@cache
def _fit(model, setup, gpu, vary):
    _budget(model, setup)
    derived = isinstance(model, Derived)
    found = fit(model.derivation if derived else model, setup, gpu, vary)
    if derived and found.fits and found.next is None:
        raise ValueError(found.limit["bound"])
    if found.value is None:
        raise ValueError(f"no {vary} fits {gpu.name}")
    return found.value


#: A field that is changed -> what of it must go back to the default.
_WITH: dict[str, dict[str, object]] = {
    "checkpointing": {"checkpoint_every": 2},
    "loss": {"loss_chunks": 8},
    "precision": {"master_gradients": "bf16"},
    "sharding": {"sharding_units": "block", "replicas": 1, "buckets": "copies"},
}
_ONE = {"gpus": 1, "sharding": "none"} | _WITH["sharding"]


@dataclass(frozen=True)
class Case:
    """What the numbers are for. Questions about one GPU take the setup on one GPU; those about many, its GPUs, or 8."""

    model: Model
    gpu: Gpu
    setup: Setup

    @property
    def one(self) -> Setup:
        """The setup on one GPU."""
        return self.setup.replace(**_ONE)

    @property
    def tokens(self) -> int:
        """Tokens of a step on one GPU."""
        return self.setup.batch * self.setup.sequence

    @property
    def gpus(self) -> int:
        """GPUs, of questions about many."""
        return self.setup.gpus if self.setup.gpus > 1 else GPUS

    def having(self, **changes) -> Setup:
        """The setup on one GPU with some fields changed."""
        usual = {}
        for field in changes:
            usual |= _WITH.get(field, {})
        return self.one.replace(**{**usual, **changes})

    def budget(self, rounding=1, **changes):
        """The budget of that; ValueError where the whole step is not derived for the model."""
        return _budget(self.model, self.having(**changes), rounding)

    def peak(self, **changes) -> int:
        """The peak of that, in bytes."""
        return self.budget(**changes).peak

    def fit(self, vary, setup=None) -> int:
        """The largest batch or sequence of a setup, or its fewest GPUs."""
        return _fit(self.model, setup or self.setup, self.gpu, vary)

    def in_step(self, **changes) -> int:
        """What the optimizer's step takes at its worst moment above what stands after it, in bytes."""
        phases = self.budget(**changes).phases
        return phases["step"] - phases["after_step"]

    def at(self, name, symbols=None, **changes):
        """A registered formula's value; `symbols` replace some."""
        return formula(name).at(self.model, self.having(**changes), **(symbols or {}))

    def saved(self, part="activations", **changes) -> int:
        """Bytes of a part after forward."""
        return self.budget(**changes).parts_at("after_forward")[part]

    def block(self, part="activations", **changes) -> int:
        """Bytes that each further block adds to it."""
        return self._more(lambda found: found.parts_at("after_forward")[part], **changes)

    def _more(self, measure, **changes):
        """What a third block adds to something that is read off a budget."""
        three, two = (measure(_budget(self.model.replace(layers=n), self.having(**changes))) for n in (3, 2))
        return three - two

    def scores(self) -> int:
        """Bytes that eager attention saves of a block's squares: what it saves more than flash, which saves numbers of its own."""
        return self.block(**EAGER) - self.block(**FLASH) + self.at("attention.flash", **FLASH)

    def flat(self, whole: bool = False) -> int:
        """Bytes of the flat buffer that FSDP gathers for a block, or for the whole model, in the data type of matrix products."""
        times = layers(self.model)
        numbers = 0
        for w in filter(lambda w: w.count, weights(self.model)):
            number = w.count * (times[w.group] if whole else times[w.group] > 1)
            numbers += int(number) * -(-w.shape[0] // self.gpus) * (w.numbers // w.shape[0])
        return numbers * self.gpus * DTYPE_BYTES[self.setup.dtypes.compute]

    def states(self, **changes) -> int:
        """Bytes of weights, gradients and all that the optimizer keeps."""
        return sum(self.at(name, **changes) for name in ("weights", "gradients", "optimizer"))

    def shared(self, name, sharding, **symbols):
        """A formula's value where the GPUs of the case divide so."""
        return self.at(name, symbols, sharding=sharding, gpus=self.gpus)

    def kept(self, segment: int) -> int:
        """Bytes of checkpointed inputs, and of one recomputed segment of so many blocks."""
        kept = self.block(checkpointing="full")
        return (ceil(self.model.layers / segment) - 1) * kept + segment * (self.block() + self.block("casts"))

    @property
    def segments(self) -> range:
        """How many blocks a checkpointed segment can have."""
        return range(1, self.model.layers + 1)

    @property
    def root(self) -> int:
        """The square root of the layers, rounded."""
        return round(sqrt(self.model.layers))

    def half_sequence(self) -> dict:
        """As many tokens in sequences half as long."""
        if self.one.sequence % 2:
            raise ValueError("the sequence is odd")
        return {"batch": 2 * self.one.batch, "sequence": self.one.sequence // 2}

    def moved_for_one_more(self) -> float:
        """Bytes a parameter that the memory moves for each further batch of an accumulation."""
        if self.one.batch < 2 or self.one.accumulation > 1:
            raise ValueError("one batch of several sequences is needed")
        if isinstance(self.model, Derived):
            raise ValueError(self.model.unlike_reference())
        parts = self.having(batch=1, accumulation=self.one.batch)
        more = work(self.model, parts).moved - work(self.model, self.one).moved
        return more / (self.one.batch - 1) / self.model.parameters

    def adapters(self) -> int:
        """Parameters of adapters on query, key, value and output."""
        m = self.model
        inner, keys = m.heads * m.head_width, m.kv_heads * m.head_width
        return m.layers * RANK * 2 * (m.width + inner + m.width + keys)

    def adapters_kept(self) -> float:
        """Bytes that one block keeps of forward with adapters in fp32 on every linear layer, over those of full fine-tuning in bf16."""
        usual = {"precision": "bf16", "checkpointing": "none", "loss": "plain"}
        with_them, without = (
            self._more(lambda found: found.phases["after_forward"] - found.phases["rest"], adapters=lora, **usual)
            for lora in (Lora(RANK), None)
        )
        return with_them / without

    def cache(self, model: Model | None = None, heads: int = 0) -> int:
        """Bytes that keys and values of one token take, in 16 bits."""
        m = model or self.model
        if m.latent_rank:
            raise ValueError("latent attention caches something else")
        return 2 * m.layers * (heads or m.kv_heads) * m.head_width * 2

    def inference(self) -> int:
        """Bytes that the case's tokens take to be generated, in 16 bits."""
        return self.at("weights", precision="bf16") + self.tokens * self.cache()

    def free(self) -> int:
        """Bytes between the peak and what is usable."""
        free = Headroom().usable(self.gpu) - _budget(self.model, self.setup, ROUNDING).peak
        if free < 0:
            raise ValueError(f"the step does not fit {self.gpu.name}")
        return free

    def margin(self, name) -> int:
        """Bytes of the headroom's term of that name."""
        return next(t.bytes for t in Headroom().terms(self.gpu) if t.name == name)

    def stage(self) -> int:
        """Bytes that one micro-batch leaves on one stage of a pipeline as long as the GPUs are many."""
        return ceil(self.model.layers / self.gpus) * self.block()

    def bubble(self, stages=1, divided=0) -> float:
        """The time that a pipeline's GPUs wait over the time that they work, with four micro-batches a GPU."""
        return formula("pipeline.bubble")(
            pipeline=self.gpus, pipeline_stages=stages, accumulation=4 * self.gpus, divided=divided
        )

    def boundary(self) -> int:
        """Bytes that a stage sends the next of a micro-batch, in 16 bits."""
        return formula("pipeline.boundary")(
            batch=self.one.batch, sequence=self.one.sequence, width=self.model.width, weight_bytes=2
        )
