"""Showing a figure with its alternative text."""

import base64
import io
import re

from matplotlib.figure import Figure
from matplotlib.text import Text

#: Pixels of the PNG for each CSS pixel: sharp on dense screens.
DENSITY = 2


def png(fig: Figure, description: str | None = None) -> bytes:
    """The figure as a PNG; the same figure gives the same bytes (no date, no version inside)."""
    out = io.BytesIO()
    for text in fig.findobj(Text):  # a model's name with dollar signs is a name, no formula
        text.set_parse_math(False)
    metadata = {"Software": None} | ({"Description": description} if description else {})
    fig.savefig(out, format="png", dpi=72 * DENSITY, metadata=metadata, facecolor=fig.get_facecolor())
    return out.getvalue()


def checked_alt(alt: object) -> str:
    """`alt`, where it can stand for a figure: at least 40 characters, a digit among them.

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
    """(data, metadata) of a notebook output: the PNG, and the alternative text as its text and its `alt`."""
    alt = checked_alt(alt)
    data = {"image/png": base64.b64encode(png(fig)).decode(), "text/plain": alt}
    return data, {"image/png": {"alt": alt, "width": round(fig.get_figwidth() * 72)}}


def show(fig: Figure, alt: str | None = None) -> None:
    """Display a figure in a notebook, with alternative text.

    Args:
        fig: matplotlib's. Those that this package draws carry their own text as `fig.alt`.
        alt: its message and key numbers in words; by default `fig.alt`.

    Raises:
        ValueError: where the text is missing, shorter than 40 characters or without a number.
    """
    from IPython.display import display

    data, metadata = bundle(fig, getattr(fig, "alt", "") if alt is None else alt)
    display(data, metadata=metadata, raw=True)
