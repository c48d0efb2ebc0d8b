"""The planning explorer's bars are the budget's peaks, at any setting of its controls."""

import random
from dataclasses import replace

import pytest
from margins import EXPLORERS, drawn, needed

import everybyte as eb
from everybyte import explore
from everybyte.answers.fit import Headroom
from everybyte.explore.beside import table
from everybyte.explore.peaks import OPENS, PIECES, SWITCHES

FULL = {"checkpointing": "full"}
CHANGES = {
    "as chosen": {}, "fused optimizer": {"optimizer_impl": "fused"}, "two half batches": {}, "one sequence at a time": {},
    "loss in 8 chunks": {"loss": "chunked"}, "full checkpointing": FULL, "the same, fused": FULL | {"optimizer_impl": "fused"},
    "the same, one at a time": FULL | {"optimizer_impl": "fused"},
}  # fmt: skip


def setup_of(said):
    """The setup that the controls' labels stand for."""
    batch, gpus = int(said["batch"]), int(said["gpus"].split()[0].replace(",", ""))
    smaller = {"two half batches": -(-batch // 2), "one sequence at a time": 1, "the same, one at a time": 1}
    micro = smaller.get(said["switches"], batch)
    return eb.Setup(
        batch=micro, accumulation=-(-batch // micro), sequence=int(said["sequence"].replace(",", "")), precision=said["precision"],
        gpus=gpus, sharding="zero3" if gpus > 1 else "none", **CHANGES[said["switches"]],
    )  # fmt: skip


def test_every_bar_is_the_budget():
    assert CHANGES.keys() == SWITCHES.keys()
    explorer, chance = explore.planning(), random.Random(45)
    seen = set()
    for _ in range(60):
        state = {name: chance.randrange(len(c.options)) for name, c in explorer._controls.items()}
        state["gpus"] *= chance.random() < 0.7  # one GPU more often than one state in eleven
        said = {name: list(c.options)[state[name]] for name, c in explorer._controls.items()}
        predicted = eb.budget(eb.model(said["model"], code="reference"), setup_of(said))
        values = explorer.values(state)
        where, parts = explorer.kind.highest(values)
        assert {p: size for p, size in parts.items() if size} == {p: s for p, s in predicted.parts.items() if s}, said
        assert where == predicted.peak_at
        assert values["capacity"] == Headroom().usable(eb.gpu(said["gpu"]), setup_of(said))
        seen.add((said["switches"], where, said["gpus"] == "1 GPU"))
    assert len(seen) > 20


def test_it_opens_with_llama_on_eight_h100():
    explorer = explore.planning()
    said = {name: list(c.options)[explorer.state[name]] for name, c in explorer._controls.items()}
    assert (said["model"], said["gpu"], said["gpus"]) == ("llama-3.1-8b", "h100-80gb", "8 GPUs")
    assert setup_of(said) == OPENS
    assert (
        sum(explorer.kind.highest(explorer.values())[1].values())
        == eb.budget(eb.model("llama-3.1-8b", code="reference"), OPENS).peak
    )


def test_it_says_where_the_allocator_may_run_out():
    """Live bytes that fit do not run for sure: the margin is what steps of a kind needed when they were simulated."""
    rows = table(PIECES)
    assert rows["planning"].keys() == SWITCHES.keys() and all(
        one > 0 for bars in rows.values() for row in bars.values() for one in row
    )
    assert rows.keys() == EXPLORERS.keys() and all(
        list(rows[name]) == list(bars) for name, (bars, *_) in EXPLORERS.items()
    )
    explorer = explore.planning()
    preset = explorer.presets["1B on 24 GB"]  # which does run out, as eb.fit says
    assert "it may run out." in explorer.describe(preset)
    roomy = preset | {"gpu": list(eb.gpus()).index("h200")}
    assert explorer.describe(roomy).endswith("less than is left. The peak is in optimizer step.")
    assert any("may run out" in text.get_text() for text in explorer.figure(preset).axes[0].get_yticklabels())


@pytest.mark.parametrize("name", ["sharding", "adapters"])
def test_a_step_needs_no_more_than_the_margin_says(name):
    """A stored step again: what it needs beside live bytes is at most the stored percent, which is the most of those drawn."""
    bars, draw, _ = EXPLORERS[name]
    label = next(iter(bars))
    chance = random.Random(label)
    assert 1 < needed(*drawn(lambda: draw(label, 0, chance))) <= 1 + table(PIECES)[name][label][0] / 100


def test_bad_input():
    for arguments, said in (
        ((eb.model("gpt2"),), "planning.model: 'gpt2'"),
        ((eb.model("llama-3.1-8b", code="reference"), eb.Setup(batch=3)), "batch"),
        ((None, OPENS.replace(gpus=6)), "gpus: '6 GPUs'"),
        ((None, OPENS.replace(sharding="zero2")), "planning.setup.sharding: 'zero2'"),
        ((None, OPENS.replace(precision="fp32", attention="eager")), "planning.setup.attention: 'eager'"),
        ((None, None, replace(eb.gpu("t4"), name="mine")), "planning.gpu: 'mine'"),
    ):
        with pytest.raises(ValueError, match=said):
            explore.planning(*arguments)
