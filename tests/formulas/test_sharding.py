"""Many GPUs: what each holds, by formula, is what the dry run of rank 0 counts, to the byte."""

import sys

import grid
import pytest

import everybyte as eb
from everybyte.formulas import formula
from everybyte.formulas.sharding import BUCKET, FIRST_BUCKET, Kind, buckets
from everybyte.setup import SHARDINGS


@pytest.mark.parametrize("start", range(0, 64, 16))
def test_any_way_of_sharing(start):
    """DDP and every stage, with checkpointing, accumulation and the chunked loss."""
    assert grid.disagreeing(grid.shared, range(start, start + 16)) == {}


def test_the_random_runs_are_not_all_alike():
    kinds = {Kind.of(grid.shared(seed)[1]) for seed in range(64)}
    assert {k.sharding for k in kinds} == set(SHARDINGS)
    assert {True, False} == {k.alone for k in kinds} == {k.replicas for k in kinds} == {k.views for k in kinds}
    assert {k.units for k in kinds} == {"", "block", "model"}
    assert {True, False} == {k.offload for k in kinds}


@pytest.mark.parametrize("gpus", [1, 2, 8, 64, 1024])
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_gpt2_on_any_number_of_gpus(gpus, precision):
    setup = eb.Setup(batch=1, sequence=256, precision=precision, gpus=gpus, sharding="zero3")
    assert grid.disagreements(eb.model("gpt2"), setup) == []


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpt2-medium", {"sharding": "zero2", "checkpointing": "full"}),
        ("gpt2-large", {"sharding": "zero1", "precision": "bf16-master"}),
        ("gpt2-xl", {"sharding": "zero3", "precision": "bf16-mixed", "checkpointing": "every-k", "checkpoint_every": 5}),
        ("gpt2-xl", {"buckets": "views"}),
        ("gpt2-xl", {"sharding": "zero3", "precision": "bf16-mixed", "offload": "cpu"}),
    ],
)  # fmt: skip
def test_the_larger_sizes(name, changes):
    """50,257 rows do not divide by eight; the buckets of the largest are a hundred."""
    assert grid.disagreements(eb.model(name), eb.Setup(batch=1, sequence=256, gpus=8, **changes)) == []


def test_a_changed_unit_is_noticed(monkeypatch):
    forgetful = type("Forgetful", (Kind("zero3", "block").ledger,), {"_backward_entered": lambda self: None})
    monkeypatch.setattr(Kind, "ledger", property(lambda self: forgetful))  # it prefetches nothing
    budget = sys.modules["everybyte.budget"]
    monkeypatch.setattr(budget, "_ledger_program", budget._ledger_program.__wrapped__)
    setup = eb.Setup(batch=1, sequence=64, gpus=8, sharding="zero3")
    assert any("peak" in said for said in grid.disagreements(eb.model("gpt2"), setup, blocks=(1,)))


def test_buckets_hold_every_gradient_once():
    for name in ("gpt2", "gpt2-nobias", "gpt2-xl"):
        model = eb.model(name)
        sizes = buckets(model, 4)
        assert sum(sizes) == 4 * model.parameters
        assert sizes[0] >= FIRST_BUCKET and all(size >= BUCKET for size in sizes[1:-1])


def test_nothing_is_lost_in_cutting():
    """Shares of all GPUs hold every number; what is too many is padding, less than a row a tensor and GPU."""
    for gpus in (1, 2, 7, 8, 1024):
        for name in grid.GPT2_SIZES:
            model, setup = eb.model(name), eb.Setup(gpus=gpus, sharding="zero3")
            held = gpus * formula("fsdp.model.share").at(model, setup)
            rows = gpus * (4 * model.width + model.ffn_width) * (12 * model.layers + 4)
            assert model.parameters <= held < model.parameters + rows
            root, block = (formula(f"fsdp.{unit}.share").at(model, setup) for unit in ("root", "block"))
            assert gpus * (root + model.layers * block) == held


def test_memory_does_not_go_to_nothing():
    """The root is whole all the time, and so is the block at work; with more GPUs than rows, padding makes it more."""
    setup = eb.Setup(batch=1, sequence=128, sharding="zero3")
    peaks = [eb.budget(eb.model("gpt2"), setup.replace(gpus=n)).peak for n in (2, 8, 256, 2**15)]
    assert peaks[0] > peaks[1] > peaks[2] > 4 * 50257 * 768
    assert peaks[3] > peaks[0]


def test_a_model_whose_step_is_not_derived_is_named():
    with pytest.raises(ValueError, match="llama-2-7b"):
        eb.budget(eb.model("llama-2-7b"), eb.Setup(gpus=8, sharding="zero3"))


@pytest.mark.parametrize("gpus", [1, 2, 8, 64, 1024])
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "bf16"])
def test_a_block_of_llama(gpus, precision):
    """Grouped heads and a gated MLP of 11,008, which 1,024 GPUs do not divide."""
    model = eb.model("llama-2-7b").replace(name="llama block", layers=2, vocabulary=320, kv_heads=8)
    setup = eb.Setup(batch=1, sequence=64, precision=precision, gpus=gpus, sharding="zero3")
    flat, sent, received = (
        int(formula(f"fsdp.llama_block.{n}").at(model, setup)) for n in ("flat", "sent", "received")
    )
    made = [a for a in eb.dry_run(model, setup).allocations if a.owner == "blocks.0" and a.birth]
    assert ("gradients", received) in [(a.part, a.bytes) for a in made]
    buffers = {
        a.bytes for a in made if a.part == "communication" and a.operation != "_to_copy"
    }  # casts of each tensor aside
    assert buffers == {sent} if gpus == 1 else buffers >= {flat, sent}
