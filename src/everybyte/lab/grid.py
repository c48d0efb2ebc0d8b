"""What is worth measuring, the most telling first: generated from the switches that `Setup` has."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product, zip_longest
from typing import Any

from ..ask.choices import ATTENTIONS, CHOICES, COMMON_OPTIMIZERS, LIBRARIES, OPTIMIZER_IMPLS, PRECISIONS
from ..ask.setup import Lora, Setup
from ..catalog import Model, model
from ..common import checks
from .recipe import Recipe

SIZES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
#: Steps that are timed where time is the question, after so many.
TIMED, WARM_UP = 30, 10
#: A small GPT that learns prose byte by byte; how it does so, and how GPT-2 does; seeds of what is claimed to differ.
PROSE = Model(name="prose", layers=4, width=384, heads=6, vocabulary=256, positions=256)
LONG, SHORT = Recipe(), Recipe(steps=200, warm_up=20, learning_rate=6e-4, windows=32)
SEEDS = (0, 1, 2)
#: Ways to fine-tune: what trains, then by which optimizer; and of the small GPT how, at a learning rate of each one's own.
MIXED = Setup(precision="bf16-mixed", optimizer_impl="fused")
LORA = MIXED.replace(adapters=Lora(16, base="bf16"))
WAYS = {"full": MIXED, "LoRA": LORA, "QLoRA": LORA.replace(quantization="nf4")}
SMALLER = {name: MIXED.replace(optimizer=name, optimizer_impl=None) for name in ("lion", "muon", "adamw8bit")}
TUNED = Recipe(steps=200, warm_up=20, pretrained=200)
RATES = {"full": 1e-3, "LoRA": 3e-3, "QLoRA": 3e-3, "lion": 1e-4, "muon": 1e-3, "adamw8bit": 1e-3}
#: Peaks that come before all times and curves, and how many of them are of FSDP.
FIRST, SHARDED = 60, 10
#: A limit that GPT-2's step does not keep to, and does with everything checkpointed: an out-of-memory on purpose, and its cure.
LIMIT = 8 * 1024**3
#: The most telling values of a switch first.
FLASH_FIRST, USUAL = ATTENTIONS[::-1], ("bf16-mixed", "fp32")
TELLING = ("bf16-mixed", "fp32", "fp16-mixed", *(p for p in PRECISIONS if "mixed" not in p and p != "fp32"))


@dataclass(frozen=True)
class Configuration:
    """A step to measure, and how.

    Attributes:
        group: of the grid, that it stands for first. steps: how many are timed; 0 where its memory is all that is asked for.
        tf32, expandable, limit, recipe: as `measure`'s.
    """

    group: str
    model: Model
    setup: Setup
    steps: int = 0
    tf32: bool = False
    expandable: bool = False
    limit: int | None = None
    recipe: Recipe | None = None

    @property
    def asked(self) -> dict:
        """What of a measurement is no part of model and setup: a record keeps it with them."""
        said = {name: getattr(self, name) for name in ("steps", "tf32", "expandable", "limit")}
        return said | {"recipe": self.recipe and str(self.recipe)}


#: A model and a setup; a third place has further fields of the configuration.
Steps = Iterator[tuple[Model, Setup] | tuple[Model, Setup, dict[str, Any]]]


def _steps(**axes) -> Iterator[tuple[Model, Setup]]:
    """A step for every combination, those near the axes' starts first: a few of everything before all of anything.

    An axis is a field of `Setup`, or `model` (by default GPT-2), or has another name and dicts of several fields.
    """

    def far(choice):
        ranks = [rank for rank, _ in choice]
        return sum(ranks), max(ranks)

    for choice in sorted(product(*(list(enumerate(values)) for values in axes.values())), key=far):
        said: dict[str, Any] = {"model": "gpt2"}
        for axis, (_, value) in zip(axes, choice, strict=True):
            said |= value if isinstance(value, dict) else {axis: value}
        shape = said.pop("model")
        yield shape if isinstance(shape, Model) else model(shape), Setup(**said)


def _sizes() -> Steps:
    return _steps(model=SIZES, precision=TELLING, attention=FLASH_FIRST)


def _small() -> Steps:
    """Steps that smaller GPUs hold too, and whose peak is the optimizer's."""
    for size, setup in _steps(batch=[1], model=(SIZES[0], SIZES[1], SIZES[3]), precision=TELLING, sequence=(128, 512)):
        if setup.sequence == 128 or setup.precision == "bf16-mixed":
            yield size, setup


def _root(size: Model) -> dict:
    """Checkpointing in segments of about as many blocks as there are segments."""
    return {"checkpointing": "every-k", "checkpoint_every": round(size.layers**0.5)}


def _checkpointing() -> Steps:
    """Every size in every precision, with each way to checkpoint; then segments of other lengths, and operations.

    The larger two take two sequences in fp32, also without checkpointing: eight would take most of the grid's time.
    """
    ways = ("full", "every-k", "selective", "none")
    for size, setup in _steps(checkpointing=ways, model=SIZES, attention=FLASH_FIRST, precision=TELLING):
        if size.name in SIZES[2:] and setup.precision == "fp32":
            setup = setup.replace(batch=2)
        yield size, setup.replace(**_root(size)) if setup.checkpointing == "every-k" else setup
    yield from _steps(checkpointing=["every-k"], checkpoint_every=(2, 4, 6), attention=FLASH_FIRST, precision=USUAL)
    yield from _steps(checkpointing=["operations"], attention=FLASH_FIRST, precision=USUAL)


def _accumulation() -> Steps:
    """The tokens of one batch in four, and four times as many."""
    ways = ("none", "full")
    for size, setup in _steps(
        accumulation=[4], batch=(2, 8), precision=TELLING, checkpointing=ways, attention=FLASH_FIRST
    ):
        small = setup.batch == 2 and (setup.attention == "flash" or setup.precision == "fp32")
        if small or setup.precision == "bf16-mixed":
            yield size, setup


def _curves() -> Steps:
    """Training runs on prose: whether each switch changes what is learned, and how fast. The same windows for every switch."""
    mixed = Setup(batch=32, sequence=256, precision="bf16-mixed")
    differ = [mixed, mixed.replace(precision="fp32"), mixed.replace(precision="bf16")]
    alike = [mixed.replace(attention="eager"), mixed.replace(checkpointing="full"), mixed.replace(sharding="zero3")]
    alike += [mixed.replace(precision="fp16-mixed"), mixed.replace(precision="bf16-master")]
    for setup in differ + alike:
        yield PROSE, setup, {"recipe": LONG}
    for checkpointing in ("none", "full", "operations"):
        yield model("gpt2"), Setup(precision="bf16-mixed", checkpointing=checkpointing), {"recipe": SHORT}
    yield model("gpt2"), Setup(), {"recipe": SHORT, "tf32": True}
    for seed, setup in product(SEEDS[1:], differ):
        yield PROSE, setup, {"recipe": replace(LONG, seed=seed)}
    for name, setup in (WAYS | SMALLER).items():
        yield PROSE, tuned(setup), {"recipe": tuned_by(name)}


def _dropout() -> Steps:
    return _steps(dropout=[0.1], precision=TELLING, attention=FLASH_FIRST)


def _optimizers() -> Steps:
    axes = {"optimizer_impl": OPTIMIZER_IMPLS, "optimizer": COMMON_OPTIMIZERS[::-1]}
    shapes = [{"batch": 1, "sequence": 128}, {"batch": 8, "sequence": 1024}]
    for size, setup in _steps(**axes, precision=("bf16-mixed", "bf16-master", "bf16"), shape=shapes):
        if setup.precision == "bf16-mixed" or (setup.batch == 1 and setup.optimizer in ("adamw", "sgd")):
            yield size, setup


def _batches() -> Steps:
    for size, setup in _steps(batch=(1, 16, 2, 32, 4, 64), precision=USUAL, attention=FLASH_FIRST):
        if setup.batch <= 16 or (setup.precision != "fp32" and setup.attention == "flash"):
            yield size, setup


def gpt2_for(setup: Setup) -> Model:
    """GPT-2 small, with as many positions as the setup's sequence needs."""
    if setup.sequence <= model("gpt2").positions:
        return model("gpt2")
    return model("gpt2").replace(name=f"gpt2-{setup.sequence}", positions=setup.sequence)


def _long(*sequences) -> list[dict]:
    """The same tokens a step, in sequences of these lengths."""
    return [{"batch": 8192 // sequence, "sequence": sequence} for sequence in sequences]


def _sequences() -> Steps:
    """Ever longer sequences: flash attention keeps as much, the scores grow."""
    for _, setup in _steps(shape=_long(2048, 256, 8192, 512, 4096), attention=ATTENTIONS, precision=USUAL):
        yield gpt2_for(setup), setup


def _odd() -> Steps:
    """Sizes that no power of two divides, heads that a kernel pads, tables of other widths."""
    odd = Model(name="odd", layers=3, width=300, heads=5, vocabulary=5003, positions=1024)
    padded = model("gpt2").replace(name="gpt2-padded", vocabulary=50304)
    untied = model("gpt2").replace(name="gpt2-untied", tied=False)
    models = (model("gpt2"), odd, model("gpt2-nobias"), padded, untied)
    shapes = [{"batch": b, "sequence": s} for b, s in ((3, 1000), (7, 333), (1, 1), (5, 1023))]
    for size, setup in _steps(model=models, shape=shapes, precision=USUAL, attention=FLASH_FIRST):
        if size.name not in ("gpt2", "odd") and setup.batch != 3:
            continue  # what sets these apart does not depend on the shape
        if size.name == "odd" and setup.precision == "fp32" and setup.batch in (7, 5):
            continue  # heads of 60 are padded in 16 bits alone
        yield size, setup


def _masters() -> Steps:
    yield from _steps(
        precision=["bf16-master"], master_gradients=CHOICES["master_gradients"][::-1], model=SIZES[:2], optimizer_impl=OPTIMIZER_IMPLS[::2]
    )  # fmt: skip
    yield from _steps(precision=LIBRARIES)


def _losses() -> Steps:
    yield from _steps(loss=["linear-cross-entropy"], precision=("bf16-mixed", "bf16", "fp32"))
    for size, setup in _steps(loss=["chunked"], loss_chunks=(8, 64), model=SIZES[::3], precision=TELLING):
        if size.name == "gpt2" or (setup.loss_chunks == 8 and setup.precision not in ("fp32", "fp16-mixed")):
            yield size, setup


def _sharding() -> Steps:
    """Rank 0 of ever more GPUs, alone on one; then FSDP's other switches, and sizes that many do not divide."""
    kinds = [{"sharding": s} for s in CHOICES["sharding"][::-1]] + [{"buckets": "views"}]
    for size, setup in _steps(kind=kinds, gpus=(8, 1024, 2, 64, 7), precision=USUAL):
        if setup.precision != "fp32" or setup.gpus == 8:
            yield size, setup
    usual = Setup(gpus=64, sharding="zero3", precision="bf16-mixed")
    for name in SIZES[1:]:
        yield from ((model(name), usual.replace(**c)) for c in ({}, {"sharding": "zero2"}, {"checkpointing": "full"}))
    two = {"sharding": "zero2", "accumulation": 2}
    for changes in (
        {"sharding_units": "model"}, {"replicas": 8}, {"checkpointing": "full"}, {"accumulation": 2}, {"gpus": 1}, two,
        {"precision": "bf16-master"}, {"precision": "bf16"}, {"sharding": "zero1", "precision": "bf16-master"},
        {"optimizer": "momentum"}, *({"offload": "cpu"} | others for others in ({}, {"gpus": 1}, two)),
    ):  # fmt: skip
        yield model("gpt2"), usual.replace(**changes)


def _families() -> Steps:
    """A Llama of 1B, with grouped heads: what each switch does to it. And an optimizer of matrices."""
    llama = {"model": ["llama-3.2-1b"]}
    yield from _steps(**llama, batch=(4, 1), precision=("bf16-mixed", "bf16"), attention=FLASH_FIRST)
    switches = [{"checkpointing": "full"}, {"loss": "chunked"}, {"sharding": "zero3", "gpus": 64}]
    yield from _steps(**llama, batch=[4], precision=["bf16-mixed"], switch=switches)
    shapes = [{"batch": 8, "sequence": 1024}, {"batch": 1, "sequence": 128}]
    yield from _steps(optimizer=["muon"], shape=shapes, precision=USUAL)


def tuned(setup: Setup) -> Setup:
    """A way to fine-tune, as the small GPT is."""
    return setup.replace(batch=32, sequence=256)


def tuned_by(name: str) -> Recipe:
    """How the small GPT is fine-tuned in that one of `WAYS` or `SMALLER`."""
    return replace(TUNED, learning_rate=RATES[name])


def _finetuning() -> Steps:
    """What trains, and by which optimizer; also checkpointed; and what trains in a Llama of 1B."""
    for setup in [*WAYS.values(), *SMALLER.values(), MIXED.replace(optimizer="paged-adamw8bit", optimizer_impl=None)]:
        yield model("gpt2"), setup
    for setup in WAYS.values():
        yield model("gpt2"), setup.replace(checkpointing="full")
        yield model("llama-3.2-1b"), setup.replace(checkpointing="full", batch=4)


def _times() -> Steps:
    """What each switch costs in time, on GPT-2 as on larger ones; fp32 also as most run it, by TF32."""
    gpt2, medium, large = map(model, SIZES[:3])
    yield from _steps(precision=TELLING)
    yield gpt2, Setup(), {"tf32": True}
    mixed = Setup(precision="bf16-mixed")
    switches = [{"attention": "eager"}, {"checkpointing": "full"}, _root(gpt2), {"checkpointing": "selective"}]
    switches += [{"optimizer_impl": "fused"}, {"loss": "chunked"}, {"batch": 16}, {"batch": 32}]
    yield from ((gpt2, mixed.replace(**switch)) for switch in switches)
    for shape, attention in product(_long(4096, 512, 2048, 8192), FLASH_FIRST):
        setup = mixed.replace(**shape, attention=attention)
        yield gpt2_for(setup), setup
    yield from ((larger, mixed) for larger in (medium, large))
    yield from ((gpt2, way) for way in [*list(WAYS.values())[1:], *SMALLER.values()])
    yield from ((model("llama-3.2-1b"), way.replace(batch=4, checkpointing="full")) for way in WAYS.values())


def _allocator() -> Steps:
    """The allocator's own switch beside its default; and a limit that is met, run into, and kept again."""
    for size, setup in _steps(model=SIZES[::3], precision=("bf16-mixed", "bf16-master")):
        yield size, setup, {"expandable": True}
    for size, setup in _steps(precision=["bf16-mixed"], checkpointing=("none", "full")):
        yield size, setup, {"limit": LIMIT}


#: Name -> what gives the group's steps.
GROUPS: dict[str, Callable[[], Steps]] = {
    make.__name__.removeprefix("_"): make
    for make in (
        _sizes, _checkpointing, _sequences, _curves, _accumulation, _optimizers, _sharding, _losses, _batches, _dropout,
        _masters, _small, _odd, _families, _finetuning, _times, _allocator,
    )
}  # fmt: skip
#: Groups that are not of peaks alone, in their order, and the steps that are timed.
STEPS = {"times": TIMED, "curves": 0, "allocator": 0}


def grid(only: Iterable[str] = ()) -> list[Configuration]:
    """What to measure, in parts that are each worth having alone: 60 peaks, then times, curves, the allocator's switches, the rest.

    Of the peaks come one of each group, then the next of each; every sixth of the first is one of FSDP. No step stands twice
    among them.

    Args:
        only: names of `GROUPS`; by default all.

    Raises:
        ValueError: for a group that there is not.
    """
    only = list(only)
    for name in only:
        checks.one_of("grid", "only", name, GROUPS)
    made = {name: list(_made(name)) for name in GROUPS if name in only or not only}
    by_step = {}
    for row in zip_longest(*(made[name] for name in made if name not in STEPS)):
        for configuration in filter(None, row):
            by_step.setdefault((configuration.model, configuration.setup), configuration)
    peaks = list(by_step.values())
    sharded = [c for c in peaks if c.setup.fsdp][:SHARDED]
    others = [c for c in peaks if c not in sharded and c.group != "sharding"][: FIRST - len(sharded)]
    each = max(1, len(others) // max(1, len(sharded)))
    first = []
    for i in range(0, len(others), each):
        first += [*others[i : i + each], *sharded[i // each : i // each + 1]]
    rest = [c for c in peaks if c not in first]
    return first + [c for name in STEPS for c in made.get(name, ())] + rest


def _made(group):
    for shape, setup, *how in GROUPS[group]():
        switches = how[0] if how else {}
        steps = switches["recipe"].steps if "recipe" in switches else STEPS.get(group, 0)
        yield Configuration(group, shape, setup, steps, **switches)


def in_fp16(setup: Setup) -> Setup:
    """The setup as a GPU without bf16 runs it: fp16-mixed in place of bf16-mixed over fp32 weights; any other as it is."""
    mixed = setup.precision == "bf16-mixed" and setup.sharding == "none" and setup.base_dtype == "fp32"
    return setup.replace(precision="fp16-mixed") if mixed else setup


def for_gpu(configurations: Iterable[Configuration], bf16: bool) -> list[Configuration]:
    """What of it to measure on a GPU: where it has no units for bf16, fp16-mixed in place of bf16-mixed, once."""
    found = {}
    for configuration in configurations:
        if not bf16:
            configuration = replace(configuration, setup=in_fp16(configuration.setup))
        found.setdefault((configuration.model, configuration.setup, *configuration.asked.values()), configuration)
    return list(found.values())
