"""The explorer of batches shows the budget's peaks, at any setting of its controls."""

import random

import pytest

import everybyte as eb
from everybyte import explore


def setup_of(said):
    """The setup that the controls' labels stand for."""
    precision, _, gradients = said["precision"].partition(", ")
    whole, cut = (int(said[name].split()[0]) for name in ("whole", "cut"))
    micro = -(-whole // cut)
    return eb.Setup(
        batch=micro, accumulation=-(-whole // micro), sequence=int(said["sequence"].replace(",", "")), precision=precision,
        attention=said["attention"], optimizer_impl=said["step"], loss="plain" if said["loss"] == "plain loss" else "chunked",
        **({"master_gradients": gradients.split()[0]} if gradients else {}),
    )  # fmt: skip


def test_every_bar_is_the_budget():
    explorer, chance = explore.batches(), random.Random(23)
    seen = set()
    for _ in range(80):
        state = {name: chance.randrange(len(c.options)) for name, c in explorer._controls.items()}
        said = {name: list(c.options)[state[name]] for name, c in explorer._controls.items()}
        predicted = eb.budget(eb.model(said["model"]), setup_of(said))
        where, parts = explorer.kind.highest(explorer.values(state))
        assert {p: size for p, size in parts.items() if size} == {p: s for p, s in predicted.parts.items() if s}, said
        assert where == predicted.peak_at, said
        seen.add((said["loss"], said["step"], where))
    assert len(seen) > 6


def test_nothing_is_left_to_cut():
    explorer = explore.batches()
    said = explorer.describe(explorer.state | explorer.presets["XL, nothing left to cut"])
    assert "29.01 GiB in all." in said and said.endswith("The peak is in optimizer step.")


def test_cutting_can_cost():
    explorer = explore.batches()
    state = explorer.state | explorer.presets["XL, cutting costs"]
    one, two = (sum(explorer.kind.highest(explorer.values(state | {"cut": i}))[1].values()) for i in (0, 1))
    assert two > 1.15 * one


def test_bad_input():
    for arguments, said in (
        ((eb.model("llama-2-7b", code="reference"),), "batches.model: 'llama-2-7b'"),
        ((None, eb.Setup(batch=3)), "whole: '3 sequences' is unknown"),
        ((None, eb.Setup(batch=1, accumulation=3)), "whole: '3 sequences' is unknown"),
        ((None, eb.Setup(optimizer_impl="loop")), "step: 'loop' is unknown"),
    ):
        with pytest.raises(ValueError, match=said):
            explore.batches(*arguments)
