"""The grid: what the labs ask for, each step once, each one that can be run."""

from collections import Counter
from itertools import product

import pytest

import everybyte as eb
from everybyte.lab import grid
from everybyte.lab.grid import GROUPS, SIZES
from everybyte.lab.process import check_request
from everybyte.setup import ATTENTIONS, LOSSES, MASTER_GRADIENTS, OPTIMIZER_IMPLS, OPTIMIZERS, PRECISIONS

GRID = grid()


def test_every_step_is_valid_and_there_once():
    for configuration in GRID:
        check_request(configuration.model, configuration.setup)
    assert len({(c.model, c.setup) for c in GRID}) == len(GRID)


def test_two_models_of_one_name_are_the_same():
    models = {c.model for c in GRID}
    assert len({m.name for m in models}) == len(models)


def test_every_size_in_every_precision_with_each_attention():
    there = {(c.model.name, c.setup) for c in GRID}
    for size, precision, attention in product(SIZES, PRECISIONS, ATTENTIONS):
        assert (size, eb.Setup(precision=precision, attention=attention)) in there


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("dropout", {0.0, 0.1}), ("optimizer", set(OPTIMIZERS)), ("optimizer_impl", set(OPTIMIZER_IMPLS)),
        ("batch", {1, 2, 4, 8, 16, 32, 64}), ("sequence", {128, 256, 512, 1024, 2048, 4096, 8192, 1000, 333}),
        ("loss", set(LOSSES)), ("master_gradients", set(MASTER_GRADIENTS)), ("attention", set(ATTENTIONS)),
    ],
)  # fmt: skip
def test_every_switch_has_each_of_its_values(field, values):
    assert values <= {getattr(c.setup, field) for c in GRID}


def test_a_few_of_everything_come_first():
    start = GRID[:80]
    assert {c.group for c in GRID[: len(GROUPS)]} >= set(GROUPS) - {"small"}
    for field, values in {
        "precision": PRECISIONS,
        "attention": ATTENTIONS,
        "optimizer_impl": OPTIMIZER_IMPLS,
        "loss": LOSSES,
    }.items():
        assert {getattr(c.setup, field) for c in start} == set(values)
    assert {c.model.name for c in start} >= set(SIZES)


def test_only_some_groups():
    assert Counter(c.group for c in grid(["sizes"])) == {"sizes": 40}
    assert {c.group for c in grid(["dropout", "odd"])} == {"dropout", "odd"}
    with pytest.raises(ValueError, match=r"^grid\.only: 'size' is unknown; did you mean 'sizes'"):
        grid(["size"])
