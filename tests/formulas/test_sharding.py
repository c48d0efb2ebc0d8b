"""FSDP by named formulas: shares, what is gathered, sent and copied, for any model that the references build."""

import pytest

import everybyte as eb
from everybyte.catalog import models
from everybyte.formulas import formula
from everybyte.formulas.sharding import BUCKET, FIRST_BUCKET, buckets
from everybyte.theory import letters, trace

GPT2_SIZES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
#: One of each architecture, small.
SOME = {
    name: eb.model(name, code="reference").replace(layers=3, vocabulary=331)
    for name in ("gpt2", "opt-125m", "llama-2-7b", "qwen3-8b", "gemma-2b")
}
UNTIED = {name: model.replace(tied=False) for name, model in SOME.items()}


def taken(model, setup):
    """Operation -> bytes that the whole step takes by operations of that name, in the part of communication."""
    found = {}
    reading = trace(model, setup).at(letters(model, setup))
    for operation, *_ in reading.unrolled():
        for piece in operation.taken if operation is not None else ():
            if piece.part == "communication" or operation.name.endswith("received"):
                what = operation.name.rpartition(" ")[2]
                found[what] = found.get(what, 0) + reading.amounts.size(piece)
    return found


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("changes", [
    {}, {"sharding": "zero2"}, {"sharding_units": "model"}, {"sharding_units": "block+ends"},
    {"accumulation": 3}, {"accumulation": 3, "no_sync": True},
], ids=lambda changes: "-".join(map(str, changes.values())) or "usual")  # fmt: skip
def test_what_is_sent_is_what_the_course_gathers_and_reduces(name, changes):
    """Round a ring goes all but a GPU's own share of each flat buffer."""
    setup = eb.Setup(batch=1, sequence=16, gpus=8, **{"sharding": "zero3"} | changes)
    found = taken(UNTIED[name], setup)
    assert formula("fsdp.sent").at(UNTIED[name], setup) == (found["gathered"] + found["sent"]) * 7 // 8
    offloaded = setup.replace(offload="cpu")
    copied = taken(UNTIED[name], offloaded)
    assert formula("fsdp.to_gpu").at(UNTIED[name], offloaded) == copied["copied"]
    assert formula("fsdp.to_host").at(UNTIED[name], offloaded) == copied["received"]


@pytest.mark.parametrize("name", models())
def test_shares_are_what_a_gpu_holds(name):
    """Between steps, of every model that is derived: weights and states, cut by rows."""
    model, setup = (
        eb.model(name, code="reference"),
        eb.Setup(batch=1, sequence=16, gpus=8, sharding="zero3", optimizer_impl="fused"),
    )
    if model.family is None:
        with pytest.raises(ValueError, match=f"{name}.*eb.dry_run"):
            formula("fsdp.weights").at(model, setup)
        return
    rest = eb.budget(model, setup).parts_at("rest")
    assert formula("fsdp.weights").at(model, setup) == rest["parameters"]
    assert formula("fsdp.optimizer").at(model, setup) == rest["optimizer"]
    assert formula("fsdp.gradients").at(model, setup) == rest["parameters"]
    share, root, block = (formula(f"fsdp.{unit}.share").at(model, setup) for unit in ("model", "root", "block"))
    assert share == root + model.layers * block and 8 * share >= model.parameters


def test_a_llamas_block_is_a_block():
    for name in ("llama-2-7b", "mistral-7b", "qwen2.5-0.5b"):
        for what in ("share", "flat", "sent", "received"):
            run = eb.model(name, code="reference"), eb.Setup(gpus=8, sharding="zero3", sequence=16)
            assert formula(f"fsdp.llama_block.{what}").at(*run) == formula(f"fsdp.block.{what}").at(*run)


def test_nothing_is_lost_in_cutting():
    """Shares of all GPUs hold every number; what is too many is padding, less than a row a tensor and GPU."""
    for gpus in (1, 2, 7, 8, 1024):
        for name in GPT2_SIZES:
            model, setup = eb.model(name, code="reference"), eb.Setup(gpus=gpus, sharding="zero3")
            held = gpus * formula("fsdp.model.share").at(model, setup)
            rows = gpus * (4 * model.width + model.ffn_width) * (12 * model.layers + 4)
            assert model.parameters <= held < model.parameters + rows


def test_buckets_hold_every_gradient_once():
    for name in ("gpt2", "gpt2-nobias", "gpt2-xl", "opt-125m", "llama-3.2-1b"):
        sizes = buckets(eb.model(name, code="reference"), 4)
        assert sum(sizes) == 4 * eb.model(name, code="reference").parameters
        assert sizes[0] >= FIRST_BUCKET and all(size >= BUCKET for size in sizes[1:-1])


def test_replicas_average_what_each_group_has_added_up():
    setup = eb.Setup(batch=1, sequence=16, gpus=8, sharding="zero3")
    groups = setup.replace(gpus=16, replicas=2)
    for units in ("block", "model"):
        one, two = (formula("fsdp.sent").at(SOME["gpt2"], s.replace(sharding_units=units)) for s in (setup, groups))
        share = formula("fsdp.model.share").at(SOME["gpt2"], groups)
        assert 0 <= two - one - 4 * share < 4 * 2 * 5  # half of it sent twice, each unit's rounded up


def test_memory_does_not_go_to_nothing():
    """The root is whole all the time, and so is the block at work; with more GPUs than rows, padding makes it more."""
    setup = eb.Setup(batch=1, sequence=128, sharding="zero3")
    peaks = [eb.budget(eb.model("gpt2"), setup.replace(gpus=n)).peak for n in (2, 8, 256, 2**15)]
    assert peaks[0] > peaks[1] > peaks[2] > 4 * 50257 * 768
    assert peaks[3] > peaks[0]


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_buckets_are_the_dry_runs_in_blocks_of_512(precision):
    """Under autocast a weight's gradient comes before its bias's, so that other gradients share a bucket."""
    model = eb.model("gpt2-xl").replace(layers=2)
    setup = eb.Setup(gpus=8, precision=precision, batch=1, sequence=128)
    budget, counted = eb.budget(model, setup, 512), eb.dry_run(model, setup, 512)
    assert budget.parts_at("rest") == {
        n: s for n, s in counted.parts_at("rest").items() if n in budget.parts_at("rest")
    }
