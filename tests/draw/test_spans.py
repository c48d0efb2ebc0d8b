"""Drawings of tensors' lives: what they say, and what they refuse."""

import pytest

from everybyte import draw

LIVES = {"logits": ("loss", 0, 1, 2), "log p": ("loss", 1, 2, 4)}
OPERATIONS = ["head", "log-softmax", "nll, backward"]


def test_the_alternative_text_names_the_most():
    fig = draw.lives(LIVES, OPERATIONS, "a loss")
    assert "logits 2 B, from head to log-softmax" in fig.alt
    assert fig.alt.endswith("Together they take the most in log-softmax: 6 B.")


def test_totals_stand_below():
    _, below = draw.lives(LIVES, OPERATIONS, "a loss").axes
    assert [bar.get_height() for bar in below.patches] == [2, 6, 4]


@pytest.mark.parametrize(
    ("tensors", "operations"),
    [({}, OPERATIONS), (LIVES, []), ({"x": ("loss", 2, 1, 1)}, OPERATIONS), ({"x": ("loss", 0, 3, 1)}, OPERATIONS)],
)
def test_what_has_no_life_is_refused(tensors, operations):
    with pytest.raises(ValueError, match="allowed"):
        draw.lives(tensors, operations)


def test_an_amount_is_above_zero_and_a_part_is_known():
    with pytest.raises(ValueError, match="above 0"):
        draw.lives({"x": ("loss", 0, 1, 0)}, OPERATIONS)
    with pytest.raises(ValueError, match="part"):
        draw.lives({"x": ("nothing", 0, 1, 1)}, OPERATIONS)
