"""The planning explorer's bars are the budget's peaks, at any setting of its controls."""

import random

import pytest

import everybyte as eb
from everybyte import explore
from everybyte.explore.planning import SWITCHES
from everybyte.fit import Headroom

FULL = {"checkpointing": "full"}
CHANGES = {
    "as chosen": {}, "fused optimizer": {"optimizer_impl": "fused"}, "two half batches": {}, "one sequence at a time": {},
    "loss in 8 chunks": {"loss": "chunked"}, "full checkpointing": FULL, "the same, fused": FULL | {"optimizer_impl": "fused"},
    "the same, one at a time": FULL | {"optimizer_impl": "fused"},
}  # fmt: skip


def setup_of(said):
    """The setup that the controls' labels stand for."""
    precision, _, gradients = said["precision"].partition(", ")
    batch = int(said["batch"])
    smaller = {"two half batches": -(-batch // 2), "one sequence at a time": 1, "the same, one at a time": 1}
    micro = smaller.get(said["switches"], batch)
    return eb.Setup(
        batch=micro, accumulation=-(-batch // micro), sequence=int(said["sequence"].replace(",", "")), precision=precision,
        attention=said["attention"], **CHANGES[said["switches"]],
        **({"master_gradients": gradients.split()[0]} if gradients else {}),
    )  # fmt: skip


def test_every_bar_is_the_budget():
    assert CHANGES.keys() == SWITCHES.keys()
    explorer, chance = explore.planning(), random.Random(45)
    seen = set()
    for _ in range(60):
        state = {name: chance.randrange(len(c.options)) for name, c in explorer._controls.items()}
        said = {name: list(c.options)[state[name]] for name, c in explorer._controls.items()}
        predicted = eb.budget(eb.model(said["model"]), setup_of(said))
        values = explorer.values(state)
        where, parts = explorer.kind.highest(values)
        assert {p: size for p, size in parts.items() if size} == {p: s for p, s in predicted.parts.items() if s}, said
        assert where == predicted.peak_at
        assert values["capacity"] == Headroom().usable(eb.gpu(said["gpu"]))
        seen.add((said["switches"], where))
    assert len(seen) > 10


def test_bad_input():
    for arguments, said in (
        ((eb.model("llama-2-7b"),), "planning.model: 'llama-2-7b'"),
        ((eb.model("gpt2"), eb.Setup(batch=3)), "batch"),
        ((None, None, eb.gpu("t4").__class__(**vars(eb.gpu("t4")) | {"name": "mine"})), "planning.gpu: 'mine'"),
    ):
        with pytest.raises(ValueError, match=said):
            explore.planning(*arguments)
