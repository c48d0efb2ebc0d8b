"""Training runs on prose: the text, the schedule, clipping, seeds, several processes, and the record of it."""

import json
import math
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import everybyte as eb
from everybyte import draw, lab
from everybyte.lab import Measurement, Recipe, learning, recording
from everybyte.lab.grid import LONG, PROSE, SEEDS
from everybyte.lab.records import append, read
from everybyte.reference import GPT

TINY = eb.Model(name="tiny", layers=1, width=32, heads=2, vocabulary=256, positions=32)
SETUP = eb.Setup(batch=4, sequence=32, attention="eager")
SHORT = Recipe(steps=24, warm_up=4, learning_rate=3e-3, evaluations=3, windows=8)


def test_the_prose_is_long_and_plain_and_says_what_it_is():
    trained, unseen = learning.prose()
    text = bytes(torch.cat([trained, unseen]).tolist())
    assert len(text) == 1_567_800 > 2**20 and max(text) < 128 and 9 * len(unseen) - len(trained) in range(-10, 10)
    assert (
        text.startswith(b"EMMA") and b"truth universally acknowledged" in text and text.endswith(b"uniting them.\n\n\n")
    )
    assert b"gutenberg" not in text.lower() and b"copyright" not in text.lower()
    note = learning.PROSE.with_name("TEXT.md").read_text(encoding="utf-8")
    assert all(words in note for words in (learning.PROSE.name, "1,567,800", "Jane Austen", "public domain", "1817"))
    root = Path(__file__).resolve().parents[2]
    data = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["*"]
    assert all(any(path.match(p) for p in data) for path in (learning.PROSE, learning.PROSE.with_name("TEXT.md")))


def test_the_rate_rises_and_falls_along_half_a_cosine():
    rates = [LONG.rate(step) for step in range(LONG.steps)]
    assert rates[0] == pytest.approx(1e-5) and rates[99] == pytest.approx(1e-3) == max(rates)
    assert rates[:100] == sorted(rates[:100]) and rates[100:] == sorted(rates[100:], reverse=True)
    assert rates[-1] == pytest.approx(1e-4) and rates[549] == pytest.approx(5.5e-4, rel=2e-3)


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 9}, {"warm_up": 0}, {"warm_up": 1000}, {"learning_rate": 0}, {"clip": -1.0}, {"clip": True}, {"seed": -1},
        {"evaluations": 0}, {"evaluations": 1001}, {"windows": 0}, {"pretrained": -1},
    ],
)  # fmt: skip
def test_a_recipe_that_cannot_be_is_refused(changes):
    with pytest.raises(ValueError, match=rf"^Recipe\.{next(iter(changes))}: "):
        Recipe(**changes)


@pytest.mark.parametrize(
    ("model", "fields", "said"),
    [
        (TINY, {"sharding": "zero1", "gpus": 2}, "Setup.sharding"),
        (TINY, {"precision": "bf16-master", "master_gradients": "fp32"}, "Setup.master_gradients"),
        (TINY.replace(vocabulary=255), {}, "Model.vocabulary"),
        (TINY, {"sharding": "zero3", "gpus": 2}, "Setup.gpus"),
    ],
)
def test_what_cannot_be_trained_so_is_refused(model, fields, said):
    with pytest.raises(ValueError, match=f"^{said}: "):
        eb.measure(model, SETUP.replace(**fields), device="cpu", recipe=SHORT, alone=True)


def test_windows_are_the_prose_s_and_the_same_for_the_same_seed():
    text = bytes(learning.prose()[0].tolist())
    batch, again, other = (learning.training_batches(SETUP, seed) for seed in (0, 0, 1))
    tokens, targets = batch()
    assert tokens.shape == targets.shape == (4, 32) and tokens.dtype is torch.int64
    for row, following in zip(tokens.tolist(), targets.tolist(), strict=True):
        assert bytes([*row, following[-1]]) in text and row[1:] == following[:-1]
    assert torch.equal(tokens, again()[0]) and not torch.equal(tokens, other()[0])
    assert not torch.equal(tokens, batch()[0])


def test_two_ranks_share_what_one_would_take(monkeypatch):
    (whole, _), parts = learning.training_batches(SETUP, 3)(), []
    for rank in (0, 1):
        for name, value in {"is_initialized": True, "get_rank": rank, "get_world_size": 2}.items():
            monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
        parts.append(learning.training_batches(SETUP.replace(batch=2), 3)()[0])
    assert torch.equal(torch.cat(parts), whole)


def test_what_is_validated_on_is_never_trained_on_and_always_the_same():
    batches, unseen = learning.validation_batches(SETUP, 8), bytes(learning.prose()[1].tolist())
    assert [tokens.shape for tokens, _ in batches] == [(4, 32)] * 2
    assert all(bytes(row) in unseen for tokens, _ in batches for row in tokens.tolist())


def test_gradients_are_clipped_and_the_rate_is_the_recipe_s():
    learner = learning.Learner(GPT(TINY, SETUP).initialize(), SETUP, replace(SHORT, clip=1e-3))
    seen = []
    learner.optimizer.register_step_pre_hook(
        lambda optimizer, *_: seen.append(
            (math.sqrt(sum(float(w.grad.square().sum()) for w in learner.weights)), optimizer.param_groups[0]["lr"])
        )
    )
    batch = learning.training_batches(SETUP, 0)
    for _ in range(3):
        learner.step(batch)
    assert [norm for norm, _ in seen] == pytest.approx([1e-3] * 3, rel=1e-3)
    assert [rate for _, rate in seen] == pytest.approx([SHORT.rate(i) for i in range(3)])


@pytest.fixture(scope="module")
def learned():
    ways = {"fp32": SETUP, "full": SETUP.replace(checkpointing="full")}
    return lab.trainings(TINY, ways, SHORT, (0, 1), device="cpu")


def test_it_learns_and_says_what_it_did(learned):
    assert learned.live and learned.said == "Measured here, on the CPU" and list(learned.found) == ["fp32", "full"]
    one, other = learned.learned["fp32"]
    assert [row[0] for row in one.learning["validation"]] == [8, 16, 24] and len(one.loss) == 24
    assert one.learning["recipe"] == SHORT.as_dict() and one.learning["asked"] == 24
    assert one.loss[0] == pytest.approx(math.log(256), abs=0.2) and max(learned.last()["fp32"]) < 4.6
    assert (
        one.loss != other.loss and one.loss == learned.learned["full"][0].loss
    )  # recomputed, so the same to the last bit
    seconds = [row[2] for row in one.learning["validation"]]
    assert 0 < seconds[0] < seconds[1] < seconds[2]
    assert learned.table().rows[0][:3] == ["fp32", 2, 24] and " to " in learned.table().rows[0][3]
    figure = draw.learned(learned.curves(), "steps", "toy")
    assert figure.alt == "Lines, toy, over steps: the validation loss of 2 ways (fp32, full), 2 seeds at most each."
    assert learned.curves(seconds=True)["fp32"][0][0][0] == seconds[0]


def test_there_are_fewer_steps_where_all_would_take_too_long():
    options = {"recipe": replace(SHORT, steps=5000).as_dict(), "seconds": 0.3, "points": 0, "warm_up": 1}
    with lab.Worker() as worker:
        found = lab.process.ask(worker, TINY, SETUP, "cpu", 60.0, **options)[0].learning
    assert found["asked"] == 5000 > found["recipe"]["steps"] >= 15
    assert found["validation"][-1][0] == found["recipe"]["steps"]


@pytest.mark.thorough("four processes that import torch; two ranks of a step run at every change")
def test_two_processes_learn_what_one_does(learned):
    """FSDP on two, of half the batch each: every rank's loss is of its own windows, and their mean is the whole batch's."""
    two = {"ZeRO-3": SETUP.replace(batch=2, gpus=2, sharding="zero3")}
    (found,) = lab.trainings(TINY, two, SHORT, device="cpu").learned["ZeRO-3"]
    (one, _) = learned.learned["fp32"]
    means = [sum(pair) / 2 for pair in zip(*(rank["loss"] for rank in found.ranks), strict=True)]
    assert means == pytest.approx(one.loss, abs=1e-3)
    assert found.learning["validation"][-1][1] == pytest.approx(one.learning["validation"][-1][1], abs=2e-2)


def test_the_record_keeps_it_and_finds_it_again(learned, tmp_path, monkeypatch):
    one = replace(learned.learned["fp32"][0], device={"name": "made up", "type": "cuda", "gpu": None, "memory": 1})
    append(tmp_path / "made-up.jsonl", one)
    (back,) = read(tmp_path / "made-up.jsonl").measurements
    assert back.learning == one.learning and recording.asked(back)["recipe"] == str(SHORT)
    monkeypatch.setenv("EVERYBYTE_RECORD_ONLY", "1")
    found = lab.trainings(TINY, {"fp32": SETUP}, SHORT, (0, 1), records=tmp_path)
    assert [m is not None for m in found.found["fp32"]] == [True, False] and "Recorded on made up" in repr(found)
    assert not lab.runs(TINY, {"fp32": SETUP}, records=tmp_path).measured  # no training run stands for a step
    assert not lab.trainings(TINY, {"fp32": SETUP}, replace(SHORT, clip=2.0), records=tmp_path).learned
    with pytest.raises(ValueError, match=r"^Measurement\.learning: "):
        Measurement.from_dict(one.as_dict() | {"learning": {"recipe": {}, "asked": 3, "validation": [[1, 2]]}})
    assert json.dumps(one.as_dict())


def test_the_grid_has_three_seeds_where_a_difference_may_be_claimed():
    runs = lab.grid(["curves"])
    assert len({(c.model, c.setup, str(c.recipe), c.tf32) for c in runs}) == len(runs)
    seeds = {
        p: {c.recipe.seed for c in runs if c.model == PROSE and c.setup.precision == p}
        for p in ("fp32", "bf16-mixed", "bf16")
    }
    assert all(found == set(SEEDS) for found in seeds.values())
    assert {c.recipe.steps for c in runs if c.model == PROSE and not c.recipe.pretrained} == {1000}
    assert {c.recipe.steps for c in runs} == {1000, 200}
    assert any(c.setup.sharding == "zero3" for c in runs) and any(c.setup.attention == "eager" for c in runs)
    for c in runs:
        c.recipe.check(c.setup)


def test_every_way_to_fine_tune_starts_from_the_same_pretrained_weights():
    weights = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        module = GPT(TINY, SETUP).initialize()
        before = {name: p.detach().clone() for name, p in module.named_parameters()}
        learning.pretrain(module, TINY.vocabulary, SETUP, replace(SHORT, pretrained=3))
        assert all(not torch.equal(p, before[name]) and p.grad is None for name, p in module.named_parameters())
        weights.append([p.detach() for p in module.parameters()])
    assert all(map(torch.equal, weights[0], weights[1])) and not any(map(torch.equal, weights[0], weights[2]))


@pytest.mark.thorough("three processes that import peft")
def test_adapters_fine_tune_what_was_pretrained_each_at_its_own_rate():
    pytest.importorskip("peft")
    setups = {"full": SETUP, "LoRA": SETUP.replace(adapters=eb.Lora(4))}
    recipes = {
        name: replace(SHORT, pretrained=40, learning_rate=rate) for name, rate in (("full", 1e-3), ("LoRA", 5e-3))
    }
    found = lab.trainings(TINY, setups, recipes, device="cpu").learned
    scratch = lab.trainings(TINY, {"full": SETUP}, replace(SHORT, learning_rate=1e-3), device="cpu").learned
    for name, (run,) in found.items():
        assert run.learning["recipe"] == recipes[name].as_dict()
        assert run.loss[0] < scratch["full"][0].loss[0] - 0.5 and run.learning["validation"][-1][1] < run.loss[0]
    assert found["full"][0].loss[0] == pytest.approx(
        found["LoRA"][0].loss[0], abs=1e-3
    )  # B is 0: nothing is changed yet


def test_a_real_step_with_adapters_takes_what_the_dry_run_counts():
    pytest.importorskip("bitsandbytes")
    lora = SETUP.replace(optimizer_impl="fused", adapters=eb.Lora(4))
    ways = {"LoRA": lora, "QLoRA": lora.replace(quantization="nf4")}
    for name, m in lab.runs(TINY, ways, device="cpu", steps=2).measured.items():
        counted = eb.dry_run(TINY, ways[name])
        assert (m.peak, m.phases["rest"]) == (counted.peak, counted.phases["rest"]), name


def test_each_setup_has_a_recipe_or_all_have_one():
    with pytest.raises(ValueError, match=r"^trainings\.recipe: of other; allowed: one, or one for each of it$"):
        lab.trainings(TINY, {"it": SETUP}, {"other": SHORT})
    with pytest.raises(ValueError, match=r"^Recipe\.pretrained: 5 with 2 gpus"):
        replace(SHORT, pretrained=5).check(SETUP.replace(gpus=2))
