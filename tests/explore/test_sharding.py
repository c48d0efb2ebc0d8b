"""Chapter 32's explorer: for any number of GPUs its peak is the budget's, part by part, wherever its controls go."""

import random

import pytest

import everybyte as eb
from everybyte import explore
from everybyte.ask.choices import COMMON_OPTIMIZERS, OPTIMIZER_IMPLS, PRECISIONS
from everybyte.explore.controls import gpus_label
from everybyte.explore.peaks import MOST

MODELS = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt2-nobias")
LLAMAS = ("llama-3.1-8b", "llama-3.2-1b", "llama-3.1-70b")
NAMED = [p for p in PRECISIONS if not PRECISIONS[p].loss_scaling]


def state(explorer, setup, model):
    labels = {
        "model": model,
        "precision": setup.precision,
        "gpus": gpus_label(setup.gpus),
        "attention": setup.attention,
        "dropout": "dropout" if setup.dropout else "(no dropout)",
        "optimizer": setup.optimizer,
        "optimizer_impl": setup.optimizer_impl,
        "batch": f"{setup.batch:,}",
        "sequence": f"{setup.sequence:,}",
    }
    return explorer.state | {n: list(explorer._controls[n].options).index(label) for n, label in labels.items()}


@pytest.fixture(scope="module")
def explorer():
    return explore.sharding(eb.model("gpt2-xl"))


@pytest.fixture(scope="module")
def llamas():
    return explore.sharding()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("precision", NAMED)
def test_the_peak_is_the_budget_s(explorer, precision, sample):
    chance = random.Random(precision)
    for _ in sample(range(60), 20):
        setup = eb.Setup(
            gpus=2 ** chance.randint(0, MOST.bit_length() - 1), sharding="zero3", precision=precision,
            batch=2 ** chance.randint(0, 10), sequence=2 ** chance.randint(1, 10),
            attention=chance.choice(["flash", "eager"]), dropout=chance.choice([0, 0.1]),
            optimizer=chance.choice(COMMON_OPTIMIZERS), optimizer_impl=chance.choice(list(OPTIMIZER_IMPLS)),
        )  # fmt: skip
        model = chance.choice(MODELS)
        budget = eb.budget(eb.model(model, code="reference"), setup)
        where, parts = explorer.kind.highest(explorer.values(state(explorer, setup, model)))
        assert (where, sum(parts.values())) == (budget.peak_at, budget.peak), (model, setup)
        assert {p: x for p, x in parts.items() if x} == {p: x for p, x in budget.parts.items() if x}, (model, setup)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("precision", NAMED)
def test_a_llama_s_peak_is_the_budget_s(llamas, precision, sample):
    chance = random.Random(precision)
    for _ in sample(range(40), 12):
        setup = eb.Setup(
            gpus=2 ** chance.randint(0, MOST.bit_length() - 1), sharding="zero3", precision=precision,
            batch=2 ** chance.randint(0, 6), sequence=2 ** chance.randint(1, 14), attention=chance.choice(["flash", "eager"]),
            optimizer=chance.choice(COMMON_OPTIMIZERS), optimizer_impl=chance.choice(list(OPTIMIZER_IMPLS)),
        )  # fmt: skip
        model = chance.choice(LLAMAS)
        budget = eb.budget(eb.model(model, code="reference"), setup)
        where, parts = llamas.kind.highest(llamas.values(state(llamas, setup, model)))
        assert (where, sum(parts.values())) == (budget.peak_at, budget.peak), (model, setup)
        assert {p: x for p, x in parts.items() if x} == {p: x for p, x in budget.parts.items() if x}, (model, setup)


def test_it_opens_on_llama_and_a_preset_about_no_model_leaves_it(llamas):
    assert llamas.describe().startswith(
        "bf16-mixed, llama-3.1-8b, 8 GPUs, flash, adamw, foreach, batch 1, sequence 4,096"
    )
    opened = explore.sharding(eb.model("llama-3.2-1b", code="reference"))
    found = {label: opened.describe(opened.state | preset).split(", ")[1] for label, preset in opened.presets.items()}
    assert found.pop("70B on 64") == "llama-3.1-70b" and set(found.values()) == {"llama-3.2-1b"}


@pytest.mark.parametrize(
    ("opened", "preset", "said"),
    [
        ("llamas", "one sequence on 64", "27.28 GiB in all."),
        ("llamas", "eight on each", "it does not fit"),
        ("llamas", "one short sequence", "The peak is in backward."),
        ("llamas", "70B on 64", "are left."),
        ("explorer", "XL, one sequence on 1,024", "2.93 GiB in all."),
        ("explorer", "GPT-2 on 4,096", "gathered weights 84.02 MiB"),
        ("explorer", "XL, one short sequence", "The peak is in backward."),
        ("explorer", "XL, fp32, eager", "it does not fit"),
    ],
)
def test_the_presets_are_what_they_are_called(request, opened, preset, said):
    explorer = request.getfixturevalue(opened)
    assert said in explorer.describe(explorer.state | explorer.presets[preset])


def test_a_bar_for_every_number_of_gpus(explorer):
    bars = [gpus_label(2**i) for i in range(13)]
    alt = explorer.figure().alt
    assert all(f"{label} " in alt for label in bars)


def test_what_it_does_not_cover_is_refused():
    for model in (
        eb.Model(name="own", layers=2, width=64, heads=2, vocabulary=100),
        eb.model("llama-2-7b", code="reference"),
    ):
        with pytest.raises(ValueError, match=r"sharding\.model: .* allowed: gpt2"):
            explore.sharding(model)
    with pytest.raises(ValueError, match=r"sharding\.model: llama-3\.1-8b in the code of 'transformers'; allowed: "):
        explore.sharding(eb.model("llama-3.1-8b"))
    with pytest.raises(ValueError, match=r"sharding\.model: llama-3\.1-8b with fields of its own; allowed: "):
        explore.sharding(eb.model("llama-3.1-8b", code="reference").replace(layers=4))
    with pytest.raises(ValueError, match="dropout: 'dropout' is unknown"):
        explore.sharding(setup=eb.Setup(gpus=8, sharding="zero3", dropout=0.1))
    with pytest.raises(ValueError, match="gpus: '6 GPUs' is unknown; allowed: 1 GPU, 2 GPUs"):
        explore.sharding(setup=eb.Setup(gpus=6, sharding="zero3"))
