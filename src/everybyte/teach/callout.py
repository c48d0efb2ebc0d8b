"""A short framed answer to the reader: plain text in a terminal, an escaped box in a notebook."""

from dataclasses import dataclass, replace
from html import escape
from importlib.util import find_spec

#: Set where widgets are stored for pages without a kernel: an exercise's card then has its rows, which take seconds to compute, and an
#: answer stands folded in its place on paper.
ALONE = "EVERYBYTE_ALONE"
#: A mark and a border for each kind. The words carry the meaning too.
_MARKS = {
    "right": ("✓", "#009e73"),
    "wrong": ("✗", "#d55e00"),
    "open": ("…", "#888888"),
    "unreadable": ("?", "#888888"),
    "hint": ("→", "#0072b2"),
    "guess": ("•", "#0072b2"),
}
_SHOWN: dict[tuple, object] = {}  # a card lives as long as its kernel


@dataclass(frozen=True)
class Callout:
    """One answer. `kind` is `right`, `wrong`, `open` (not attempted), `unreadable`, `hint` or `guess`."""

    kind: str
    head: str
    text: str

    @property
    def right(self) -> bool:
        """Whether the reader's answer was accepted."""
        return self.kind == "right"

    def and_said(self, sentence: str) -> "Callout":
        """The callout with one more sentence; itself where the sentence is empty."""
        return replace(self, text=f"{self.text} {sentence}") if sentence else self

    @property
    def marked(self) -> str:
        """The head behind its mark: "✓ 13.1 right"."""
        return f"{_MARKS[self.kind][0]} {self.head}"

    def __repr__(self):
        return f"{self.marked}. {self.text}"

    def _repr_html_(self):
        mark, color = _MARKS[self.kind]
        style = f"border-left:4px solid {color};padding:.3em .8em;margin:.3em 0"
        return f'<div role="note" style="{style}">{mark} <b>{escape(self.head)}.</b> {escape(self.text)}</div>'


class Carded(Callout):
    """A callout that is displayed as a card where there are widgets, and in its place until it lives, and on paper, as words."""

    def card(self):
        """Its card, where there are widgets."""
        raise NotImplementedError

    def _repr_mimebundle_(self, **kwargs):
        data = {"text/plain": repr(self), "text/html": self._repr_html_()}
        if find_spec("anywidget"):
            _SHOWN[self.head, type(self)] = shown = self.card()
            view = {"version_major": 2, "version_minor": 0, "model_id": shown.model_id}
            data["application/vnd.jupyter.widget-view+json"] = view
        return data
