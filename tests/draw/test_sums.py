"""The chain from tensors to the card: each bar begins where the one before ended, and the last is their sum."""

import pytest

from everybyte import draw

GIB = 2**30
STEPS = {"tensors": {"requested": 21 * GIB}, "cached": {"cached": 2 * GIB}, "context": {"other": GIB / 2}}


def test_bars_join_and_the_last_is_the_sum():
    fig = draw.chain(STEPS, 23 * GIB, "A step")
    bars = [(round(b.get_x(), 6), round(b.get_x() + b.get_width(), 6)) for b in fig.axes[0].patches]
    low = bars[0][0]
    assert bars[:3] == [(low, 21), (21, 23), (23, 23.5)]
    assert bars[3:] == bars[:3]  # the sum, part by part
    assert fig.axes[0].get_xlim()[0] == low == 18


def test_the_text_says_what_is_beyond_the_card():
    said = draw.chain(STEPS, 23 * GIB, "A step").alt
    assert "the process 23.50 GiB" in said and "The card has 23.00 GiB: 512.00 MiB beyond it." in said
    assert "512.00 MiB to spare" in draw.chain(STEPS, 24 * GIB, "A step").alt
    assert draw.chain(STEPS, title="A step").alt.endswith("the process 23.50 GiB.")


def test_small_first_bars_begin_at_zero():
    fig = draw.chain({"a": {"requested": GIB}, "b": {"cached": 3 * GIB}})
    assert fig.axes[0].get_xlim()[0] == 0


def test_no_steps_are_refused():
    with pytest.raises(ValueError, match="no rows"):
        draw.chain({})
