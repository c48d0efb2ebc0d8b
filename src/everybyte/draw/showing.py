"""Show a figure with its alternative text."""

import base64
import io
import os
import re
import textwrap

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from .figures import _keys
from .palette import ABOVE, INK

#: Pixels of the PNG per CSS pixel, for dense screens.
DENSITY = 2
#: The type of a figure's picture for slides in a notebook's output, and the variable that asks for it.
ON_SLIDE, SLIDES = "application/vnd.everybyte.slide+png", "EVERYBYTE_SLIDES"
#: Inches, and the least and most points of its words: 190 pixels an inch on a slide 1,280 wide, so 9.1 points are 24 pixels.
SLIDE, LEAST, MOST = (6.4, 3.1), 9.1, 10


def png(fig: Figure, description: str | None = None, density: float = DENSITY) -> bytes:
    """The figure as a PNG without date and version, so that the same figure has the same bytes."""
    out = io.BytesIO()
    for text in fig.findobj(Text):  # a model's name with dollar signs is a name, no formula
        text.set_parse_math(False)
    metadata = {"Software": None} | ({"Description": description} if description else {})
    fig.savefig(out, format="png", dpi=72 * density, metadata=metadata, facecolor=fig.get_facecolor())
    return out.getvalue()


def svg(fig: Figure) -> bytes:
    """The figure as an SVG element, without date; the same figure has the same bytes."""
    out = io.StringIO()
    for text in fig.findobj(Text):
        text.set_parse_math(False)
    with rc_context({"svg.hashsalt": "everybyte"}):
        fig.savefig(out, format="svg", metadata={"Date": None}, facecolor=fig.get_facecolor())
    written = out.getvalue()
    return written[written.index("<svg") :].encode()


def projected(fig: Figure) -> bytes:
    """The figure as a PNG for a slide: smaller, so that its words, whose size stays, are relatively larger.

    It changes the figure. A diagram with words in its shapes stays as it is.
    """
    if not all(ax.axison for ax in fig.axes):
        return png(fig)
    larger = max(1, fig.get_figheight() / 2 / SLIDE[1])  # of many rows each has its line
    fig.set_size_inches(SLIDE[0] * larger, SLIDE[1] * larger)
    for ax in fig.axes:
        if marks := [text for text in ax.texts if isinstance(text, Annotation) and text.get_gid() == ABOVE]:
            room = 1.3 if len(fig.axes) == 1 else 1  # for them and the peak's label; the low axes of several have none
            ax.set_ylim(0, ax.get_ylim()[1] * room)
            for mark in marks:
                mark.set_y(mark.get_position()[1] * room)
                mark.xy = mark.get_position()
                mark.set_visible(room > 1)
    for text in fig.findobj(Text):
        text.set_fontsize(min(max(text.get_fontsize(), LEAST), MOST))
    if fig.get_suptitle():
        fig.suptitle(
            textwrap.fill(" ".join(fig.get_suptitle().split()), int(66 * larger)),
            x=0.01, ha="left", fontsize=11, color=INK, fontweight="bold",
        )  # fmt: skip
    for legend in list(fig.legends):
        legend.remove()
        _keys(fig, legend.legend_handles)
        for text in fig.legends[-1].get_texts():
            text.set_fontsize(MOST)
    return png(fig, density=3.5)


def checked_alt(alt: object) -> str:
    """`alt`, if it can replace a figure: at least 40 characters with a digit.

    Raises:
        ValueError: where it cannot.
    """
    text = " ".join(alt.split()) if isinstance(alt, str) else ""
    if len(text) < 40 or not re.search(r"\d", text):
        raise ValueError(
            f"show.alt: {alt!r} does not stand for a figure; allowed: its message and key numbers in words, "
            "at least 40 characters with a digit"
        )
    return text


def bundle(fig: Figure, alt: str) -> tuple[dict, dict]:
    """(data, metadata) of a notebook's output: the PNG, with the alternative text as plain text and as `alt`."""
    alt = checked_alt(alt)
    data = {"image/png": base64.b64encode(png(fig)).decode(), "text/plain": alt}
    return data, {"image/png": {"alt": alt, "width": round(fig.get_figwidth() * 72)}}


def show(fig: Figure, alt: str | None = None) -> None:
    """Display a figure in a notebook, with alternative text.

    Args:
        fig: matplotlib's. This package's figures have their text as `fig.alt`.
        alt: its message and key numbers in words; by default `fig.alt`.

    Raises:
        ValueError: where the text is missing, shorter than 40 characters or without a number.
    """
    from IPython.display import display

    data, metadata = bundle(fig, getattr(fig, "alt", "") if alt is None else alt)
    if os.environ.get(SLIDES):
        data[ON_SLIDE] = base64.b64encode(projected(fig)).decode()
    display(data, metadata=metadata, raw=True)
