"""Theory and dry run, whatever the architecture and however it is shared: part by part, at every phase and at the peak."""

import grid
import pytest
import witnesses
from agreeing import agree

import everybyte as eb
from everybyte.catalog import models
from everybyte.catalog.decoders import untrained
from everybyte.theory.budget import not_derived


@pytest.mark.sampled(2)
@pytest.mark.parametrize("start", range(0, 36, 4))
def test_any_step_to_the_byte(start):
    agree(grid.everything, range(start, start + 4), "", refused=True)


def test_a_block_that_is_gathered_while_the_head_runs_is_no_part_of_the_loss():
    """Of 5,000 random steps one had its peak there, in blocks of 512 bytes."""
    assert not witnesses.disagreements(*grid.everything(4542)[:2])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("start", range(1000, 1016, 4))
def test_any_step_at_every_operation(start):
    for seed in range(start, start + 4):
        model, setup, _ = grid.everything(seed)
        if not_derived(model, setup) is None and setup.offload == "none":  # whose timeline has the CPU's operations too
            assert witnesses.first_difference(model, setup) is None, (model, setup)


def test_of_a_products_casts_the_inputs_is_made_last_and_its_gradient_first():
    """As rehearsed on an H200, less cuBLAS's workspaces; were the input cast first, the peak would be 2,231,236 B."""
    model = eb.Model(name="five small blocks", layers=5, width=48, heads=3, vocabulary=1000, positions=64)
    setup = eb.Setup(
        batch=2, sequence=7, accumulation=2, precision="fp16-mixed", optimizer="sgd", optimizer_impl="loop",
        checkpointing="selective",
    )  # fmt: skip
    assert eb.budget(model, setup).peak == eb.dry_run(model, setup).peak == 2_232_580


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "bf16-master", "bf16"])
@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_gradients_added_up_whole_are_gradients(precision, sharding):
    """Without synchronization FSDP keeps whole gradients between batches: under autocast, as casts to fp32."""
    model = eb.Model(layers=2, width=8, heads=2, vocabulary=101, positions=32)
    setup = eb.Setup(batch=2, sequence=32, precision=precision, sharding=sharding, gpus=2, accumulation=3, no_sync=True)
    assert not witnesses.disagreements(model, setup)


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bf16-mixed"}, {"precision": "bf16", "attention": "eager", "checkpointing": "selective"},
        {"precision": "bf16-mixed", "gpus": 4, "sharding": "zero3", "mesh": eb.Mesh(tensor=2)},
    ],
    ids=str,
)  # fmt: skip
def test_heads_that_turn_in_part_with_normed_queries_and_keys(changes):
    """GLM-4.5's attention in a model without experts, which the book's Llama builds."""
    model = eb.model("glm-4.5", code="reference").replace(
        layers=4, width=64, heads=4, kv_heads=2, head_width=16, ffn_width=176, vocabulary=100, experts=0, experts_per_token=0,
        expert_width=0, shared_experts=0, dense_layers=0, router_bias=False,
    )  # fmt: skip
    assert model.family == "llama" and model.turning == 8 and model.qk_norm
    setup = eb.Setup(batch=2, sequence=32, **changes)
    assert not witnesses.disagreements(model, setup)
    for plain in ({"rotary_percent": 100}, {"qk_norm": False}):
        assert eb.budget(model.replace(**plain), setup).phases != eb.budget(model, setup).phases


#: Llama-2-7B under each stage on 8 GPUs, Llama-3.1-8B on many, Mixtral on 64.
LARGE = [
    ("llama-2-7b", {"sharding": "zero1", "gpus": 8}),
    ("llama-2-7b", {"sharding": "zero2", "gpus": 8}),
    ("llama-2-7b", {"sharding": "zero3", "gpus": 8}),
    ("llama-3.1-8b", {"sharding": "zero3", "gpus": 8, "sharding_units": "block+ends", "checkpointing": "operations"}),
    ("llama-3.1-8b", {"sharding": "zero3", "gpus": 1024, "checkpointing": "full"}),
    ("mixtral-8x7b", {"sharding": "zero3", "gpus": 64, "checkpointing": "full"}),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "changes"), LARGE)
def test_real_models_on_many_gpus(name, changes):
    setup = eb.Setup(batch=1, sequence=4096, precision="bf16-mixed", **changes)
    assert not witnesses.disagreements(eb.model(name, code="reference"), setup)


@pytest.mark.parametrize("checkpointing", ["none", "full", "operations"])
def test_whole_gradients_of_more_blocks_than_are_traced(checkpointing):
    """In one unit all blocks' gradients are cast as it is passed: each block's, though a few stand for all."""
    model = eb.Model(layers=9, width=8, heads=2, vocabulary=101, positions=32)
    setup = eb.Setup(
        batch=2,
        sequence=16,
        precision="bf16-mixed",
        sharding="zero3",
        gpus=2,
        sharding_units="model",
        accumulation=2,
        no_sync=True,
        checkpointing=checkpointing,
    )
    assert not witnesses.disagreements(model, setup)


def test_no_model_of_the_catalog_gets_a_number_of_another_architecture():
    """Each model is refused by name, or its small twin agrees with the dry run."""
    agreed = 0
    for name, model in models("reference").items():
        setup = eb.Setup(batch=1, sequence=16)
        if model.family is None and untrained(model):
            with pytest.raises(ValueError, match=rf"Model\.\w+: .*{name}.*eb.dry_run"):
                eb.budget(model, setup)
        elif name not in ("gpt2-large", "gpt2-xl"):
            agreed += 1
            assert not witnesses.disagreements(model.replace(layers=1 + model.dense_layers), setup, (1,)), name
    assert agreed > 30
