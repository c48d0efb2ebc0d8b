"""A step whose matrices are divided: the formula counts what PyTorch's own `parallelize_module` does, byte for byte."""

import grid
import pytest
import witnesses

import everybyte as eb

GPT = eb.Model(name="gpt", layers=3, width=32, heads=8, vocabulary=96, positions=32)
LLAMA = eb.Model(
    name="llama", layers=2, width=40, heads=8, kv_heads=4, head_width=8, vocabulary=96, learned_positions=0, gated=True,
    fused=False, tied=False, ffn_width=56, activation="silu", qkv_bias=False, out_bias=False, ffn_bias=False, norm="rmsnorm",
)  # fmt: skip
MIXTURE = LLAMA.replace(name="mixture", experts=4, experts_per_token=2, expert_width=32)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", range(100))
def test_any_architecture_divided_any_way(seed):
    model, setup, rank = grid.divided(seed)
    assert not witnesses.disagreements(model, setup, rank=rank)


@pytest.mark.parametrize("sequence_parallel", [True, False])
@pytest.mark.parametrize("loss_parallel", [True, False])
@pytest.mark.parametrize("model", [GPT, LLAMA, MIXTURE], ids=["gpt", "llama", "mixture"])
def test_every_place_of_the_timeline(model, sequence_parallel, loss_parallel):
    """Not the peak alone: after each operation as much lives, of each part."""
    mesh = eb.Mesh(tensor=4, sequence_parallel=sequence_parallel, loss_parallel=loss_parallel)
    setup = eb.Setup(batch=3, sequence=32, precision="bf16", gpus=4, mesh=mesh)
    assert witnesses.first_difference(model, setup) is None


@pytest.mark.parametrize("units", ["block", "block+ends"])
def test_gradients_in_flight_while_a_table_s_is_redistributed(units):
    """The token table is left last, and with units of its own for all weights FSDP has no group for the root: what the first block
    sends still lives when the table's gradient is cut by the vocabulary."""
    setup = eb.Setup(batch=1, sequence=16, precision="bf16-mixed", gpus=4, sharding="zero3", mesh=eb.Mesh(tensor=2))
    setup = setup.replace(sharding_units=units)
    assert witnesses.first_difference(LLAMA, setup) is None


def test_weights_divide_and_a_table_s_gradient_does_not():
    """DTensor's embedding has a gradient for every word on every GPU, where it is not added to the head's."""
    setup = eb.Setup(batch=1, sequence=8, precision="bf16", gpus=8, mesh=eb.Mesh(tensor=8))
    found = eb.budget(LLAMA.replace(heads=8, kv_heads=8), setup)
    moment = found.parts_at("after_backward")
    table = 2 * LLAMA.vocabulary * LLAMA.width
    assert moment["gradients"] == found.parts_at("rest")["parameters"] + table - table // 8


def test_each_expert_is_divided_and_its_router_is_not():
    """Of each expert every GPU has a part: its columns, then its rows. Each routes all tokens, with the whole router."""
    setup = eb.Setup(batch=2, sequence=16, precision="bf16-mixed", gpus=16, sharding="zero3", mesh=eb.Mesh(tensor=4))
    alone = eb.budget(MIXTURE, setup.replace(gpus=4, mesh=eb.Mesh())).parts_at("rest")["parameters"]
    mine = eb.budget(MIXTURE, setup).parts_at("rest")["parameters"]
    experts = (
        MIXTURE.experts * 3 * MIXTURE.expert_width * MIXTURE.width
    )  # of a layer: cut by 4 experts, then each expert by 4
    attention = 3 * MIXTURE.width * MIXTURE.heads * MIXTURE.head_width
    ends = 2 * MIXTURE.vocabulary * MIXTURE.width
    assert (
        alone - mine == 4 * 3 / 4 * (MIXTURE.layers * (experts + attention) + ends) / 4
    )  # fp32, three parts of four, a fourth
    trace = eb.dry_run(MIXTURE, setup)
    assert trace.parts_at("rest")["parameters"] == mine
    assert not witnesses.disagreements(MIXTURE, setup, rank=3)


def test_mixtral_on_64_with_its_experts_divided_by_8():
    setup = eb.Setup(batch=1, sequence=4096, precision="bf16-mixed", checkpointing="full", sharding="zero3", gpus=64,
                     mesh=eb.Mesh(tensor=8))  # fmt: skip
    assert not witnesses.disagreements(eb.model("mixtral-8x7b", code="reference").replace(layers=4), setup, rank=7)


def test_mixtures_are_drawn_with_and_without_fsdp():
    drawn = [grid.divided(seed)[:2] for seed in range(40)]
    assert {setup.fsdp for model, setup in drawn if model.experts} == {True, False}


def test_matrices_are_divided_beside_any_checkpointing_and_gradients_that_are_sent_once():
    drawn = [grid.divided(seed)[1] for seed in range(80)]
    assert {setup.checkpointing for setup in drawn} == {"none", "full", "every-k", "selective", "operations"}
    assert {setup.no_sync for setup in drawn if setup.fsdp and setup.accumulation > 1} == {True, False}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "model",
    [GPT, LLAMA.replace(kv_heads=8), MIXTURE.replace(kv_heads=8, expert_width=64)],
    ids=["gpt", "llama", "mixture"],
)
@pytest.mark.parametrize("sharding", ["none", "zero3"])
def test_what_operations_keep_of_divided_matrices_is_each_gpus_part(model, sharding):
    """Products and attention are kept, and sums over GPUs are made again; the timeline says the same operation by operation."""
    setup = eb.Setup(batch=2, sequence=16, precision="bf16", checkpointing="operations", sharding=sharding, mesh=eb.Mesh(tensor=8),
                     gpus=8 * (1 + (sharding != "none")))  # fmt: skip
    assert witnesses.first_difference(model, setup) is None and not witnesses.disagreements(model, setup)
    at = "after_forward"
    none, kept = (
        eb.budget(model, setup.replace(checkpointing=c)).parts_at(at)["activations"] for c in ("none", "operations")
    )
    assert 0 < kept < none


@pytest.mark.parametrize("seed", [4002, 4006, 4008])
def test_a_norms_gradient_is_added_before_its_inputs_meet(seed):
    """Their weights are DTensors, and their inputs become some: between a norm and the residual stream stands a node of its own."""
    model, setup, rank = grid.staged(seed)
    assert setup.mesh.tensor > 1 and setup.fsdp and setup.accumulation > 1
    assert witnesses.first_difference(model, setup, rank=rank) is None


def test_what_does_not_divide_is_named_with_the_nearest_that_does():
    setup = eb.Setup(batch=1, sequence=16, gpus=8, mesh=eb.Mesh(tensor=8))
    for changes, said in (
        ({"heads": 12, "kv_heads": 12, "width": 48, "head_width": 4}, r"does not divide the heads of 12 of gpt: 4 left over; allowed: 6 or 12"),
        ({"vocabulary": 50257}, r"does not divide the vocabulary of 50257 of gpt: 1 left over; allowed: 1 or 29, .* 50256 or 50264"),
        ({"ffn_width": 100}, r"does not divide the ffn_width of 100 of gpt: 4 left over; allowed: 5 or 10, .* 96 or 104"),
    ):  # fmt: skip
        for run in (eb.budget, eb.dry_run):
            with pytest.raises(ValueError, match=r"^Mesh\.tensor: 8 " + said):
                run(GPT.replace(**changes), setup)
    with pytest.raises(ValueError, match=r"^Mesh\.tensor: 8 does not divide the kv_heads of 4 of llama: 4 left over"):
        eb.budget(LLAMA, setup)
    with pytest.raises(ValueError, match=r"^Mesh\.tensor: 8 does not divide the sequence of 12: 4 left over"):
        eb.budget(GPT, setup.replace(sequence=12))
    mixture = MIXTURE.replace(kv_heads=8, expert_width=36)
    with pytest.raises(
        ValueError,
        match=r"^Mesh\.tensor: 8 does not divide the expert_width of 36 of mixture: 4 left over; allowed: 6 or 9",
    ):
        eb.dry_run(mixture, setup)
    with pytest.raises(
        ValueError,
        match=r"'bf16' .* rows of 16 bytes, and expert_width is 4, of 32 in mixture; allowed: multiples of 8",
    ):
        eb.budget(mixture.replace(expert_width=32), setup.replace(precision="bf16"))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"gpus": 16}, "sharding"), ({"gpus": 16, "sharding": "zero1"}, "sharding"), ({"precision": "bf16-mixed"}, "precision"),
        ({"precision": "fp16-mixed"}, "precision"), ({"loss": "chunked"}, "loss"), ({"adapters": eb.Lora()}, "adapters"),
        ({"optimizer": "muon"}, "optimizer"),
        ({"optimizer_impl": "loop"}, "optimizer_impl"), ({"optimizer": "sgd", "optimizer_impl": "fused"}, "optimizer_impl"), ({"sharding": "zero3", "offload": "cpu"}, "offload"),
        ({"sharding": "zero3", "gpus": 32, "replicas": 2}, "replicas"),
        ({"precision": "bf16-master", "master_gradients": "fp32"}, "master_gradients"),
    ],
)  # fmt: skip
def test_what_is_not_derived_beside_it_is_refused_by_name(changes, field):
    for run in (eb.budget, eb.dry_run):
        with pytest.raises(ValueError, match=rf"^Setup\.{field}: "):
            run(GPT, eb.Setup(**{"batch": 1, "sequence": 16, "gpus": 8, "mesh": eb.Mesh(tensor=8)} | changes))
