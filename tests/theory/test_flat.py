"""FSDP1, whose units are flat: held to PyTorch's own code, byte for byte; and what it has that FSDP2 has not."""

import grid
import pytest
from agreeing import agree, to_the_byte
from small_decoders import small

import everybyte as eb

MODEL = eb.model("gpt2", code="reference").replace(layers=3, width=64, heads=4, vocabulary=257, positions=64)
SETUP = eb.Setup(batch=2, sequence=32, precision="bf16-mixed", sharding="zero3", gpus=3, fsdp_version=1)
#: Numbers of a block, and of the rest.
BLOCK, ROOT = 12 * 64**2 + 13 * 64, (257 + 64 + 2) * 64


@pytest.mark.sampled(3)
@pytest.mark.parametrize("start", range(0, 60, 3))
def test_any_step_to_the_byte(start):
    agree(grid.flat, range(start, start + 3), "block")


@pytest.mark.parametrize("name", ["llama", "gemma2", "mixtral"])
def test_transformers_decoders_to_the_byte(name):
    pytest.importorskip("transformers")
    model = small(name, 1).replace(code="transformers")
    to_the_byte(model, SETUP.replace(sequence=16, sharding="zero2", checkpointing="full", optimizer_impl="loop"))


def test_what_stands_between_steps():
    """A piece of each flat tensor, filled up once; and of the gradients, which PyTorch lets go of as the next forward begins."""
    numbers = 3 * -(-BLOCK // 3) + -(-ROOT // 3)
    found = eb.budget(MODEL, SETUP)
    rest = found.parts_at("rest")
    assert rest["parameters"] == rest["gradients"] == 4 * numbers
    assert eb.budget(MODEL, SETUP.replace(fsdp_version=2)).parts_at("rest")["gradients"] == 0
    assert found.parts_at("after_forward")["gradients"] == 0


def test_a_unit_is_gathered_in_place():
    """FSDP2 gathers into a buffer and copies out of it; here the weights are views of the buffer."""
    setup = SETUP.replace(batch=1, sequence=1, precision="fp32", checkpointing="full", optimizer="sgd")
    flat, rows = (eb.budget(MODEL, setup.replace(fsdp_version=version)) for version in (1, 2))
    assert flat.parts["unsharded"] == 4 * 3 * (2 * -(-BLOCK // 3) + -(-ROOT // 3))
    assert flat.parts["communication"] == 0 < rows.parts["communication"]


def test_each_weight_begins_at_a_multiple_of_sixteen_bytes():
    """Of five rows of five numbers, in bf16: three more up to the next weight."""
    model = eb.Model(name="odd", layers=1, width=5, heads=1, vocabulary=11, positions=7, norm_bias=False)
    setup = SETUP.replace(gpus=2, precision="bf16", sequence=4, optimizer="sgd", attention="eager")
    to_the_byte(model, setup)
    root = (
        56 + 40 + 5 + 1
    )  # embeddings of 11 and 7 rows, a norm, the number that makes it even; the head is the embedding
    block = 8 + 80 + 16 + 32 + 8 + 8 + 104 + 24 + 104 + 5 + 1
    assert eb.budget(model, setup).parts_at("rest")["parameters"] == 2 * (root + block) // 2


def test_a_sum_of_whole_gradients_and_a_unit_of_its_size_are_told_apart():
    """Of many blocks under `no_sync`, in fp32, both are freed where one was made: a stand-in counted both for all blocks."""
    to_the_byte(MODEL.replace(layers=7), SETUP.replace(precision="fp32", accumulation=4, no_sync=True))


def test_reserved_bytes_are_refused():
    for found in (eb.budget(MODEL, SETUP), eb.dry_run(MODEL, SETUP)):
        with pytest.raises(
            ValueError, match=r"^Setup\.fsdp_version: 1 with reserved bytes is not derived.*everybyte rehearse"
        ):
            found.on("h200")


def test_blocks_of_two_kinds_are_counted_alone():
    pytest.importorskip("transformers")
    model = next(model for seed in range(20) if (model := small("deepseek_v3", seed)).dense_layers)
    with pytest.raises(ValueError, match=r"^Setup\.fsdp_version: 1 with .* of two kinds.*eb\.dry_run takes it"):
        eb.budget(model, SETUP.replace(sequence=16))


def test_another_gpu_is_counted_alone():
    with pytest.raises(ValueError, match=r"^budget\.rank: 1 .*allowed: 0; eb\.dry_run takes any"):
        eb.budget(MODEL, SETUP, rank=1)
    assert eb.dry_run(MODEL, SETUP, rank=2).phases["rest"] > 0
