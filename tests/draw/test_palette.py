"""One meaning a color, told apart by everyone, readable on every page."""

import json
import re
from importlib import resources
from itertools import combinations

import numpy
import pytest

from everybyte.draw import palette
from everybyte.draw.palette import CARD, INK, MUTED, PARTS, contrast, ink_on, luminance, part

# Viénot, Brettel and Mollon 1999: linear RGB as seen without long- or middle-wave cones.
GROUPS = ("embeddings", "attention", "mlp", "mixture", "norms", "head")  # of parameters: never beside parts of memory
PAIRS = [p for p in combinations(PARTS, 2) if (p[0] in GROUPS) == (p[1] in GROUPS)]
SIGHT = {
    "full": numpy.eye(3),
    "protanopia": [[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]],
    "deuteranopia": [[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]],
}


def linear(color):
    c = numpy.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return numpy.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    xyz = numpy.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ rgb
    ratio = numpy.clip(xyz / [0.9505, 1, 1.089], 0, None)
    f = numpy.where(ratio > 0.008856, numpy.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return numpy.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_contrast_is_wcag_s():
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert contrast("#777777", "#FFFFFF") == pytest.approx(4.478, abs=0.001)
    assert luminance("#FF0000") == pytest.approx(0.2126)


@pytest.mark.parametrize("color", [CARD, *sorted({p.color for p in PARTS.values()})])
def test_text_is_readable_on_every_color(color):
    assert contrast(ink_on(color), color) >= 4.5


@pytest.mark.parametrize("ink", [INK, MUTED])
def test_text_is_readable_on_the_card(ink):
    assert contrast(ink, CARD) >= 4.5


@pytest.mark.parametrize("sight", SIGHT)
def test_parts_are_told_apart_with_any_color_vision(sight):
    for one, other in PAIRS:
        a, b = PARTS[one], PARTS[other]
        seen = [lab(SIGHT[sight] @ linear(p.color)) for p in (a, b)]
        assert a.hatch != b.hatch or numpy.linalg.norm(seen[0] - seen[1]) >= 12, (one, other)


def test_parts_are_told_apart_in_gray():
    def gray(p):
        return 116 * numpy.cbrt(luminance(p.color)) - 16

    for one, other in PAIRS:
        a, b = PARTS[one], PARTS[other]
        assert a.hatch != b.hatch or abs(gray(a) - gray(b)) >= 7, (one, other)


def test_a_pillar_is_one_hue():
    for family in (
        ("parameters", "casts"),
        ("master", "momentum", "variance", "optimizer"),
        ("buffers", "workspace", "other"),
    ):
        assert len({PARTS[name].color for name in family}) == 1
    hues = [PARTS[n].color for n in ("parameters", "gradients", "optimizer", "activations", "loss", "other")]
    assert len(set(hues)) == 6


def test_labels_differ():
    assert len({p.label for p in PARTS.values()}) == len(PARTS)


def test_the_explorers_draw_every_hatch():
    script = resources.files("everybyte.explore").joinpath("paint.js").read_text(encoding="utf-8")
    table = re.search(r"const HATCHES = \{(.*?)\};", script, re.DOTALL)[1]
    for p in PARTS.values():
        assert not p.hatch or json.dumps(p.hatch) in table or f"{p.hatch}:" in table, p.hatch


def test_an_unknown_part_is_named():
    with pytest.raises(ValueError, match="gradient.*did you mean 'gradients'"):
        part("gradient")
    assert palette.part("gradients").label == "gradients"
