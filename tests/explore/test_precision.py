"""Chapter 21's explorer: in every precision its peak is the budget's, part by part, wherever its controls go."""

import random
from pathlib import Path

import pytest

import everybyte as eb
from everybyte import explore
from everybyte.ask.choices import COMMON_OPTIMIZERS, MASTER_GRADIENTS, OPTIMIZER_IMPLS, PRECISIONS
from everybyte.explore.controls import precision_label

PAGE = Path(__file__).with_name("page.mjs").read_text(encoding="utf-8")
PLAY = """
import picture from "./picture.mjs";
import { play } from "./page.mjs";
export default ({ spec, state, steps }) => play(picture, spec, state, steps);
"""
KINDS = [(p, m) for p in PRECISIONS for m in (MASTER_GRADIENTS if p == "bf16-master" else ["bf16"])]
MODELS = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt2-nobias")


def states(explorer, setup, model):
    labels = {
        "model": model,
        "precision": precision_label(setup),
        "attention": setup.attention,
        "dropout": "dropout" if setup.dropout else "(no dropout)",
        "optimizer": setup.optimizer,
        "optimizer_impl": setup.optimizer_impl,
        "batch": f"{setup.batch:,}",
        "sequence": f"{setup.sequence:,}",
    }
    return explorer.state | {n: list(explorer._controls[n].options).index(label) for n, label in labels.items()}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: ", ".join(kind))
def test_the_peak_is_the_budget_s(kind, sample):
    explorer, chance = explore.precision(), random.Random(str(kind))
    for _ in sample(range(60), 20):
        setup = eb.Setup(
            batch=2 ** chance.randint(0, 10), sequence=2 ** chance.randint(1, 10), precision=kind[0], master_gradients=kind[1],
            attention=chance.choice(["flash", "eager"]), dropout=chance.choice([0, 0.1]),
            optimizer=chance.choice(COMMON_OPTIMIZERS), optimizer_impl=chance.choice(list(OPTIMIZER_IMPLS)),
        )  # fmt: skip
        model = chance.choice(MODELS)
        values = explorer.values(states(explorer, setup, model))
        budget = eb.budget(eb.model(model, code="reference"), setup)
        where, parts = explorer.kind.highest(values)
        assert sum(parts.values()) == budget.peak, setup
        assert {p: x for p, x in parts.items() if x} == {p: x for p, x in budget.parts.items() if x}, setup
        assert where == budget.peak_at, setup


@pytest.mark.parametrize(
    ("preset", "said"),
    [
        ("XL, autocast, flash", "45.35 GiB in all. 57.9 % of the 78.38 GiB of NVIDIA H100 SXM5 80 GB, usable"),
        ("XL, autocast, eager", "101.80 GiB in all. 23.42 GiB more than"),
        ("eager with dropout", "112.35 GiB in all."),
        ("XL, one short sequence", "The peak is in optimizer step."),
    ],
)
def test_the_presets_are_what_they_are_called(preset, said):
    explorer = explore.precision()
    assert said in explorer.describe(explorer.state | explorer.presets[preset])


def test_a_peak_that_moves_is_said(node):
    explorer = explore.precision(eb.model("gpt2-xl"), eb.Setup(precision="fp32"))
    batches, precisions = (list(explorer._controls[n].options) for n in ("batch", "precision"))
    steps = [{"c_precision": precisions.index("bf16-mixed")}, {"c_batch": batches.index("1")}]
    data = {"spec": explorer.picture.spec, "state": explorer.state, "steps": steps}
    _, mixed, moved = node(PLAY, data, picture=explorer.source, page=PAGE)["seen"]
    assert mixed["sentence"].startswith("Precision fp32 → bf16-mixed: 16-bit casts of weights 0 B → 2.90 GiB; ")
    assert "total 59.65 GiB → 45.35 GiB." in mixed["sentence"] and "The peak moves" not in mixed["sentence"]
    assert moved["sentence"].endswith("The peak moves from loss backward to optimizer step.")


def test_what_it_does_not_cover_is_refused():
    own = eb.Model(name="own", layers=2, width=64, heads=2, vocabulary=100)
    for model in (own, eb.model("llama-2-7b", code="reference")):
        with pytest.raises(ValueError, match=r"precision\.model: .* allowed: gpt2"):
            explore.precision(model)
