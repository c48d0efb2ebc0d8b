"""The interview room: a deck's cards one at a time, in JupyterLab and as a page of its own that needs no network."""

from collections.abc import Sequence
from html import escape

from ...common import files
from .cards import DIALOGUES

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Every Byte: the interview room</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ margin: 0; padding: 8px; }}
body .everybyte-room-root {{ min-height: calc(100vh - 16px); }}
.everybyte-sheet {{ display: none; }}
@media print {{ /* two-sided: each page of questions is followed by that of its answers */
  #room {{ display: none; }}
  .everybyte-sheet {{ break-after: page; display: grid; font: 12px/1.3 sans-serif; gap: 4mm; grid-template-columns: 1fr 1fr; }}
  .everybyte-sheet > div {{ border: 1px solid #888; height: 62mm; overflow: hidden; padding: 4mm; }}
}}
{style}
</style></head><body><div id="room"></div>
{sheets}
<script type="module">
{program}
new Room(document.getElementById("room").appendChild(made("div", "room-root")), {given});
</script></body></html>
"""
#: Cards on a printed page, in two columns.
SHEET = 8


def program() -> str:
    """The room's program, in JavaScript."""
    return files.script(__package__, "room.js")


def given(decks: Sequence, beside: str = "", ending: str = ".ipynb") -> dict:
    """What the room shows. decks: of the same cards, each for another case. beside: the folder of the chapters; ending: of their files."""
    cards = [
        {"id": c.id, "part": c.part, "topic": c.topic, "chapter": c.chapter + ending, "dialogue": c.part == DIALOGUES}
        for c in decks[0].cards
    ]
    return {"cards": cards, "decks": [{"label": _label(d), "texts": [_texts(d.card(c["id"])) for c in cards]} for d in decks], "beside": beside}  # fmt: skip


def _label(deck):
    case, setup = deck.case, deck.case.setup
    many = f"{setup.gpus} × " if setup.gpus > 1 else ""
    return f"{case.model.name}, {many}{case.gpu.title}, {setup.batch} × {setup.sequence:,} tokens, {setup.precision}"


def _texts(card):
    return [card.question, card.answer, card.follow_up, card.wrong, card.why, *card.apology]


def shown(deck):
    """The room in a notebook: a widget."""
    import anywidget
    import traitlets

    class Shown(anywidget.AnyWidget):
        _esm, _css = program(), files.text(__package__, "room.css")
        given = traitlets.Dict().tag(sync=True)

        def _repr_mimebundle_(self, **kwargs):
            words = f"The interview room: {len(deck)} cards, {_label(deck)}. It opens where the notebook runs."
            found = super()._repr_mimebundle_(**kwargs)
            data, metadata = found if isinstance(found, tuple) else (found, {})
            return {**(data or {}), "text/plain": words}, metadata

    return Shown(given=given([deck]))


def page(decks: Sequence, beside: str = "notebooks/", ending: str = ".html") -> str:
    """The room as a page of its own, with the cards to print on both sides of paper."""
    said = given(decks, beside, ending)
    style, sheets = files.text(__package__, "room.css"), _sheets(said["decks"][0]["texts"])
    return _PAGE.format(style=style, sheets=sheets, program=program(), given=files.literal(said))


def _sheets(texts):
    """Pages of questions, each with a page of answers behind it: rows are mirrored, so that both sides meet."""

    def sheet(words):
        return f'<div class="everybyte-sheet">{"".join(f"<div>{w}</div>" for w in words)}</div>'

    found = []
    for first in range(0, len(texts), SHEET):
        some = texts[first : first + SHEET]
        fronts = [f"<b>{escape(question)}</b>" for question, *_ in some]
        backs = [f"{escape(answer)}<br><i>{escape(follow)}</i>" for _, answer, follow, *_ in some]
        fronts, backs = (side + [""] * (SHEET - len(side)) for side in (fronts, backs))
        found += [sheet(fronts), sheet([backs[i ^ 1] for i in range(SHEET)])]
    return "\n".join(found)
