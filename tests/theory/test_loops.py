"""Steps of training loops: what the loop keeps, where it drops gradients, how it clips them; on the tape, and run by PyTorch."""

from contextlib import suppress
from random import Random

import grid
import pytest
from agreeing import to_the_byte
from small_decoders import TRAINED, small

import everybyte as eb
from everybyte.ask.choices import CHOICES, LOOPS
from everybyte.theory.budget import not_derived

pytest.importorskip("transformers")
FIELDS = ("outputs", "zero_grad", "clip")
SMALL = eb.Model(name="small", layers=3, width=48, heads=4, vocabulary=257, positions=64)


def drawn(seed):
    """A small model of the book's or of transformers' code, and a setup with any loop; None where they do not go together."""
    draw = Random(f"loops {seed}")
    if draw.random() < 0.5:
        model = small(draw.choice(TRAINED), seed).replace(code="transformers")
    else:
        model = draw.choice([grid.anything, grid.llama])(seed)[0]
    fields = {
        "batch": draw.choice([1, 2, 3]), "sequence": draw.choice([1, 8, 17, 32]), "accumulation": draw.choice([1, 1, 2, 5]),
        "precision": draw.choice(["fp32", "bf16", "bf16-mixed", "fp16-mixed", "bf16-master"]),
        "checkpointing": draw.choice(["none", "full"]), "optimizer": draw.choice(["adamw", "sgd"]),
        "optimizer_impl": draw.choice(["foreach", "fused"]), "loop": draw.choice(list(LOOPS)),
    }  # fmt: skip
    if fields["loop"] == "plain":
        fields |= {name: draw.choice(CHOICES[name]) for name in FIELDS}
    if draw.random() < 0.5:
        fields |= {"gpus": draw.choice([1, 2, 3, 8]), "sharding": draw.choice(["none", "zero1", "zero2", "zero3"])}
        fields |= {"sharding_units": draw.choice(["block", "model"]), "no_sync": draw.random() < 0.3}
        fields |= {"buckets": draw.choice(["copies", "views"]), "replicas": draw.choice([1, 1, 2])}
    for name in ("no_sync", "buckets", "replicas", "sharding_units", "optimizer_impl"):
        with suppress(ValueError):
            setup = eb.Setup(**fields)
            setup.check_model(model)
            return None if not_derived(model, setup) else (model, setup)
        fields.pop(name, None)
    return None


@pytest.mark.sampled(16)
@pytest.mark.parametrize("seed", [209, *range(200)])  # 209: the shares of one GPU alone
def test_random_loops_agree_to_the_byte(seed):
    found = drawn(seed)
    if found is None:
        pytest.skip("not derived")
    to_the_byte(*found)


@pytest.mark.parametrize(
    "changes", [{}, {"precision": "fp16-mixed", "accumulation": 3}, {"gpus": 2, "sharding": "zero3"}], ids=str
)
def test_the_usual_loop_is_the_references_step(changes, monkeypatch):
    setup = eb.Setup(batch=2, sequence=24, **changes)
    usual = eb.dry_run(SMALL, setup)
    monkeypatch.setattr(eb.Setup, "looped", True)
    looped = eb.dry_run(SMALL, setup)
    assert looped.timeline() == usual.timeline() and looped.phases == usual.phases and looped.peak == usual.peak


def test_what_a_loop_costs():
    """Kept logits are two bytes each more in bf16, twelve become fourteen; gradients that live through forward are all of them."""
    llama = small("llama", 3).replace(code="transformers", vocabulary=30_000, layers=1)
    setup = eb.Setup(batch=3, sequence=64, precision="bf16", optimizer="sgd")
    found = {name: eb.budget(llama, setup.replace(outputs=name)) for name in CHOICES["outputs"]}
    logits = setup.batch * setup.sequence * llama.vocabulary
    assert found["kept"].peak_at == found["dropped"].peak_at == "loss backward"
    assert found["kept"].peak - found["dropped"].peak == 2 * logits
    assert (
        0
        <= found["kept"].phases["rest"] - found["dropped"].phases["rest"] - 2 * logits
        < 17 * setup.batch * setup.sequence
    )
    start = eb.budget(llama, setup.replace(zero_grad="start"))
    assert (
        start.parts_at("rest")["gradients"]
        == start.parts_at("rest")["parameters"]
        > 0
        == start.parts_at("after_forward")["gradients"]
    )
    before = eb.budget(llama, setup.replace(zero_grad="backward"))
    assert before.parts_at("rest")["gradients"] == start.parts_at("rest")["gradients"]


def test_clipping_makes_norms_and_for_all_at_once_those_of_blocks():
    setup = eb.Setup(batch=1, sequence=1, precision="fp32", optimizer="sgd")
    free, loop, foreach = (
        eb.budget(SMALL, setup.replace(clip=clip)).phases["step"] for clip in ("none", "loop", "foreach")
    )
    tensors = 2 + 12 * SMALL.layers + 2
    assert loop - free == 4 * (2 * tensors + 1)
    assert foreach - free == max(4 * (2 * tensors + 1), 4 * 2 * tensors)


@pytest.mark.parametrize(
    "changes", [{"clip": "loop"}, {"clip": "foreach"}, {"clip": "foreach", "gpus": 3, "sharding": "zero3"}]
)
def test_norms_side_by_side_are_one_block(changes):
    setup = eb.Setup(batch=1, sequence=1, precision="fp32", optimizer="sgd", **changes)
    predicted, counted = (ask(SMALL, setup, rounding=512).phases["step"] for ask in (eb.budget, eb.dry_run))
    assert predicted == counted


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"loop": "nanogpt", "outputs": "dropped"}, "Setup.outputs: 'dropped' is not what loop 'nanogpt' does; allowed: 'kept', or loop 'plain'"),
        ({"outputs": "kept", "loss": "chunked"}, "Setup.loss: 'chunked' with outputs 'kept': there are no logits"),
        ({"clip": "loop", "gpus": 2, "sharding": "zero1"}, "Setup.sharding: 'zero1' with clip 'loop'"),
        ({"zero_grad": "start", "precision": "bf16-megatron"}, "Setup.precision: 'bf16-megatron' with loop 'plain'"),
        ({"loop": "torchtitan", "gpus": 2, "mesh": eb.Mesh(tensor=2)}, "Setup.mesh: .* with loop 'torchtitan'"),
        ({"loop": "lightning"}, "Setup.loop: 'lightning'"),
    ],
    ids=str,
)  # fmt: skip
def test_what_does_not_go_together_is_refused_by_name(changes, said):
    with pytest.raises(ValueError, match=said):
        eb.Setup(**changes)


@pytest.mark.parametrize("optimizer", ["adamw8bit", "paged-adamw8bit"])
def test_a_trainers_8_bit_states_of_embeddings_have_32(optimizer):
    pytest.importorskip("bitsandbytes")
    setup = eb.Setup(batch=1, sequence=8, precision="bf16", optimizer=optimizer, loop="trainer")
    for model in (SMALL.replace(vocabulary=2501), small("llama", 3).replace(code="transformers", vocabulary=2501)):
        to_the_byte(model, setup)
    usual = eb.budget(SMALL, setup.replace(loop="plain")).parts_at("rest")["optimizer"]
    wider = eb.budget(SMALL, setup).parts_at("rest")["optimizer"]
    numbers = 257 * 48  # the positions' states are few, and in fp32 anyway
    logged = 4 + 2  # a loss, and a norm
    assert wider - usual == 2 * (4 * numbers - numbers - 4 * -(-numbers // 256)) + logged


def test_another_loop_has_its_own_ways():
    nano = eb.Setup(loop="nanogpt")
    assert (nano.outputs, nano.zero_grad, nano.clip) == ("kept", "end", "foreach")
    assert nano.replace(loop="torchtitan") == eb.Setup(loop="torchtitan") and nano.replace(loop="plain") == eb.Setup()
    assert eb.Setup(clip="loop").replace(batch=2).clip == "loop" and eb.Setup(**nano.as_dict()) == nano
