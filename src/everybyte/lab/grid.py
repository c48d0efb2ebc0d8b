"""What is worth measuring, the most telling first: generated from the switches that `Setup` has."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product, zip_longest

from .. import checks
from ..catalog import Model, model
from ..setup import ATTENTIONS, LOSSES, MASTER_GRADIENTS, OPTIMIZER_IMPLS, OPTIMIZERS, PRECISIONS, Setup

SIZES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")


@dataclass(frozen=True)
class Configuration:
    """A step to measure, and the group of the grid that it stands for first."""

    group: str
    model: Model
    setup: Setup


def _crossed(**axes) -> list[dict]:
    """Every combination, those near the axes' starts first: a few of everything before all of anything."""
    ranked = product(*(list(enumerate(values)) for values in axes.values()))
    ranked = sorted(ranked, key=lambda choice: (sum(rank for rank, _ in choice), max(rank for rank, _ in choice)))
    return [dict(zip(axes, (value for _, value in choice), strict=True)) for choice in ranked]


_TELLING = sorted(
    PRECISIONS, key=lambda p: ("bf16-mixed", "fp32", "fp16-mixed").index(p) if "mixed" in p or p == "fp32" else 9
)


def _sizes() -> Iterator[tuple[Model, dict]]:
    for choice in _crossed(name=SIZES, precision=_TELLING, attention=ATTENTIONS[::-1]):
        yield model(choice.pop("name")), {"batch": 8, "sequence": 1024} | choice


def _small() -> Iterator[tuple[Model, dict]]:
    """Steps that smaller GPUs hold too, and whose peak is the optimizer's."""
    for choice in _crossed(name=SIZES, precision=_TELLING, sequence=(128, 512)):
        yield model(choice.pop("name")), {"batch": 1} | choice


def _dropout() -> Iterator[tuple[Model, dict]]:
    for choice in _crossed(dropout=(0.1,), precision=_TELLING, attention=ATTENTIONS[::-1]):
        yield model("gpt2"), choice


def _optimizers() -> Iterator[tuple[Model, dict]]:
    rows = _crossed(
        optimizer_impl=OPTIMIZER_IMPLS, optimizer=tuple(OPTIMIZERS)[::-1], precision=("bf16-mixed", "bf16-master", "bf16"),
        sequence=(128, 1024),
    )  # fmt: skip
    for choice in rows:
        yield model("gpt2"), {"batch": 1 if choice["sequence"] == 128 else 8} | choice


def _batches() -> Iterator[tuple[Model, dict]]:
    for choice in _crossed(
        batch=(1, 16, 2, 32, 4, 64, 12), precision=("bf16-mixed", "fp32"), attention=ATTENTIONS[::-1]
    ):
        yield model("gpt2"), choice


def _sequences() -> Iterator[tuple[Model, dict]]:
    """The same tokens a step in ever longer sequences: flash attention keeps as much, the scores grow."""
    for choice in _crossed(
        sequence=(2048, 256, 8192, 512, 4096), attention=ATTENTIONS, precision=("bf16-mixed", "fp32")
    ):
        longer = model("gpt2").replace(name=f"gpt2-{choice['sequence']}", positions=choice["sequence"])
        yield longer if choice["sequence"] > 1024 else model("gpt2"), {"batch": 8192 // choice["sequence"]} | choice


def _odd() -> Iterator[tuple[Model, dict]]:
    """Sizes that no power of two divides, heads that a kernel pads, tables of other widths."""
    odd = Model(name="odd", layers=3, width=300, heads=5, vocabulary=5003, positions=1024)
    padded = model("gpt2").replace(name="gpt2-padded", vocabulary=50304)
    untied = model("gpt2").replace(name="gpt2-untied", tied=False)
    shapes = ((3, 1000), (7, 333), (1, 1), (5, 1023))
    models = (model("gpt2"), odd, model("gpt2-nobias"), padded, untied)
    for choice in _crossed(model=models, shape=shapes, precision=("bf16-mixed", "fp32"), attention=ATTENTIONS[::-1]):
        batch, sequence = choice.pop("shape")
        if choice["model"].vocabulary == model("gpt2").vocabulary and choice["model"].name != "gpt2" and batch != 3:
            continue  # what sets these apart does not depend on the shape
        yield choice.pop("model"), {"batch": batch, "sequence": sequence} | choice


def _masters() -> Iterator[tuple[Model, dict]]:
    for choice in _crossed(
        master_gradients=MASTER_GRADIENTS[::-1], name=SIZES[:2], optimizer_impl=OPTIMIZER_IMPLS[::2]
    ):
        yield model(choice.pop("name")), {"precision": "bf16-master"} | choice


def _losses() -> Iterator[tuple[Model, dict]]:
    rows = _crossed(
        loss=[name for name in LOSSES if name != "plain"], loss_chunks=(8, 64), name=SIZES[::3], precision=_TELLING
    )
    for choice in rows:
        yield model(choice.pop("name")), choice


GROUPS: dict[str, Callable[[], Iterable[tuple[Model, dict]]]] = {
    "sizes": _sizes,
    "sequences": _sequences,
    "optimizers": _optimizers,
    "losses": _losses,
    "batches": _batches,
    "dropout": _dropout,
    "masters": _masters,
    "small": _small,
    "odd": _odd,
}


def grid(only: Iterable[str] = ()) -> list[Configuration]:
    """What to measure, in this order: one of each group, then the next of each; no step twice.

    Args:
        only: names of `GROUPS`; by default all.

    Raises:
        ValueError: for a group that there is not.
    """
    only = list(only)
    for name in only:
        checks.one_of("grid", "only", name, GROUPS)
    columns = [[(name, *row) for row in make()] for name, make in GROUPS.items() if name in only or not only]
    found = {}
    for row in zip_longest(*columns):
        for name, shape, choice in filter(None, row):
            setup = Setup(**choice)
            found.setdefault((shape, setup), Configuration(name, shape, setup))
    return list(found.values())
