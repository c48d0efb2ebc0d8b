"""Chapter 25's explorer: each bar is the budget's peak, part by part, wherever its controls go."""

import random

import pytest

import everybyte as eb
from everybyte import explore
from everybyte.explore.peaks import AGAIN, DROPOUTS, MODELS, RANKS, TARGETS, WAYS, setup_of


def states(explorer, **labels):
    return explorer.state | {n: list(explorer._controls[n].options).index(label) for n, label in labels.items()}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", WAYS)
def test_the_peak_is_the_budget_s(way):
    explorer, chance = explore.adapters(), random.Random(way)
    for _ in range(12):
        model, targets, again = chance.choice(MODELS), chance.choice(list(TARGETS)), chance.choice(list(AGAIN))
        dropout, rank, batch, sequence = (
            chance.choice(list(DROPOUTS)),
            chance.choice(RANKS),
            2 ** chance.randint(0, 4),
            2 ** chance.randint(1, 14),
        )
        state = states(
            explorer, model=model, way=way, targets=targets, again=again, rank=f"rank {rank}", batch=f"{batch:,}",
            sequence=f"{sequence:,}", dropout=dropout,
        )  # fmt: skip
        setup = setup_of(way, targets, AGAIN[again], rank, DROPOUTS[dropout], batch=batch, sequence=sequence)
        budget = eb.budget(eb.model(model, code="reference"), setup)
        where, parts = explorer.kind.highest(explorer.values(state))
        assert {p: x for p, x in parts.items() if x} == {p: x for p, x in budget.parts.items() if x}, setup
        assert where == budget.peak_at, setup


@pytest.mark.parametrize(
    ("preset", "said"),
    [
        ("QLoRA on a card of 24 GB", "9.24 GiB in all. 39.6 % of"),
        ("the same without checkpointing", "26.33 GiB in all. 3.01"),
        ("rank 256", "17.03 GiB in all."),
    ],
)
def test_the_presets_are_what_they_are_called(preset, said):
    explorer = explore.adapters()
    assert said in explorer.describe(explorer.state | explorer.presets[preset])


@pytest.mark.parametrize("way", ("full fine-tuning, bf16", "QLoRA"))
def test_it_opens_on_llama_3_2_1b(way):
    model = eb.model("llama-3.2-1b", code="reference")
    explorer = explore.adapters(model)
    assert explorer.describe().startswith("llama-3.2-1b, QLoRA, ")
    budget = eb.budget(model, setup_of(way, again="full", batch=1, sequence=2048))
    where, parts = explorer.kind.highest(explorer.values(states(explorer, way=way, batch="1", sequence="2,048")))
    assert (where, {p: x for p, x in parts.items() if x}) == (
        budget.peak_at,
        {p: x for p, x in budget.parts.items() if x},
    )


def test_what_it_does_not_cover_is_refused():
    with pytest.raises(ValueError, match=r"adapters\.model: 'gpt2' .* allowed: llama-3\.1-8b"):
        explore.adapters(eb.model("gpt2"))
    with pytest.raises(ValueError, match=r"adapters\.model: llama-3\.1-8b in the code of 'transformers'; allowed: "):
        explore.adapters(eb.model("llama-3.1-8b"))
    with pytest.raises(ValueError, match=r"adapters\.model: llama-3\.1-8b with fields of its own; allowed: "):
        explore.adapters(eb.model("llama-3.1-8b", code="reference").replace(layers=4))
