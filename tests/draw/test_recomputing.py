"""What recomputation does, drawn: the boxes are as wide as their arithmetic, the curves as high as the chapter's formulas."""

import pytest
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from everybyte import draw

MIB = 2**20


def test_blocks_that_run_again_take_longer_and_save_less():
    fig = draw.recomputed(4, saved=800 * MIB, kept=50 * MIB, again=0.75)
    assert "at most 3.12 GiB are saved for backward" in fig.alt  # four blocks
    assert "at most 950.00 MiB are saved, for 25% more arithmetic" in fig.alt  # C + (L - 1) I
    assert draw.checked_alt(fig.alt) == fig.alt


@pytest.mark.parametrize("blocks", [2, 6])
def test_a_box_for_each_run_of_each_block(blocks):
    plain, checkpointed, curves = draw.recomputed(blocks, again=0.5).axes
    widths = [[p.get_width() for p in ax.patches if isinstance(p, Rectangle)] for ax in (plain, checkpointed)]
    assert sorted(widths[0]) == [1] * blocks + [2] * blocks
    assert sorted(widths[1]) == [0.5] * blocks + [1] * blocks + [2] * blocks
    ends = [float(line.get_xdata()[-1]) for line in curves.lines]
    assert sorted(ends) == [3 * blocks, 3.5 * blocks]


def test_the_words_are_inside_the_page():
    fig = draw.recomputed(4, saved=849 * MIB, kept=32 * MIB)
    fig.draw_without_rendering()
    ticks = {t for ax in fig.axes for axis in (ax.xaxis, ax.yaxis) for t in axis.findobj(Text) if t is not axis.label}
    for text in {t for t in fig.findobj(Text) if t.get_text() and t.get_visible()} - ticks:
        box = text.get_window_extent()
        assert fig.bbox.x0 - 1 <= box.x0 and box.x1 <= fig.bbox.x1 + 1, text
        assert fig.bbox.y0 - 1 <= box.y0 and box.y1 <= fig.bbox.y1 + 1, text


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"blocks": 1}, "blocks"),
        ({"blocks": 7}, "blocks"),
        ({"saved": 4, "kept": 4}, "kept"),
        ({"again": 0}, "again: 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(bad, said):
    with pytest.raises(ValueError, match=said):
        draw.recomputed(**bad)
