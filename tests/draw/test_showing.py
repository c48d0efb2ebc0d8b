"""No figure without words; the same figure, the same bytes."""

import base64
import struct

import IPython.display
import pytest
from matplotlib.text import Text

from everybyte import draw

ALT = "Weights take 0.46 GiB and the optimizer twice that, 0.93 GiB."


@pytest.fixture
def figure():
    return draw.stacked({"fp32": {"parameters": 2**30, "gradients": 2**29}}, title="One bar")


@pytest.mark.parametrize("alt", ["", "too short, 1", "x" * 60, None, 41 * " " + "1", 5])
def test_a_figure_without_words_is_refused(alt, figure):
    figure.alt = None
    with pytest.raises(ValueError, match=r"show.alt: .*allowed: its message and key numbers"):
        draw.show(figure, alt=alt)


def test_what_is_displayed(figure, monkeypatch):
    seen = []
    monkeypatch.setattr(IPython.display, "display", lambda *a, **k: seen.append((a, k)))
    assert draw.show(figure, alt=ALT + "\n ") is None
    ((data,), options) = seen[0]
    image = base64.b64decode(data["image/png"])
    width, height = struct.unpack(">II", image[16:24])
    assert image.startswith(b"\x89PNG") and width == 2 * options["metadata"]["image/png"]["width"] and height > 100
    assert data["text/plain"] == options["metadata"]["image/png"]["alt"] == ALT
    assert options["raw"] is True


def test_a_figure_brings_its_own_words(figure, monkeypatch):
    seen = []
    monkeypatch.setattr(IPython.display, "display", lambda data, **_: seen.append(data["text/plain"]))
    draw.show(figure)
    assert seen == [figure.alt] and "1.50 GiB" in figure.alt


def test_a_slide_has_the_same_figure_with_words_of_24_pixels(figure, monkeypatch):
    seen = []
    monkeypatch.setattr(IPython.display, "display", lambda data, **_: seen.append(data))
    draw.show(figure)
    monkeypatch.setenv(draw.SLIDES, "1")
    draw.show(figure)
    assert draw.ON_SLIDE not in seen[0] and seen[1]["image/png"] == seen[0]["image/png"]
    width, height = struct.unpack(">II", base64.b64decode(seen[1][draw.ON_SLIDE])[16:24])
    for_a_slide = min(1216 / width, 590 / height) * 252 / 72  # pixels of the slide for each point
    words = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    assert len(words) > 5 and min(text.get_fontsize() for text in words) * for_a_slide > 23.5


def test_a_diagram_is_not_made_smaller_than_its_words():
    figure = draw.splits(4)
    before = [figure.get_size_inches().tolist(), [text.get_fontsize() for text in figure.findobj(Text)]]
    width, _ = struct.unpack(">II", draw.projected(figure)[16:24])
    assert [figure.get_size_inches().tolist(), [text.get_fontsize() for text in figure.findobj(Text)]] == before
    assert width == 144 * before[0][0]


def test_the_same_bytes_twice(figure):
    again = draw.stacked({"fp32": {"parameters": 2**30, "gradients": 2**29}}, title="One bar")
    assert draw.png(figure) == draw.png(figure) == draw.png(again)
    assert b"Software" not in draw.png(figure) and b"tIME" not in draw.png(figure)
