"""What is worth measuring, the most telling first: generated from the switches that `Setup` has."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product, zip_longest
from typing import Any

from ..ask.choices import (
    ATTENTIONS,
    COMMON_OPTIMIZERS,
    LIBRARIES,
    MASTER_GRADIENTS,
    OPTIMIZER_IMPLS,
    PRECISIONS,
    SHARDINGS,
)
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
        return {
            "steps": self.steps, "tf32": self.tf32, "expandable": self.expandable, "limit": self.limit,
            "recipe": self.recipe and str(self.recipe),
        }  # fmt: skip


def _crossed(**axes) -> list[dict]:
    """Every combination, those near the axes' starts first: a few of everything before all of anything."""
    crossed = product(*(list(enumerate(values)) for values in axes.values()))
    ranked = sorted(crossed, key=lambda choice: (sum(rank for rank, _ in choice), max(rank for rank, _ in choice)))
    return [dict(zip(axes, (value for _, value in choice), strict=True)) for choice in ranked]


_TELLING = sorted(
    PRECISIONS, key=lambda p: ("bf16-mixed", "fp32", "fp16-mixed").index(p) if "mixed" in p or p == "fp32" else 9
)


def _sizes() -> Iterator[tuple[Model, dict]]:
    for choice in _crossed(name=SIZES, precision=_TELLING, attention=ATTENTIONS[::-1]):
        yield model(choice.pop("name")), {"batch": 8, "sequence": 1024} | choice


def _small() -> Iterator[tuple[Model, dict]]:
    """Steps that smaller GPUs hold too, and whose peak is the optimizer's."""
    for choice in _crossed(name=(SIZES[0], SIZES[1], SIZES[3]), precision=_TELLING, sequence=(128, 512)):
        if choice["sequence"] == 128 or choice["precision"] == "bf16-mixed":
            yield model(choice.pop("name")), {"batch": 1} | choice


def _root(name: str) -> dict:
    """Segments of about as many blocks as there are segments."""
    return {"checkpointing": "every-k", "checkpoint_every": round(model(name).layers ** 0.5)}


def _checkpointing() -> Iterator[tuple[Model, dict]]:
    """Every size in every precision, with each way to forget; then segments of other lengths, and operations.

    The larger two take two sequences in fp32, also without checkpointing: eight would take most of the grid's time.
    """
    for choice in _crossed(
        forget=("full", "root", "selective", "none"), name=SIZES, attention=ATTENTIONS[::-1], precision=_TELLING
    ):
        name, forget = choice.pop("name"), choice.pop("forget")
        batch = 2 if name in SIZES[2:] and choice["precision"] == "fp32" else 8
        yield model(name), {"batch": batch} | (_root(name) if forget == "root" else {"checkpointing": forget}) | choice
    for choice in _crossed(checkpoint_every=(2, 4, 6), attention=ATTENTIONS[::-1], precision=("bf16-mixed", "fp32")):
        yield model("gpt2"), {"checkpointing": "every-k"} | choice
    for choice in _crossed(attention=ATTENTIONS[::-1], precision=("bf16-mixed", "fp32")):
        yield model("gpt2"), {"checkpointing": "operations"} | choice


def _accumulation() -> Iterator[tuple[Model, dict]]:
    """The tokens of one batch in four, and four times as many."""
    for choice in _crossed(
        batch=(2, 8), precision=_TELLING, checkpointing=("none", "full"), attention=ATTENTIONS[::-1]
    ):
        if choice["precision"] == "bf16-mixed" or (
            choice["batch"] == 2 and (choice["attention"] == "flash" or choice["precision"] == "fp32")
        ):
            yield model("gpt2"), {"accumulation": 4} | choice


def _curves() -> Iterator[tuple[Model, dict, dict]]:
    """Training runs on prose: whether each switch changes what is learned, and how fast. The same windows for every switch."""
    mixed = {"batch": 32, "sequence": 256, "precision": "bf16-mixed"}
    alike: list[dict[str, Any]] = [{}, {"attention": "eager"}, {"checkpointing": "full"}, {"sharding": "zero3"}]
    alike += [{"precision": "fp16-mixed"}, {"precision": "bf16-master"}]
    differ: list[dict[str, Any]] = [{"precision": "fp32"}, {"precision": "bf16"}]
    for switch in (alike[0], *differ, *alike[1:]):
        yield PROSE, mixed | switch, {"recipe": LONG}
    for switch in ({}, {"checkpointing": "full"}, {"checkpointing": "operations"}):
        yield model("gpt2"), {"precision": "bf16-mixed"} | switch, {"recipe": SHORT}
    yield model("gpt2"), {"precision": "fp32"}, {"recipe": SHORT, "tf32": True}
    for seed, switch in product(SEEDS[1:], (alike[0], *differ)):
        yield PROSE, mixed | switch, {"recipe": replace(LONG, seed=seed)}
    for name, setup in (WAYS | SMALLER).items():
        yield PROSE, _said(tuned(setup)), {"recipe": tuned_by(name)}


def _dropout() -> Iterator[tuple[Model, dict]]:
    for choice in _crossed(dropout=(0.1,), precision=_TELLING, attention=ATTENTIONS[::-1]):
        yield model("gpt2"), choice


def _optimizers() -> Iterator[tuple[Model, dict]]:
    rows = _crossed(
        optimizer_impl=OPTIMIZER_IMPLS, optimizer=COMMON_OPTIMIZERS[::-1], precision=("bf16-mixed", "bf16-master", "bf16"),
        sequence=(128, 1024),
    )  # fmt: skip
    for choice in rows:
        usual = choice["precision"] == "bf16-mixed"
        if usual or (choice["sequence"] == 128 and choice["optimizer"] in ("adamw", "sgd")):
            yield model("gpt2"), {"batch": 1 if choice["sequence"] == 128 else 8} | choice


def _batches() -> Iterator[tuple[Model, dict]]:
    for choice in _crossed(batch=(1, 16, 2, 32, 4, 64), precision=("bf16-mixed", "fp32"), attention=ATTENTIONS[::-1]):
        if choice["batch"] <= 16 or (choice["precision"] != "fp32" and choice["attention"] == "flash"):
            yield model("gpt2"), choice


def gpt2_for(setup: Setup) -> Model:
    """GPT-2 small, with as many positions as the setup's sequence needs."""
    if setup.sequence <= model("gpt2").positions:
        return model("gpt2")
    return model("gpt2").replace(name=f"gpt2-{setup.sequence}", positions=setup.sequence)


def _sequences() -> Iterator[tuple[Model, dict]]:
    """The same tokens a step in ever longer sequences: flash attention keeps as much, the scores grow."""
    for choice in _crossed(
        sequence=(2048, 256, 8192, 512, 4096), attention=ATTENTIONS, precision=("bf16-mixed", "fp32")
    ):
        setup = {"batch": 8192 // choice["sequence"]} | choice
        yield gpt2_for(Setup(**setup)), setup


def _odd() -> Iterator[tuple[Model, dict]]:
    """Sizes that no power of two divides, heads that a kernel pads, tables of other widths."""
    odd = Model(name="odd", layers=3, width=300, heads=5, vocabulary=5003, positions=1024)
    padded = model("gpt2").replace(name="gpt2-padded", vocabulary=50304)
    untied = model("gpt2").replace(name="gpt2-untied", tied=False)
    shapes = ((3, 1000), (7, 333), (1, 1), (5, 1023))
    models = (model("gpt2"), odd, model("gpt2-nobias"), padded, untied)
    for choice in _crossed(model=models, shape=shapes, precision=("bf16-mixed", "fp32"), attention=ATTENTIONS[::-1]):
        batch, sequence = choice.pop("shape")
        if choice["model"].name not in ("gpt2", "odd") and batch != 3:
            continue  # what sets these apart does not depend on the shape
        if choice["model"].name == "odd" and choice["precision"] == "fp32" and batch in (7, 5):
            continue  # heads of 60 are padded in 16 bits alone
        yield choice.pop("model"), {"batch": batch, "sequence": sequence} | choice


def _masters() -> Iterator[tuple[Model, dict]]:
    for choice in _crossed(
        master_gradients=MASTER_GRADIENTS[::-1], name=SIZES[:2], optimizer_impl=OPTIMIZER_IMPLS[::2]
    ):
        yield model(choice.pop("name")), {"precision": "bf16-master"} | choice
    for precision in LIBRARIES:
        yield model("gpt2"), {"precision": precision}


def _losses() -> Iterator[tuple[Model, dict]]:
    for precision in ("bf16-mixed", "bf16", "fp32"):
        yield model("gpt2"), {"loss": "linear-cross-entropy", "precision": precision}
    rows = _crossed(loss=["chunked"], loss_chunks=(8, 64), name=SIZES[::3], precision=_TELLING)
    for choice in rows:
        if choice["name"] == "gpt2" or (
            choice["loss_chunks"] == 8 and choice["precision"] not in ("fp32", "fp16-mixed")
        ):
            yield model(choice.pop("name")), choice


def _sharding() -> Iterator[tuple[Model, dict]]:
    """Rank 0 of ever more GPUs, alone on one; then FSDP's other switches, and sizes that many do not divide."""
    kinds = [{"sharding": s} for s in SHARDINGS[::-1]] + [{"buckets": "views"}]
    for choice in _crossed(kind=kinds, gpus=(8, 1024, 2, 64, 7), precision=("bf16-mixed", "fp32")):
        if choice["precision"] == "fp32" and choice["gpus"] != 8:
            continue
        yield model("gpt2"), choice.pop("kind") | choice
    for size, changes in _crossed_sharding():
        yield model(size), {"gpus": 64, "sharding": "zero3", "precision": "bf16-mixed"} | changes


def _crossed_sharding():
    for name in SIZES[1:]:
        yield from ((name, changes) for changes in ({}, {"sharding": "zero2"}, {"checkpointing": "full"}))
    for changes in (
        {"sharding_units": "model"}, {"replicas": 8}, {"checkpointing": "full"}, {"accumulation": 2}, {"gpus": 1},
        {"sharding": "zero2", "accumulation": 2}, {"precision": "bf16-master"}, {"precision": "bf16"},
        {"sharding": "zero1", "precision": "bf16-master"}, {"optimizer": "momentum"},
        *({"offload": "cpu"} | others for others in ({}, {"gpus": 1}, {"sharding": "zero2", "accumulation": 2})),
    ):  # fmt: skip
        yield "gpt2", changes


def _families() -> Iterator[tuple[Model, dict]]:
    """A Llama of 1B, with grouped heads: what each switch does to it. And an optimizer of matrices."""
    llama, mixed = model("llama-3.2-1b"), {"sequence": 1024, "precision": "bf16-mixed"}
    for choice in _crossed(batch=(4, 1), precision=("bf16-mixed", "bf16"), attention=ATTENTIONS[::-1]):
        yield llama, mixed | choice
    for switch in ({"checkpointing": "full"}, {"loss": "chunked"}, {"sharding": "zero3", "gpus": 64}):
        yield llama, mixed | {"batch": 4} | switch
    for choice in _crossed(sequence=(1024, 128), precision=("bf16-mixed", "fp32")):
        yield model("gpt2"), {"batch": 8 if choice["sequence"] == 1024 else 1, "optimizer": "muon"} | choice


def tuned(setup: Setup) -> Setup:
    """A way to fine-tune, as the small GPT is."""
    return setup.replace(batch=32, sequence=256)


def tuned_by(name: str) -> Recipe:
    """How the small GPT is fine-tuned in that one of `WAYS` or `SMALLER`."""
    return replace(TUNED, learning_rate=RATES[name])


def _said(setup: Setup) -> dict:
    """The fields of a setup, its adapters as they are."""
    return setup.as_dict() | {"adapters": setup.adapters}


def _finetuning() -> Iterator[tuple[Model, dict]]:
    """What trains, and by which optimizer; also checkpointed; and what trains in a Llama of 1B."""
    for setup in [*WAYS.values(), *SMALLER.values(), MIXED.replace(optimizer="paged-adamw8bit", optimizer_impl=None)]:
        yield model("gpt2"), _said(setup)
    for setup in WAYS.values():
        recomputed = setup.replace(checkpointing="full")
        yield model("gpt2"), _said(recomputed)
        yield model("llama-3.2-1b"), _said(recomputed.replace(batch=4))


def _times() -> Iterator[tuple[Model, dict, dict]]:
    """What each switch costs in time, on GPT-2 as on larger ones; fp32 also as most run it, by TF32."""
    gpt2, medium, large = map(model, SIZES[:3])
    for precision in _TELLING:
        yield gpt2, {"precision": precision}, {}
    yield gpt2, {"precision": "fp32"}, {"tf32": True}
    mixed = {"precision": "bf16-mixed"}
    for switch in (
        {"attention": "eager"}, {"checkpointing": "full"}, _root("gpt2"), {"checkpointing": "selective"},
        {"optimizer_impl": "fused"}, {"loss": "chunked"}, {"batch": 16}, {"batch": 32},
    ):  # fmt: skip
        yield gpt2, mixed | switch, {}
    for sequence, attention in product((4096, 512, 2048, 8192), ATTENTIONS[::-1]):
        setup: dict[str, Any] = mixed | {"batch": 8192 // sequence, "sequence": sequence, "attention": attention}
        yield gpt2_for(Setup(**setup)), setup, {}
    for larger in (medium, large):
        yield larger, mixed, {}
    for way in [*list(WAYS.values())[1:], *SMALLER.values()]:
        yield gpt2, _said(way), {}
    for way in WAYS.values():
        yield model("llama-3.2-1b"), _said(way.replace(batch=4, checkpointing="full")), {}


def _allocator() -> Iterator[tuple[Model, dict, dict]]:
    """The allocator's own switch beside its default; and a limit that is met, run into, and kept again."""
    for name, precision in product(SIZES[::3], ("bf16-mixed", "bf16-master")):
        yield model(name), {"precision": precision}, {"expandable": True}
    for checkpointing in ("none", "full"):
        yield model("gpt2"), {"precision": "bf16-mixed", "checkpointing": checkpointing}, {"limit": LIMIT}


GROUPS: dict[str, Callable[[], Iterable[tuple]]] = {
    "sizes": _sizes,
    "checkpointing": _checkpointing,
    "sequences": _sequences,
    "curves": _curves,
    "accumulation": _accumulation,
    "optimizers": _optimizers,
    "sharding": _sharding,
    "losses": _losses,
    "batches": _batches,
    "dropout": _dropout,
    "masters": _masters,
    "small": _small,
    "odd": _odd,
    "families": _families,
    "finetuning": _finetuning,
    "times": _times,
    "allocator": _allocator,
}
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
    first = [
        c for i in range(0, len(others), each) for c in [*others[i : i + each], *sharded[i // each : i // each + 1]]
    ]
    rest = [c for c in peaks if c not in first]
    return first + [c for name in STEPS for c in made.get(name, ())] + rest


def _made(group):
    for shape, choice, *how in GROUPS[group]():
        switches = how[0] if how else {}
        steps = switches["recipe"].steps if "recipe" in switches else STEPS.get(group, 0)
        yield Configuration(group, shape, Setup(**choice), steps, **switches)


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
