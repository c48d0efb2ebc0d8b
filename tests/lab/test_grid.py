"""The grid: what the labs ask for, each step once, each one that can be run."""

from collections import Counter
from itertools import product

import pytest

import everybyte as eb
from everybyte.ask.choices import (
    ATTENTIONS,
    CHECKPOINTINGS,
    COMMON_OPTIMIZERS,
    LOSSES,
    MASTER_GRADIENTS,
    OPTIMIZER_IMPLS,
    PRECISIONS,
)
from everybyte.lab import estimate, grid
from everybyte.lab.grid import FIRST, GROUPS, LONG, PROSE, SHARDED, SIZES, SMALLER, STEPS, TIMED, WAYS, for_gpu
from everybyte.lab.measuring import check_request

GRID = grid()


def test_every_step_is_valid_and_there_once():
    for configuration in GRID:
        check_request(configuration.model, configuration.setup)
    assert len({(c.model, c.setup, *c.asked.values()) for c in GRID}) == len(GRID)
    peaks = [c for c in GRID if c.group not in STEPS]
    assert len({(c.model, c.setup) for c in peaks}) == len(peaks)


def test_two_models_of_one_name_are_the_same():
    models = {c.model for c in GRID}
    assert len({m.name for m in models}) == len(models)


def test_every_size_in_every_precision_with_each_attention():
    there = {(c.model.name, c.setup) for c in GRID}
    for size, precision, attention in product(SIZES, PRECISIONS, ATTENTIONS):
        assert (size, eb.Setup(precision=precision, attention=attention)) in there


def test_every_size_in_every_precision_with_each_attention_forgets_in_every_way_beside_one_that_does_not():
    there = {(c.model.name, c.setup) for c in GRID}
    for size, precision, attention in product(SIZES, PRECISIONS, ATTENTIONS):
        root = eb.Setup(checkpointing="every-k", checkpoint_every=round(eb.model(size, code="reference").layers ** 0.5))
        plain = [eb.Setup(batch=b, precision=precision, attention=attention) for b in (8, 2)]
        for forgets in (eb.Setup(checkpointing="full"), eb.Setup(checkpointing="selective"), root):
            fields = {"checkpointing": forgets.checkpointing, "checkpoint_every": forgets.checkpoint_every}
            assert any({(size, s.replace(**fields)), (size, s)} <= there for s in plain)


def test_the_loss_is_followed_for_every_switch_on_the_same_windows():
    curves = [c for c in grid(["curves"]) if c.model == PROSE and c.recipe.seed == 0 and not c.recipe.pretrained]
    assert {c.steps for c in curves} == {LONG.steps} and {c.steps for c in GRID if c.group not in STEPS} == {0}
    assert {(c.setup.batch, c.setup.sequence) for c in curves} == {(32, 256)} and {c.recipe for c in curves} == {LONG}
    assert {c.setup.precision for c in curves} == set(PRECISIONS) and {c.setup.attention for c in curves} == set(
        ATTENTIONS
    )


def test_every_way_to_fine_tune_is_counted_timed_and_followed_from_the_same_start():
    ways = WAYS | SMALLER
    assert {s.optimizer for s in ways.values()} == {"adamw", "lion", "muon", "adamw8bit"} and ways["QLoRA"].quantization
    there = {(c.model, c.setup): c for c in GRID if not c.recipe}
    assert all((eb.model("gpt2"), setup) in there for setup in ways.values())
    timed = {c.setup for c in grid(["times"])}
    assert set(ways.values()) <= timed
    tuned = {c.setup.replace(batch=8, sequence=1024): c.recipe for c in grid(["curves"]) if c.recipe.pretrained}
    assert set(tuned) == set(ways.values()) and {r.pretrained for r in tuned.values()} == {200}


def test_each_part_is_worth_having_alone():
    first, rest = GRID[:FIRST], GRID[FIRST:]
    assert not {c.group for c in first} & set(STEPS) and sum(c.setup.fsdp for c in first) == SHARDED
    order = [c.group for c in rest if c.group in STEPS]
    assert order == sorted(order, key=list(STEPS).index) and [c.group for c in rest[: len(order)]] == order
    assert estimate(first, eb.gpu("h200"), lambda model, setup: 0).rows[-1][3] < 60


def test_what_is_timed_is_timed_often_and_also_as_most_run_it():
    times = grid(["times"])
    assert {c.steps for c in times} == {TIMED} and {c.setup.precision for c in times} == set(PRECISIONS)
    assert [c.setup.precision for c in times if c.tf32] == ["fp32"]


def test_an_out_of_memory_on_purpose_stands_beside_its_cure():
    ran_out, cured = (c for c in grid(["allocator"]) if c.limit)
    assert eb.budget(ran_out.model, ran_out.setup).peak > ran_out.limit == cured.limit
    assert eb.budget(cured.model, cured.setup, rounding=512).peak + 2**26 < 0.9 * cured.limit
    assert ran_out.setup.replace(checkpointing="full") == cured.setup
    assert {c.setup.precision for c in grid(["allocator"]) if c.expandable} == {"bf16-mixed", "bf16-master"}


def test_a_gpu_without_bf16_has_fp16_in_its_place_once():
    assert for_gpu(GRID, bf16=True) == GRID
    other = for_gpu(GRID, bf16=False)
    assert len(other) < len(GRID) and {c.setup for c in other} < {c.setup for c in GRID} | {c.setup for c in other}
    left = [c.setup for c in other if c.setup.precision == "bf16-mixed" and c.setup.sharding == "none"]
    assert left and all(setup.base_dtype == "bf16" for setup in left)  # a model that is loaded in bf16 stays in it
    assert other[0].setup == GRID[0].setup.replace(precision="fp16-mixed")


def test_all_of_it_is_planned_for_ten_minutes_of_an_h200():
    table = estimate(GRID, eb.gpu("h200"), lambda model, setup: 0)
    assert table.rows[-1][:3] == ["all", len(GRID), len(GRID)]
    assert 60 < table.rows[-1][3] == sum(row[3] for row in table.rows[:-1]) < 10 * 60
    slower, none = estimate(GRID, eb.gpu("t4"), lambda m, s: 0), estimate(GRID, eb.gpu("t4"), lambda m, s: 2**60)
    assert slower.rows[-1][3] > 2 * table.rows[-1][3] and none.rows[-1][2:] == [0, 0]


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("dropout", {0.0, 0.1}), ("optimizer", set(COMMON_OPTIMIZERS)), ("optimizer_impl", set(OPTIMIZER_IMPLS)),
        ("batch", {1, 2, 4, 8, 16, 32, 64}), ("sequence", {128, 256, 512, 1024, 2048, 4096, 8192, 1000, 333}),
        ("checkpointing", set(CHECKPOINTINGS[:5])), ("checkpoint_every", {2, 3, 4, 5, 6, 7}), ("accumulation", {1, 4}),
        ("loss", set(LOSSES)), ("master_gradients", set(MASTER_GRADIENTS)), ("attention", set(ATTENTIONS)),
    ],
)  # fmt: skip
def test_every_switch_has_each_of_its_values(field, values):
    assert values <= {getattr(c.setup, field) for c in GRID}


def test_a_few_of_everything_come_first():
    start = GRID[:170]
    assert {c.group for c in GRID[:26]} >= set(GROUPS) - set(STEPS)
    for field, values in {
        "precision": PRECISIONS,
        "attention": ATTENTIONS,
        "optimizer_impl": OPTIMIZER_IMPLS,
        "loss": LOSSES,
        "checkpointing": CHECKPOINTINGS[:5],  # torchtitan's own two are in none of the rows
        "accumulation": (1, 4),
    }.items():
        assert {getattr(c.setup, field) for c in start} == set(values)
    assert {c.model.name for c in start} >= set(SIZES)


def test_only_some_groups():
    assert Counter(c.group for c in grid(["sizes"])) == {"sizes": 40}
    assert {c.group for c in grid(["dropout", "odd"])} == {"dropout", "odd"}
    with pytest.raises(ValueError, match=r"^grid\.only: 'size' is unknown; did you mean 'sizes'"):
        grid(["size"])
