"""The closed forms of tensor parallelism, against what PyTorch's step keeps, holds and sends."""

import pytest
from sympy import simplify

import everybyte as eb
from everybyte.formulas import formula
from everybyte.formulas.symbols import A, F, H, S, dropped, sequence_parallel, t, w
from everybyte.formulas.tensor_parallel import MEGATRON

GPT = eb.Model(name="gpt", layers=2, width=64, heads=8, vocabulary=4096, positions=32)
SETUP = eb.Setup(batch=3, sequence=32, precision="bf16")


def split(parts, sequence=True, loss=True, **changes):
    mesh = eb.Mesh(tensor=parts, sequence_parallel=sequence, loss_parallel=loss) if parts > 1 else eb.Mesh()
    return SETUP.replace(gpus=parts, mesh=mesh, **changes)


def test_megatron_s_numbers_are_special_cases():
    """Dropout's masks included: 34 bytes a number of the residual stream whole, 10 + 24/t, 34/t."""
    one = MEGATRON.expr.subs({F: 4 * H, w: 2, dropped: 1}) / (H * S * eb.formulas.symbols.B)
    assert simplify(one.subs(t, 1).subs(sequence_parallel, 1)) == 34
    assert simplify(one.subs(sequence_parallel, 0) - (10 + 24 / t)) == 0
    assert simplify(one.subs(sequence_parallel, 1) - 34 / t) == 0
    ours = formula("tensor.block").expr.subs({F: 4 * H, w: 2, dropped: 1, sequence_parallel: 1})
    beside = 16 / t + 4 * A / t
    once = (ours - 24) / (S * eb.formulas.symbols.B) - beside
    assert simplify(once / H - (34 / t + 4 * (1 - 1 / t))) == 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("parts", "sequence"), [(1, False), (2, True), (4, True), (8, True), (4, False)])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_what_a_block_keeps(parts, sequence, dropout):
    setup = split(parts, sequence, dropout=dropout)

    def after_forward(layers):
        return eb.dry_run(GPT.replace(layers=layers), setup).parts_at("after_forward")["activations"]

    assert after_forward(3) - after_forward(2) == formula("tensor.block").at(GPT, setup)


@pytest.mark.parametrize("parts", [2, 8])
def test_what_a_gpu_holds(parts):
    for model in (
        GPT,
        GPT.replace(norm_bias=False, out_bias=False, tied=False),
        eb.model("llama-3.1-8b", code="reference"),
    ):
        setup = split(parts)
        held = eb.budget(model, setup).parts_at("rest")["parameters"]
        assert held == 2 * formula("tensor.parameters").at(model, setup)
    with pytest.raises(ValueError, match="Model.qk_norm: True of qwen3-8b; allowed: False"):
        formula("tensor.parameters").at(eb.model("qwen3-8b", code="reference"), split(parts))


def sent(trace, parts):
    """Bytes that one GPU sends, ring by ring, by what each collective makes."""
    share = {
        "all_gather_into_tensor": (parts - 1) / parts,
        "reduce_scatter_tensor": parts - 1,
        "all_reduce": 2 * (parts - 1) / parts,
    }
    return sum(
        share.get(a.operation, 0) * a.bytes
        for a in trace.allocations
        if trace.operations[a.birth][1] != "optimizer step"
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sequence", [True, False])
@pytest.mark.parametrize("parts", [2, 8])
def test_what_a_block_sends(parts, sequence):
    setup = split(parts, sequence)
    two, three = (sent(eb.dry_run(GPT.replace(layers=n), setup), parts) for n in (2, 3))
    assert three - two == formula("tensor.sent").at(GPT, setup)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("parts", [2, 4, 8])
def test_the_loss_s_peak(parts, precision):
    """The large tensors: those of a GPU's logits at least, but for the head's own weight."""
    for loss in (True, False):
        setup = split(parts, loss=loss, precision=precision)
        expected = formula("tensor.loss").at(GPT, setup)
        trace = eb.dry_run(GPT, setup)
        rows = SETUP.batch * SETUP.sequence
        least = rows * GPT.vocabulary // parts * 2  # one tensor of a GPU's logits in 16 bits
        large = [a for a in trace.allocations if a.part == "loss" and a.bytes >= least and a.owner != "head"]
        most = max(
            sum(
                a.bytes
                for a in trace.allocations
                if a.part == "loss" and a.bytes >= least and a.birth <= i and (a.death is None or a.death >= i)
            )
            for i in {a.birth for a in large}
        )
        assert most == expected


def test_what_sharding_or_stages_divide_too_is_refused():
    llama, mixtral = eb.model("llama-3.1-8b", code="reference"), eb.model("mixtral-8x7b", code="reference")
    two = eb.Setup(gpus=4, sharding="zero3", precision="bf16", mesh=eb.Mesh(tensor=2))
    for name in ("tensor.whole", "tensor.parameters"):
        assert eb.formula(name).at(llama, two.replace(gpus=2, sharding="none")) > 0
        with pytest.raises(ValueError, match="zero3"):
            eb.formula(name).at(llama, two)
    eight = eb.Setup(gpus=8, precision="bf16", mesh=eb.Mesh(expert=8))
    assert eb.formula("experts.weights").at(mixtral, eight) > 0
    with pytest.raises(ValueError, match="zero3"):
        eb.formula("experts.weights").at(mixtral, eight.replace(gpus=16, sharding="zero3"))
