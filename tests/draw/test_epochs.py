"""The picture of an epoch's batches."""

import pytest

from everybyte import draw

STEPS = [(30, 40), (100, 400), (50, 50)]


def test_it_says_what_is_padding_and_which_batch_is_the_largest():
    fig = draw.batches(STEPS, "three batches")
    assert "three batches: 3 batches of 40 to 400 tokens; 63% of all tokens are padding" in fig.alt
    assert "Step 2 has 400 tokens, of them 100 of text" in fig.alt


def test_another_step_can_be_named():
    assert "Step 3 has 50 tokens" in draw.batches(STEPS, mark=3).alt


@pytest.mark.parametrize("steps", [[], [(50, 40)], [(0, 4)]])
def test_what_is_no_batch_is_refused(steps):
    with pytest.raises(ValueError, match="^steps: "):
        draw.batches(steps)


def test_a_step_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="^mark: 4; allowed: 1 to 3$"):
        draw.batches(STEPS, mark=4)
