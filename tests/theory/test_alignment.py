"""Alignment's steps: by formula and by PyTorch's own, with the methods' real losses; and what a loss adds, by hand."""

from itertools import product

import pytest
import torch

import everybyte as eb
from everybyte.ask.objectives import Scorer
from everybyte.dryrun.alignment import dry_score
from everybyte.reference.objectives import losses
from everybyte.theory import alignment as passes
from everybyte.theory import letters

GPT = eb.model("gpt2").replace(name="small", layers=3, width=64, heads=4, vocabulary=1000, positions=64)
QWEN = eb.model("qwen2.5-7b", code="reference").replace(
    name="small qwen",
    layers=4,
    width=64,
    heads=4,
    kv_heads=2,
    head_width=16,
    ffn_width=96,
    vocabulary=1000,
    positions=64,
)
MIXTRAL = eb.model("mixtral-8x7b", code="reference").replace(
    name="small mixtral",
    layers=4,
    width=64,
    heads=4,
    kv_heads=2,
    head_width=16,
    ffn_width=96,
    expert_width=96,
    vocabulary=1000,
    positions=64,
)
SETUP = eb.Setup(batch=2, sequence=32, precision="bf16-mixed")
EVERY = [
    ("ppo", None),
    ("grpo", None),
    ("grpo", "before"),
    ("value", None),
    ("dpo", "before"),
    ("dpo", "first"),
    ("dpo", "after"),
]


def agree(model, how, setup):
    objective = eb.Objective(model, *how)
    predicted, counted = eb.budget(objective, setup), eb.dry_run(objective, setup)
    found = eb.compare(predicted, counted)
    assert found.agree, {what: by for what, by in found.differences.items() if by}
    assert predicted.peak_at == counted.peak_at
    return predicted


@pytest.mark.parametrize("how", EVERY)
@pytest.mark.parametrize("model", [GPT, QWEN], ids=lambda m: m.name)
def test_formula_and_dry_run_agree_on_every_loss(model, how):
    agree(model, how, SETUP)


@pytest.mark.parametrize(
    "model, how, changes",
    [
        (QWEN, ("dpo", "after"), {"precision": "bf16-master"}),
        (GPT, ("value", None), {"precision": "fp32"}),
        (QWEN, ("grpo", None), {"precision": "bf16", "checkpointing": "full"}),
        (GPT, ("dpo", "after"), {"precision": "fp16-mixed", "attention": "eager", "checkpointing": "selective"}),
        (GPT, ("dpo", "first"), {"accumulation": 3, "batch": 1}),
        (QWEN, ("ppo", None), {"gpus": 4, "sharding": "zero3", "precision": "bf16-master"}),
        (GPT, ("dpo", "before"), {"gpus": 8, "sharding": "zero2", "checkpointing": "full"}),
        (QWEN, ("value", None), {"gpus": 4, "sharding": "zero3", "accumulation": 2}),
        (GPT, ("value", None), {"gpus": 2}),
        (GPT, ("grpo", None), {"gpus": 4, "sharding": "zero1"}),
    ],
    ids=lambda value: getattr(value, "name", None) or str(value),
)
def test_they_agree_with_switches_and_on_several_gpus(model, how, changes):
    agree(model, how, SETUP.replace(**changes))


@pytest.mark.parametrize("how", [("grpo", None), ("dpo", "first"), ("dpo", "after")])
def test_the_reference_of_adapters_is_the_policy_without_them(how):
    pytest.importorskip("peft")
    setup = SETUP.replace(adapters=eb.Lora(rank=4))
    found = agree(QWEN, how, setup)
    base = int(QWEN.parameters)
    assert found.phases["rest"] < 4 * base * 1.5  # no second model
    assert found.parts["parameters"] == eb.budget(QWEN, setup).parts["parameters"]


PRECISIONS = ["bf16-mixed", "bf16", "fp32", "fp16-mixed", "bf16-master"]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("attention", ["flash", "eager"])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("scorer", [False, True], ids=["log-probabilities", "scores"])
@pytest.mark.parametrize("model", [GPT, QWEN, MIXTRAL], ids=lambda m: m.name)
def test_a_frozen_model_scores_a_batch(model, scorer, precision, attention):
    """Without gradients, every operation: what lives while it runs."""
    setup, model = SETUP.replace(precision=precision, attention=attention), Scorer(model) if scorer else model
    course, values, counted = passes.scoring(model, setup), letters(model, setup), dry_score(model, setup)
    (_, rest, _), *lines = course.at(values).unrolled()
    assert sum(rest.values()) == counted.rest
    assert [sum(live.values()) for operation, live, _ in lines if operation.taken] == counted.lived
    assert course.at(values).budget().peak == counted.peak


def test_scoring_stands_beside_the_others():
    """GRPO's reference: its largest moment above what every model keeps between steps."""
    found, alone = eb.align("grpo", QWEN, SETUP, reference="before"), dry_score(QWEN, SETUP)
    between = sum(found.held["reference"].values()) + found.steps["policy"].phases["rest"]
    assert found.scoring == {"reference": between + alone.peak - alone.rest}
    assert list(eb.align("ppo", QWEN, SETUP).scoring) == ["reference", "reward model"]
    for other in (
        eb.align("grpo", QWEN, SETUP.replace(gpus=4, sharding="zero3"), reference="before", frozen="sharded"),
        eb.align("dpo", QWEN, SETUP),
    ):
        assert other.scoring == {}


def test_published_dimensions():
    """The whole GPT-2, and Qwen2.5's vocabulary, whose logits are most of the step."""
    agree(eb.model("gpt2"), ("dpo", "after"), eb.Setup(batch=1, sequence=256, precision="bf16-mixed"))
    agree(
        eb.model("qwen2.5-0.5b", code="reference"),
        ("grpo", None),
        eb.Setup(batch=1, sequence=256, precision="bf16-master"),
    )


#: Bytes a logit at the peak. Without a reference in the step: the log-probabilities that forward saved, gather's table, and
#: log-softmax's gradient. With one after the policy: those saved, and the reference's logits, their copy in fp32, their
#: log-probabilities.
BY_HAND = {
    ("bf16-mixed", "before"): 4 + 4 + 4, ("bf16-mixed", "after"): 4 + 2 + 4 + 4,
    ("bf16", "before"): 2 + 2 + 2, ("bf16", "after"): 2 + 2 + 2,
    ("fp32", "before"): 4 + 4 + 4, ("fp32", "after"): 4 + 4 + 4,
}  # fmt: skip


@pytest.mark.parametrize("precision, reference", BY_HAND, ids=str)
def test_what_a_logit_takes_at_the_peak(precision, reference):
    wide = QWEN.replace(vocabulary=8000)
    wider = QWEN.replace(vocabulary=9000)
    setup = SETUP.replace(precision=precision)
    found = [eb.budget(eb.Objective(m, "dpo", reference), setup).parts["loss"] for m in (wide, wider)]
    logits = 1000 * 2 * setup.batch * setup.sequence  # two sequences a pair
    # In 16 bits without autocast the head's own backward, whose input gradient has no logit, may hold the peak's place.
    assert found[1] - found[0] == BY_HAND[precision, reference] * logits


def test_a_reference_first_costs_its_weights_alone():
    objective = eb.Objective(QWEN.replace(vocabulary=8000), "dpo", "first")
    first = eb.budget(objective, SETUP)
    before = eb.budget(eb.Objective(objective.model, "dpo", "before"), SETUP)
    after = eb.budget(eb.Objective(objective.model, "dpo", "after"), SETUP)
    weights = 2 * int(objective.model.parameters)
    given = 4 * 2 * SETUP.batch  # of a pair two log-probabilities in fp32
    assert first.peak - before.peak == weights - given
    assert after.peak > first.peak and after.peak_at == "loss forward"


def test_the_losses_are_the_papers():
    """By hand, on numbers: what the dry run runs is what it says."""
    generator = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(4, 3, 11, generator=generator), torch.randint(11, (4, 3), generator=generator)
    log_p, mask = losses.log_probabilities(logits, targets), torch.ones(4, 3, dtype=torch.bool)
    for b, s in product(range(4), range(3)):
        expected = logits[b, s].softmax(0)[targets[b, s]].log()
        assert torch.isclose(log_p[b, s], expected)
    whole, reference = losses.of_sequences(log_p, mask), torch.zeros(4)
    margins = [0.1 * (whole[0] - whole[2]), 0.1 * (whole[1] - whole[3])]
    by_hand = sum(torch.log1p(torch.exp(-m)) for m in margins) / 2
    assert torch.isclose(losses.preference(whole, reference), by_hand)
    # The policy as it was: no ratio but 1, so the loss is minus the mean advantage, and no divergence.
    advantages = torch.randn(4, 3, generator=generator)
    assert torch.isclose(losses.surrogate(log_p, mask, log_p, advantages, log_p), -advantages.mean(), atol=1e-6)
    # Far above the old one a good token's ratio is clipped to 1.2.
    assert torch.isclose(losses.surrogate(log_p, mask, log_p - 5, torch.ones(4, 1)), torch.tensor(-1.2))
    values, returns = torch.zeros(4, 3), torch.ones(4, 3)
    assert torch.isclose(losses.clipped_square(values, mask, values, returns), torch.tensor(0.5))


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: eb.Objective(GPT, "kto"), "Objective.method: 'kto' is unknown; allowed: dpo, ppo, grpo, value"),
        (lambda: eb.Objective("gpt2", "dpo"), "Objective.model: 'gpt2'; allowed: a Model"),
        (lambda: eb.Objective(GPT, "grpo", "after"), "Objective.reference: 'after' with grpo"),
        (lambda: eb.budget(eb.Objective(GPT, "dpo"), SETUP.replace(dropout=0.1)), "Setup.dropout: 0.1 with objective 'dpo'"),
        (lambda: eb.dry_run(eb.Objective(GPT, "ppo"), SETUP.replace(loss="chunked")), "Setup.loss: 'chunked' with objective 'ppo'"),
        (lambda: eb.budget(eb.Objective(GPT, "dpo"), SETUP.replace(gpus=2)), "allowed: one GPU, or Objective.reference 'before'"),
        (lambda: eb.dry_run(eb.Objective(GPT, "dpo"), SETUP, batch=(1,)), "dry_run.batch: a tuple with small, dpo"),
        (lambda: eb.budget(eb.Objective(eb.model("bert-base"), "ppo"), SETUP), "Model.causal: False of bert-base .* with objective 'ppo'"),
        (lambda: eb.budget(eb.Objective(GPT, "value"), SETUP.replace(adapters=eb.Lora())), "Setup.adapters: .* with objective 'value'"),
        (lambda: eb.budget(eb.Objective(GPT, "ppo"), SETUP.replace(sequence=65)), "Setup.sequence: 65 is more than the 64 positions"),
        (lambda: eb.plan(eb.Objective(GPT, "dpo"), SETUP, "l4"), "plan.model: small, dpo"),
    ],
    ids=lambda value: None if callable(value) else value.split(":")[0],
)  # fmt: skip
def test_what_is_not_derived_is_refused_by_name(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_the_largest_batch_of_pairs():
    objective, setup = eb.Objective(eb.model("gpt2"), "dpo"), eb.Setup(sequence=512, precision="bf16-mixed")
    found = eb.fit(objective, setup, "rtx-4090")
    assert found.value and found.peak <= found.usable
    assert eb.budget(objective, setup.replace(batch=found.value), rounding=512).peak == found.peak
    alone = eb.fit(eb.Objective(objective.model, "dpo", "before"), setup, "rtx-4090")
    assert alone.value > found.value
