"""What is drawn of FSDP in time is what the budget counts."""

import pytest

import everybyte as eb
from everybyte import draw
from everybyte.draw.gathers import LANES, course

MODEL = eb.Model(name="small", layers=4, width=64, heads=4, vocabulary=128, positions=64)
SETUP = eb.Setup(batch=1, sequence=64, gpus=4, sharding="zero3", precision="bf16-mixed")


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_root_and_blocks_are_all_that_the_budget_has_gathered(sharding):
    setup = SETUP.replace(sharding=sharding)
    found, budget = course(MODEL, setup), eb.budget(MODEL, setup)
    for name in LANES[:2]:
        drawn = max(a + b for a, b in zip(found.root[name], found.blocks[name], strict=True))
        assert drawn == max(budget.timeline()[name])


def test_four_copies_of_a_block_are_ten_bytes_a_parameter():
    found = course(MODEL, SETUP)
    whole = max(map(sum, zip(*found.blocks.values(), strict=True)))
    assert whole == 10 * found.numbers
    assert found.numbers == int(eb.formula("fsdp.block.share").at(MODEL, SETUP)) * 4


def test_blocks_are_gathered_twice_under_zero3_and_once_under_zero2():
    for sharding, times in (("zero3", 2), ("zero2", 1)):
        spans = course(MODEL, SETUP.replace(sharding=sharding)).spans
        assert [sum(s.unit == u and s.what == "unsharded" for s in spans) for u in range(5)] == [1, *[times] * 4]


def test_the_next_block_is_gathered_before_the_one_that_computes_its_gradients_is_freed():
    spans = course(MODEL, SETUP).spans
    gradients = {s.unit: s for s in spans if s.what == "gradients"}
    ahead = {s.unit: s for s in spans if s.what == "gathered"}  # the last of each: backward's
    assert all(ahead[unit].first < gradients[unit + 1].first for unit in (1, 2, 3))


def test_the_figure_has_a_row_for_each_unit_and_says_the_most():
    figure = draw.gathered(MODEL, SETUP, "Small")
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["root", *(f"block {i}" for i in range(4))]
    assert "10 bytes for each parameter of a block" in figure.alt and "gathered twice" in figure.alt


@pytest.mark.parametrize(
    ("model", "setup"),
    [(MODEL.replace(layers=9), SETUP), (MODEL, SETUP.replace(sharding="none")), (MODEL, SETUP.replace(accumulation=2))],
)
def test_what_is_no_fsdp_of_few_blocks_is_refused(model, setup):
    with pytest.raises(ValueError, match="gathered"):
        draw.gathered(model, setup)
