"""What a compiled step keeps: with the whole budget what the formula says of the eager one, with none the inputs alone."""

import pytest

import everybyte as eb
from everybyte.dryrun.compiled import partitioned

MODEL = eb.Model(name="a GPT", layers=2, width=64, heads=2, vocabulary=101, positions=32)
SETUP = eb.Setup(batch=2, sequence=32)


def test_a_budget_buys_products_for_bytes():
    """The least cut keeps the eager step's tensors but for the loss, and of each attention a seed that eager has on the CPU."""
    phases = eb.budget(MODEL, SETUP).phases
    eager = phases["after_forward"] - phases["rest"] - 2 * 8 * 2 * 32  # tokens and targets
    whole, half, none = (partitioned(MODEL, SETUP, budget) for budget in (1, 0.5, 0))
    forward, backward = (int(eb.formula(f"flops.{name}").at(MODEL, SETUP)) for name in ("forward", "backward"))
    assert whole == (eager - 4 + 16 * MODEL.layers, backward)
    assert 0.4 * whole[0] < half[0] < 0.6 * whole[0] and none[0] == 0
    assert backward < half[1] < none[1] == backward + forward  # all of forward once more


@pytest.mark.parametrize(
    ("changes", "budget", "message"),
    [
        ({"precision": "bf16"}, 1, r"^Setup\.precision: 'bf16' compiled is not followed; allowed: 'fp32'"),
        ({"attention": "eager"}, 1, r"^Setup\.attention: 'eager' compiled"),
        ({}, 1.5, r"^compiled\.budget: 1\.5 is not a number from 0 to 1"),
    ],
)
def test_what_is_not_followed_is_named(changes, budget, message):
    with pytest.raises(ValueError, match=message):
        partitioned(MODEL, SETUP.replace(**changes), budget)
