"""Chapter 13's explorer: a block's tensors, by operation, are the ledger's and the dry run's."""

import pytest
import sympy

import everybyte as eb
from everybyte import explore
from everybyte.explore.step import OPERATIONS, kept

SETUPS = [
    {"precision": p, "attention": a, "dropout": d}
    for p in ("fp32", "bf16-mixed", "fp16-mixed", "bf16")
    for a in ("flash", "eager")
    for d in (0.0, 0.1)
]


def test_the_tensors_are_the_library_s_block():
    """Every tensor of the ledger's block is at one operation, and together they are the formula."""
    total = sum(kept(names) for _, tensors, _ in OPERATIONS for names in tensors.values())
    assert sympy.expand(total - eb.formula("activations.block").expr) == 0
    every = [name for _, tensors, _ in OPERATIONS for names in tensors.values() for name in names]
    assert len(every) == len(set(every))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("setup", SETUPS, ids=lambda s: "-".join(map(str, s.values())))
def test_the_block_is_the_dry_run_s(setup):
    """What one more block adds to the activations after forward."""
    setup = eb.Setup(batch=4, sequence=64, **setup)
    two, three = (
        eb.Model(name="small", layers=n, width=48, heads=4, vocabulary=96, positions=64, tied=True) for n in (2, 3)
    )
    counted = [eb.dry_run(m, setup).parts_at("after_forward")["activations"] for m in (two, three)]
    explorer = explore.block(three, setup)
    assert explorer.table().rows[-1][2] == counted[1] - counted[0]
    assert explorer.kind.compute(explorer.values())[2][0] == "attention"


def test_the_famous_formula():
    B, S, H, A = 8, 1024, 768, 12
    explorer = explore.block()
    state = explorer.state | explorer.presets["the famous 34 + 5"]
    total = explorer.table(state).rows[-1][2]
    assert total == S * B * H * 34 + 5 * A * S * S * B + 16 * B * S + S * S


def test_what_is_shared_is_counted_once_and_said():
    explorer = explore.block()
    rows = {row[0]: row for row in explorer.kind.compute(explorer.values())}
    assert rows["out"][2] == rows["+"][2] == rows["dropout"][2] == 0
    eager = explorer.state | {"attention": 1}
    assert {name: x for name, _, x in explorer.kind.compute(explorer.values(eager))}["out"] == 4 * 8 * 1024 * 768


def test_only_a_gpt_has_this_block():
    with pytest.raises(ValueError, match="llama-2-7b"):
        explore.block(eb.model("llama-2-7b", code="reference"))


def test_a_model_of_your_own():
    mine = eb.Model(name="<i>mine</i>", layers=2, width=64, heads=2, vocabulary=100, positions=64)
    said = explore.block(mine, eb.Setup(batch=2, sequence=32)).describe()
    assert said.startswith("<i>mine</i>, fp32, flash, no dropout, batch 2, sequence 32: one block keeps ")
