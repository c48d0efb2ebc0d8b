"""What stands at rest and after the step: the formulas say what PyTorch counts, to the byte."""

import grid
import pytest
import witnesses

import everybyte as eb
from everybyte.ask.choices import COMMON_OPTIMIZERS, PRECISIONS
from everybyte.formulas import formula

SIZES = [eb.model(name) for name in grid.GPT2_SIZES]
#: No width is a multiple of 64, no vocabulary of 8, and nothing but the tables fills a 512-byte block.
ODD = eb.Model(name="odd", layers=2, width=100, heads=5, vocabulary=331, positions=1000)
#: Each changes which tensors there are.
VARIANTS = {
    "untied": ODD.replace(tied=False),
    "no biases": ODD.replace(qkv_bias=False, out_bias=False, ffn_bias=False, norm_bias=False),
    "narrow MLP": ODD.replace(ffn_width=130, layers=3),
    "one of each": eb.Model(name="one", layers=1, width=8, heads=1, vocabulary=2, positions=1000),
}
#: Every size with every precision, every optimizer in turn: a fifth of the sizes' whole product.
LATIN = [
    (model, eb.Setup(precision=precision, optimizer=COMMON_OPTIMIZERS[(i + j) % len(COMMON_OPTIMIZERS)]))
    for i, model in enumerate(SIZES)
    for j, precision in enumerate(PRECISIONS)
]


def name(value):
    if isinstance(value, eb.Model):
        return value.name
    usual = eb.Setup().as_dict()
    return "-".join(str(v) for k, v in value.as_dict().items() if v != usual[k] or k in ("precision", "optimizer"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("model", "setup"), LATIN, ids=name)
def test_the_gpt2_sizes_with_every_precision_and_optimizer(model, setup):
    assert witnesses.disagreements(model, setup) == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("optimizer", COMMON_OPTIMIZERS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_choice_on_odd_sizes(precision, optimizer):
    cases = list(grid.states([ODD], [(3, 1000)], [precision], [optimizer]))
    assert len(cases) == (18 if precision == "bf16-master" else 6)
    assert {name(s): found for m, s in cases if (found := witnesses.disagreements(m, s))} == {}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("model", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_other_architectures(model, precision):
    cases = grid.states([model], [(1, 7)], [precision], ["adamw"], ["fused"])
    assert {name(s): found for m, s in cases if (found := witnesses.disagreements(m, s))} == {}


def test_real_sizes_with_eager_attention_fused_adam_and_both_gradients():
    setup = eb.Setup(
        batch=3,
        sequence=1000,
        precision="bf16-master",
        optimizer_impl="fused",
        attention="eager",
        master_gradients="both",
    )
    assert witnesses.disagreements(eb.model("gpt2"), setup) == []


def test_the_whole_grid_has_every_size_precision_and_optimizer_once_for_each_other_choice():
    cases = list(grid.states())
    assert len(cases) == len({(m.name, str(s)) for m, s in cases}) == 4 * 2 * (4 + 3) * 4 * 3 * 2


def test_a_row_too_many_is_found_in_every_part_that_has_it(monkeypatch):
    real = eb.budget
    monkeypatch.setattr(
        eb, "budget", lambda m, *rest, **named: real(m.replace(vocabulary=m.vocabulary + 1), *rest, **named)
    )
    found = {
        text.split(",")[0].strip() for text in witnesses.disagreements(ODD, eb.Setup(batch=1, sequence=8), blocks=[1])
    }
    after_step = {f"{part} after_step" for part in ("parameters", "gradients", "optimizer")}
    assert found >= {"parameters rest", "optimizer rest", "rest", "after_step"} | after_step
    assert not found & {"gradients rest", "buffers rest", "activations after_step", "loss after_step"}


@pytest.mark.parametrize(
    ("precision", "gradients", "at_rest", "after_step"),
    [
        ("fp32", "bf16", 12, 16),
        ("bf16-mixed", "bf16", 12, 16),
        ("fp16-mixed", "bf16", 12, 16),
        ("bf16-master", "bf16", 14, 16),
        ("bf16-master", "fp32", 18, 18),
        ("bf16-master", "both", 18, 20),
        ("bf16", "bf16", 6, 8),
    ],
)
def test_bytes_per_parameter_as_the_book_states_them(precision, gradients, at_rest, after_step):
    setup = eb.Setup(batch=2, sequence=16, precision=precision, master_gradients=gradients)
    trace, scaler = eb.dry_run(ODD, setup), 8 * (precision == "fp16-mixed")
    assert formula("bytes_per_parameter").at(ODD, setup) == after_step
    assert trace.phases["rest"] == at_rest * ODD.parameters + scaler
    states = (trace.parts_at("after_step")[part] for part in ("parameters", "gradients", "optimizer"))
    assert sum(states) == after_step * ODD.parameters + scaler


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_is_left_over_after_the_step_is_the_batch_and_the_loss(precision):
    setup = eb.Setup(batch=3, sequence=1000, precision=precision)
    parts = eb.dry_run(ODD, setup).parts_at("after_step")
    left = sum(parts.values()) - parts["parameters"] - parts["gradients"] - parts["optimizer"]
    assert left == 2 * 8 * 3 * 1000 + (2 if PRECISIONS[precision].weights == "bf16" else 4)


def test_fused_adam_counts_steps_on_the_gpu_once_for_each_tensor():
    setup, gpt2 = eb.Setup(batch=1, sequence=8), eb.model("gpt2")
    fused = eb.dry_run(gpt2, setup.replace(optimizer_impl="fused"))
    assert fused.phases["rest"] - eb.dry_run(gpt2, setup).phases["rest"] == 4 * 148
