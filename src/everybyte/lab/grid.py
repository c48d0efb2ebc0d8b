"""The grid of steps to measure, the most informative first: `grid.toml` combines the switches of `Setup`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import product, zip_longest
from typing import Any

from ..ask.setup import Lora, Setup
from ..catalog import Model, model
from ..common import checks, files
from .recipe import Recipe

_SAID = files.toml(__package__, "grid.toml")
#: Group -> its rows; a row has the values of each axis.
GROUPS: dict[str, list[dict]] = _SAID["groups"]
SIZES = tuple(_SAID["lists"]["sizes"])
#: Timed steps of a measurement of time, and the steps before them.
TIMED, WARM_UP = 30, 10
#: Groups that are not only peaks, in their order -> how many steps they time.
STEPS = {"times": TIMED, "curves": 0, "allocator": 0}
#: A small GPT that learns prose byte by byte; its recipe and GPT-2's; the seeds of runs that are compared.
PROSE = Model(name="prose", **_SAID["models"]["prose"])
LONG, SHORT = Recipe(), Recipe(steps=200, warm_up=20, learning_rate=6e-4, windows=32)
SEEDS = (0, 1, 2)
#: A toy that learns the same prose on a CPU, its recipe, and its shape: it stands where the small GPT's curve begins to bend.
TOY = Model(name="toy", layers=2, width=64, heads=4, vocabulary=256, positions=64)
QUICK = Recipe(steps=240, warm_up=24, learning_rate=3e-3, evaluations=8, windows=16)
AT_ONCE = {"batch": 16, "sequence": 64}
#: Ways to fine-tune: which weights train; by which optimizer. The small GPT's recipe, and the learning rate of each way.
MIXED = Setup(precision="bf16-mixed", optimizer_impl="fused")
LORA = MIXED.replace(adapters=Lora(16, base="bf16"))
WAYS = {"full": MIXED, "LoRA": LORA, "QLoRA": LORA.replace(quantization="nf4")}
SMALLER = {name: MIXED.replace(optimizer=name, optimizer_impl=None) for name in ("lion", "muon", "adamw8bit")}
PAGED = {"paged-adamw8bit": MIXED.replace(optimizer="paged-adamw8bit", optimizer_impl=None)}
TUNED = Recipe(steps=200, warm_up=20, pretrained=200)
RATES = {"full": 1e-3, "LoRA": 3e-3, "QLoRA": 3e-3, "lion": 1e-4, "muon": 1e-3, "adamw8bit": 1e-3}
RECIPES = {"long": LONG, "short": SHORT} | {name: replace(TUNED, learning_rate=rate) for name, rate in RATES.items()}
RECIPES |= {f"long, seed {seed}": replace(LONG, seed=seed) for seed in SEEDS[1:]}
#: Peaks that are measured before times and curves, and how many of them are of FSDP.
FIRST, SHARDED = 60, 10


@dataclass(frozen=True)
class Configuration:
    """A step to measure, and how: `steps` and the fields after it are arguments of `measure`."""

    group: str  # of the grid, that it stands for first
    model: Model
    setup: Setup
    steps: int = 0  # how many are timed; 0 where only its memory is asked for
    tf32: bool = False
    expandable: bool = False
    limit: int | None = None
    recipe: Recipe | None = None

    @property
    def asked(self) -> dict:
        """How it is measured, beside model and setup, as a record keeps it."""
        said = {name: getattr(self, name) for name in ("steps", "tf32", "expandable", "limit")}
        return said | {"recipe": self.recipe and str(self.recipe)}


def gpt2_for(setup: Setup) -> Model:
    """GPT-2 small, with more positions where the setup's sequence is longer than its own."""
    if setup.sequence <= model("gpt2").positions:
        return model("gpt2")
    return model("gpt2").replace(name=f"gpt2-{setup.sequence}", positions=setup.sequence)


def tuned(setup: Setup) -> Setup:
    """A setup of `WAYS` or `SMALLER` with the batch and sequence of the small GPT's fine-tuning."""
    return setup.replace(batch=32, sequence=256)


def tuned_by(name: str) -> Recipe:
    """The recipe by which the small GPT is fine-tuned in that one of `WAYS` or `SMALLER`."""
    return RECIPES[name]


def grid(only: Iterable[str] = ()) -> list[Configuration]:
    """The steps to measure, in this order: 60 peaks, times, curves, the allocator's switches, the other peaks.

    Peaks come in turn from each group, and every sixth of the first 60 is one of FSDP. No peak is listed twice.

    Args:
        only: names of `GROUPS`; by default all.

    Raises:
        ValueError: for an unknown group.
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


_FIELDS = [field.name for field in fields(Configuration)]


def _made(group: str) -> Iterator[Configuration]:
    """The configurations of a group: all combinations of each row's axes, those near the axes' beginnings first."""

    def far(choice):
        ranks = [rank for rank, _ in choice]
        return sum(ranks), max(ranks)

    for row in GROUPS[group]:
        axes = {axis: values for axis, values in row.items() if axis not in ("when", "but")}
        values = [_SAID["lists"][values] if isinstance(values, str) else values for values in axes.values()]
        for choice in sorted(product(*map(enumerate, values)), key=far):
            said: dict[str, Any] = {"steps": STEPS.get(group, 0)}
            for axis, (_, value) in zip(axes, choice, strict=True):
                said |= value if isinstance(value, dict) else {axis: value}
            made = _configuration(group, said)
            if "but" in row and _has(made, row["but"]["of"]):
                made = replace(made, setup=made.setup.replace(**row["but"]["has"]))
            if any(_has(made, one) for one in row.get("when", [{}])):
                yield made


def _configuration(group, said):
    """The configuration of these values by name."""
    way = (WAYS | SMALLER | PAGED)[said.pop("way")] if "way" in said else Setup()
    how = {name: said.pop(name) for name in _FIELDS if name in said}
    if "recipe" in how:
        how["recipe"] = RECIPES[how["recipe"]]
        how["steps"] = how["recipe"].steps
    size = _model(how.pop("model")) if "model" in how else None
    if said.get("checkpoint_every") == "root":
        said["checkpoint_every"] = round((size or model("gpt2")).layers ** 0.5)
    setup = way.replace(**said)
    return Configuration(group, size or gpt2_for(setup), setup, **how)


def _model(name):
    if name not in _SAID["models"]:
        return model(name, "reference")
    said = {"name": name} | _SAID["models"][name]
    return model(said.pop("of"), "reference").replace(**said) if "of" in said else Model(**said)


def _has(configuration, said):
    """Whether each of these fields has one of the listed values."""
    has = vars(configuration.setup) | {"model": configuration.model.name}
    return all(has[field] in values for field, values in said.items())


def in_fp16(setup: Setup) -> Setup:
    """The setup for a GPU without bf16: fp16-mixed in place of bf16-mixed over fp32 weights; others as they are."""
    mixed = setup.precision == "bf16-mixed" and setup.sharding == "none" and setup.base_dtype == "fp32"
    return setup.replace(precision="fp16-mixed") if mixed else setup


def for_gpu(configurations: Iterable[Configuration], bf16: bool) -> list[Configuration]:
    """The configurations for a GPU, each once; without bf16 units, fp16-mixed in place of bf16-mixed."""
    found = {}
    for configuration in configurations:
        if not bf16:
            configuration = replace(configuration, setup=in_fp16(configuration.setup))
        found.setdefault((configuration.model, configuration.setup, *configuration.asked.values()), configuration)
    return list(found.values())
