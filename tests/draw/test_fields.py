"""A row of boxes for each format, as many as it has bits, and the same in words."""

import pytest
from matplotlib.patches import Rectangle

from everybyte import draw

FORMATS = {"fp16": (5, 10), "bf16": (8, 7), "e8m0": (8, 0)}


def test_every_bit_is_a_box_and_every_format_a_row():
    (axes,) = draw.bit_fields(FORMATS, "Three formats").axes
    boxes = [p for p in axes.patches if isinstance(p, Rectangle)]
    assert len(boxes) == 16 + 16 + 9
    assert len({p.get_hatch() for p in boxes}) == 3
    assert [t.get_text() for t in axes.get_yticklabels()] == list(FORMATS)
    assert {t.get_text() for t in axes.texts} == {"5", "mantissa 10", "exponent 8", "mantissa 7"}


def test_the_text_says_the_bits():
    said = draw.bit_fields(FORMATS, "Three formats").alt
    assert "bf16 1 sign, 8 exponent, 7 mantissa bits, 16 in all" in said and said.startswith(
        "Rows of bits, Three formats"
    )


@pytest.mark.parametrize(("formats", "named"), [({}, "at least one"), ({"x": (5, -1)}, "x"), ({"x": (99, 1)}, "x")])
def test_what_is_no_format_is_refused(formats, named):
    with pytest.raises(ValueError, match=named):
        draw.bit_fields(formats)
