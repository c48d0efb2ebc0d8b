"""Optimizers whose states or temporaries have other sizes than the weights, held to their own code, byte for byte."""

import sys

import grid
import pytest

import everybyte as eb
from everybyte.formulas import formula
from everybyte.setup import OPTIMIZERS, PRECISIONS, SUMMED

GPT = eb.Model(name="a GPT", layers=4, width=80, heads=2, vocabulary=2001, positions=32, tied=False)
LLAMA = eb.model("llama-3.1-8b").replace(
    layers=5, width=64, heads=4, kv_heads=2, vocabulary=101, ffn_width=176, head_width=16
)
MIXTRAL = eb.model("mixtral-8x7b").replace(
    layers=2, width=64, heads=4, kv_heads=2, head_width=16, vocabulary=101, ffn_width=48, experts=4, expert_width=24
)
GEMMA = eb.model("gemma-2b").replace(
    layers=2, width=64, heads=4, kv_heads=1, head_width=16, vocabulary=101, ffn_width=176
)
OTHERS = [(name, impl) for name, row in OPTIMIZERS.items() if not row.common for impl in row.impls]


def needs(optimizer):
    if package := OPTIMIZERS[optimizer].package:
        pytest.importorskip(package.replace("-", "_"))


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("optimizer", "impl"), OTHERS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_theory_is_the_optimizer_s_own_code(optimizer, impl, precision):
    needs(optimizer)
    setup = eb.Setup(batch=1, sequence=8, precision=precision, optimizer=optimizer, optimizer_impl=impl)
    for model in (GPT, LLAMA, MIXTRAL, GEMMA):
        assert not grid.disagreements(model, setup), model.name


@pytest.mark.parametrize("name", ["gpt2"])
@pytest.mark.parametrize("optimizer", ["adafactor", "muon", "paged-adamw8bit"])
def test_whole_models(name, optimizer):
    needs(optimizer)
    setup = eb.Setup(batch=1, sequence=128, precision="bf16-mixed", optimizer=optimizer, checkpointing="full")
    assert not grid.disagreements(eb.model(name), setup)


#: Of GPT-2 124M, in fp32. Adafactor's factors, Muon's one state for each matrix of a block: torch's own; 8 bits: bitsandbytes'.
STATES = {"adafactor": 1_286_468, "adamw8bit": 253_494_680, "lion": 4 * 124_439_808}


@pytest.mark.parametrize("optimizer", STATES)
def test_states_of_gpt2(optimizer):
    assert (
        eb.budget(eb.model("gpt2"), eb.Setup(batch=1, optimizer=optimizer)).moments["rest"]["optimizer"]
        == STATES[optimizer]
    )


def test_paged_states_stand_on_neither_side_of_the_peak():
    """What is paged is told apart: no counter of the GPU's shows it."""
    usual, paged = (
        eb.budget(eb.model("gpt2"), eb.Setup(batch=1, optimizer=o)) for o in ("adamw8bit", "paged-adamw8bit")
    )
    assert not usual.host and paged.host["optimizer"] == 248_636_928
    assert usual.moments["rest"]["optimizer"] - paged.moments["rest"]["optimizer"] == paged.host["optimizer"]


@pytest.mark.parametrize("optimizer", [name for name, _ in OTHERS])
def test_a_formula_of_whole_states_refuses_them(optimizer):
    with pytest.raises(ValueError, match=rf"^Setup\.optimizer: .*{optimizer!r}.*eb.budget"):
        formula("optimizer.states").at(eb.model("gpt2"), eb.Setup(optimizer=optimizer))


@pytest.mark.parametrize(
    ("optimizer", "package"),
    [("adamw8bit", "bitsandbytes"), ("paged-adamw8bit", "bitsandbytes"), ("lion", "lion_pytorch")],
)
def test_a_package_that_is_not_there_is_named(monkeypatch, optimizer, package):
    monkeypatch.setitem(sys.modules, package, None)
    missing = rf"^Setup\.optimizer: {optimizer!r} needs {package.replace('_', '.')}.*everybyte\[adapters\]"
    with pytest.raises(ValueError, match=missing):
        eb.dry_run(GPT, eb.Setup(batch=1, sequence=8, optimizer=optimizer))


@pytest.mark.parametrize("name", ["gpt2", "opt-1.3b", "llama-3.1-8b", "mixtral-8x7b"])
@pytest.mark.parametrize("optimizer", ["lion", "adafactor", "muon", "adamw8bit"])
def test_the_named_formulas_are_the_theory_s(name, optimizer):
    model, each = eb.model(name), formula(f"states.{optimizer}")
    for precision in ("fp32", "bf16", "bf16-master"):
        setup = eb.Setup(batch=1, sequence=1, optimizer=optimizer, precision=precision)
        master = formula("optimizer.master")
        for rounding, said in ((1, (each, master)), (512, (each.rounded_up(), master.rounded_up()))):
            predicted = sum(f.at(model, setup, rounding=rounding) for f in said)
            assert predicted == eb.budget(model, setup, rounding).moments["rest"]["optimizer"]


@pytest.mark.parametrize("optimizer", SUMMED)
def test_what_is_summed_alone_says_where(optimizer):
    with pytest.raises(
        ValueError, match=rf"^Setup\.optimizer: {optimizer!r} is not derived: chapter 24 sums its states; allowed: sgd"
    ):
        eb.Setup(optimizer=optimizer)


def test_what_nothing_prices_still_fits_or_not():
    tight = eb.fit(eb.model("gpt2-xl"), eb.Setup(optimizer="muon"), eb.gpu("t4"))
    assert not tight.fits and tight.nearest_setup is None and tight.nearest_gpu
    assert eb.fit(eb.model("gpt2-xl"), eb.Setup(optimizer="adafactor"), eb.gpu("rtx-3090")).fits
