"""Show what is said to the reader: a card where there are widgets, and words."""

from importlib.util import find_spec

from .callout import Callout

_SHOWN: dict[tuple, object] = {}  # a card lives as long as its kernel


def bundle(said: Callout, card) -> dict:
    """What is displayed: a card that answers where there are widgets, and in its place until it lives, and on paper, the words.

    card: makes the card, given the module `cards`.
    """
    data = {"text/plain": repr(said), "text/html": said._repr_html_()}
    if find_spec("anywidget"):
        from . import cards

        _SHOWN[said.head, type(said)] = shown = card(cards)
        data["application/vnd.jupyter.widget-view+json"] = {
            "version_major": 2,
            "version_minor": 0,
            "model_id": shown.model_id,
        }
    return data
