"""The picture of rules and how far they are off."""

import pytest

from everybyte import draw

ROWS = {"small": {"plain": 0.02, "checkpointed": 0.0}, "large": {"plain": -0.06, "checkpointed": -0.001}}


def test_it_says_the_ends_of_each_rule():
    said = draw.off(ROWS, "two models").alt
    assert "two models: 2 rows; plain from -6.0% (large) to +2.0% (small); checkpointed from -0.1% (large)" in said
    assert said.endswith("The band is 10% to either side.")


def test_an_error_beyond_the_band_is_in_the_picture():
    low, high = draw.off({"far": {"plain": 0.5}}).axes[0].get_xlim()
    assert low < -50 and high > 50


@pytest.mark.parametrize("rows", [{}, {"one": {}}, {"one": {"a": 0, "b": 0, "c": 0}}])
def test_no_rule_and_three_are_refused(rows):
    with pytest.raises(ValueError, match="^rows: "):
        draw.off(rows)
