"""Megatron's and DeepSpeed's own loops over 16-bit weights: 18 and 20 bytes a parameter, predicted and counted."""

import grid
import pytest
import witnesses
from agreeing import agree

import everybyte as eb
from everybyte.ask.choices import LIBRARIES
from everybyte.catalog.weights import buffered

GPT = eb.Model(name="a GPT", layers=3, width=48, heads=2, vocabulary=1001, positions=64)
ODD = GPT.replace(name="an odd number of weights", ffn_width=101, tied=False)
LLAMA = eb.model("llama-3.1-8b", code="reference").replace(
    layers=3, width=64, heads=4, kv_heads=2, vocabulary=101, ffn_width=176, head_width=16
)
GEMMA = eb.model("gemma-2b", code="reference").replace(
    layers=2, width=64, heads=4, kv_heads=1, head_width=16, vocabulary=101, ffn_width=176
)
SETUP = eb.Setup(batch=2, sequence=16)


@pytest.mark.parametrize("precision", LIBRARIES)
@pytest.mark.parametrize("changes", [{}, {"accumulation": 3}, {"checkpointing": "full", "optimizer": "adam"}])
def test_the_theory_is_the_library_s_loop(precision, changes):
    pytest.importorskip("torch")
    assert ODD.parameters % 2
    for model in (GPT, ODD, LLAMA, GEMMA):
        assert not witnesses.disagreements(model, SETUP.replace(precision=precision, **changes)), model.name


@pytest.mark.sampled(2)
@pytest.mark.parametrize("start", range(0, 200, 4))
def test_any_step_of_a_library_to_the_byte(start):
    pytest.importorskip("torch")
    agree(grid.library, range(start, start + 4), "block")


@pytest.mark.parametrize(
    ("precision", "rest", "after_backward", "step"), [("bf16-megatron", 18, 18, 18), ("bf16-deepspeed", 18, 20, 20)]
)
def test_bytes_of_each_parameter(precision, rest, after_backward, step):
    """Where the book's own loop needs 24 in the step. DeepSpeed's has one cast gradient besides, of the largest tensor."""
    model = eb.model("gpt2")
    budget, numbers = eb.budget(model, SETUP.replace(precision=precision, batch=1, sequence=1)), model.parameters
    for phase, each in (("rest", rest), ("after_backward", after_backward)):
        assert abs(budget.phases[phase] - each * numbers) < 4 * 148 + 4 + 18  # counters of steps, the loss, a token
    largest = 4 * 50257 * 768 * (precision == "bf16-deepspeed")
    assert abs(budget.phases["step"] - step * numbers - largest) < 4 * 148 + 4 + 18
    own = eb.budget(model, SETUP.replace(precision="bf16-master", batch=1, sequence=1))
    assert own.phases["step"] >= 24 * numbers


@pytest.mark.parametrize("gpus", [1, 3, 64])
def test_megatron_s_distributed_optimizer_has_six_bytes_and_a_share_of_twelve(gpus):
    """Of each number in its buffers: a weight in bf16, a gradient in fp32, and on each GPU its share of masters and states."""
    model = ODD.replace(vocabulary=1000)
    found = eb.budget(model, SETUP.replace(precision="bf16-megatron", sharding="zero1", gpus=gpus))
    padded = buffered(model, gpus)
    assert model.parameters < padded < model.parameters + 64 * 40 + 128 * gpus and padded % gpus == padded % 128 == 0
    assert found.phases["rest"] == 6 * padded + 12 * padded // gpus + 4  # a counter of steps


def test_a_library_on_several_gpus_divides_its_optimizer():
    with pytest.raises(
        ValueError, match=r"^Setup\.gpus: 8 with precision 'bf16-megatron' is not derived; allowed: .*'zero1'"
    ):
        eb.Setup(precision="bf16-megatron", gpus=8)
    for changes in ({"precision": "bf16-deepspeed"}, {"mesh": eb.Mesh(tensor=2)}):
        with pytest.raises(ValueError, match=r"^Setup\.(gpus: 8|mesh: tensor=2) with precision"):
            eb.Setup(**{"precision": "bf16-megatron", "gpus": 8, "sharding": "zero1"} | changes)


@pytest.mark.parametrize("precision", LIBRARIES)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_it_trains_as_the_book_s_loop_does(precision, accumulation):
    """The same weights after real steps, to the bit: only where gradients add up in fp32 is another place."""
    torch = pytest.importorskip("torch")
    from everybyte.reference import GPT as Reference
    from everybyte.reference import Trainer
    from everybyte.reference.step import random_batch

    def trained(precision):
        setup = SETUP.replace(
            precision="bf16-master", optimizer_impl="fused", accumulation=accumulation,
            master_gradients="fp32" if precision == "bf16-master" else "bf16",
        ).replace(**{"precision": precision} if precision != "bf16-master" else {})  # fmt: skip
        torch.manual_seed(0)
        trainer = Trainer(Reference(ODD, setup).initialize(), setup)
        for _ in range(4):
            trainer.step(random_batch(ODD.vocabulary, setup, "cpu"))
        return [p.detach().clone() for p in trainer.module.parameters()]

    for mine, own in zip(trained(precision), trained("bf16-master"), strict=True):
        assert mine.dtype is torch.bfloat16
        assert torch.equal(mine, own)


@pytest.mark.parametrize("precision", LIBRARIES)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus": 2}, r"^Setup\.gpus: 2 with precision '{}'.*allowed: 1, .* or 'bf16-master'"),
        ({"sharding": "zero2"}, r"^Setup\.sharding: 'zero2' with precision '{}'.*'none'"),
        ({"optimizer": "sgd"}, r"^Setup\.optimizer: 'sgd' with precision '{}'.*adamw, adam"),
        ({"optimizer_impl": "foreach"}, r"^Setup\.optimizer_impl: 'foreach' with precision '{}'.*'fused'"),
        ({"adapters": eb.Lora(dtype="bf16")}, r"^Setup\.adapters: .* with precision '{}'.*'bf16-master'"),
        ({"master_gradients": "fp32"}, r"^Setup\.master_gradients: 'fp32' needs precision 'bf16-master', not '{}'"),
    ],
)
def test_what_does_not_go_with_a_library_is_named(precision, changes, message):
    with pytest.raises(ValueError, match=message.format(precision)):
        eb.Setup(precision=precision, **changes)


@pytest.mark.parametrize("precision", LIBRARIES)
def test_fit_plan_and_formulas(precision):
    setup, gpt2 = eb.Setup(precision=precision, optimizer_impl="fused"), eb.model("gpt2")
    assert eb.fit(gpt2, setup, "rtx-4090").fits
    best = eb.plan(gpt2, setup.replace(batch=64), eb.gpu("rtx-4090")).best
    assert best is not None and best.setup.precision == precision
    with pytest.raises(ValueError, match=rf"^formula optimizer\.states: Setup\.precision: '{precision}'.*eb\.budget"):
        eb.formula("optimizer.states").at(gpt2, setup)
    with pytest.raises(ValueError, match=rf"^Setup\.precision: '{precision}' on t4, which has no bf16; allowed: fp32"):
        eb.fit(gpt2, setup, "t4")
    assert eb.Setup().replace(precision=precision).optimizer_impl == "fused"
