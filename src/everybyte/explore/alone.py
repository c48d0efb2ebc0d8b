"""A page of its own around an explorer: one file that needs no notebook and no network."""

from collections.abc import Iterable
from html import escape

from ..common import files
from .beside import read
from .explorer import Explorer

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.45 system-ui, sans-serif; max-width: 1080px; margin: 1.5em auto; padding: 0 1em; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }} td, th {{ padding: 1px 10px 1px 0; }}
caption {{ text-align: left; padding: 6px 0; }} figure {{ margin: 1em 0; background: #fbfaf6; }} figure svg {{ max-width: 100%; height: auto; }}
label {{ display: block; margin: 8px 0; }} input[type="range"] {{ width: min(32em, 70%); vertical-align: middle; }}
</style></head><body><h1>{title}</h1>
{above}
{explorer}
</body></html>
"""
_EXPLORER = """<style>
{style}
</style>
<div id="everybyte-alone"></div>
<script type="module">
{program}
alone(document.getElementById("everybyte-alone"), {values});
</script>"""


def page(explorer: Explorer, title: str, above: Iterable[str] = ()) -> str:
    """The page, as HTML. above: pieces of HTML that stand before the explorer."""
    return _PAGE.format(title=escape(title), above="\n".join(above), explorer=embedded(explorer))


def embedded(explorer: Explorer) -> str:
    """The explorer as a piece of HTML, for a page that has one such."""
    picture = explorer.picture
    values = {f"c_{name}": value for name, value in explorer.state.items()}
    values |= {"spec": picture.spec, "preset": picture.preset}
    program = f"{explorer.source}\n{read('alone.js')}"
    return _EXPLORER.format(style=read("picture.css"), program=program, values=files.literal(values))
