"""Build slides from the book's own notebooks: a deck for each chapter, with its explorers live.

    python tools/slides.py                     # every chapter and lab, into build/slides
    python tools/slides.py --only 17_the_step

A section is a column of slides. On them stand a section's first sentences and what its cells show: formulas, figures,
tables, explorers. Everything else that the chapter says of it is in the speaker's notes (press S).
"""

import re
import sys
from pathlib import Path

import nbformat
from edition import ROOT, WIDGET_VIEW, each, kept, live, main, replaced, sphinx, written

SLIDES = ROOT / "build" / "slides"
WORDS = 45  # of prose on a slide, at most
_SHOWN = {"image/png", "text/latex", "text/html", "text/markdown", WIDGET_VIEW}
_BREAK = "```{revealjs-break}\n```"


def sentences(text: str, words: int = WORDS, last: bool = False) -> str:
    """The first, or the last, sentences of a text that are not more words than `words`; "" where one alone is more."""
    found = re.split(r"(?<=[.?!:])\s+(?=[A-Z*`$0-9])", " ".join(text.split()))
    kept = []
    for sentence in reversed(found) if last else found:
        if sum(len(s.split()) for s in [*kept, sentence]) > words:
            break
        kept.append(sentence)
    return " ".join(reversed(kept) if last else kept)


def paragraphs(text: str) -> list[str]:
    """The paragraphs of plain prose: no headings, lists, tables, code, or folded text."""
    text = re.sub(r"<details>.*?</details>|^(```|~~~).*?^\1|\$\$.*?\$\$", "", text, flags=re.S | re.M)
    return [p.strip() for p in re.split(r"\n\s*\n", text) if p.strip() and not re.match(r"\s*(#|[-*|>] |\d+\. |\|)", p)]


def _notes(text):
    text = re.sub(r"</?(details|summary)>", "\n\n", text)
    text = re.sub(r"^#+ .*$", "", text, flags=re.M).strip()
    return f'<aside class="notes">\n\n{text}\n\n</aside>' if text else ""


def _markdown(*texts):
    return nbformat.v4.new_markdown_cell("\n\n".join(t for t in texts if t))


def shown(cell) -> list:
    """The outputs of a code cell that belong on a slide: not text alone, and no answers to the reader."""
    outputs = [o for o in cell.get("outputs", []) if _SHOWN & o.get("data", {}).keys()]
    return [o for o in outputs if 'role="note"' not in o.data.get("text/html", "")]


def deck(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The slides of a notebook that ran, as a notebook: headings open slides, and code is hidden."""
    cells, prose, filled = [], "", False
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for part in re.split(r"^(?=#{1,3} )|^(?=\*\*\d+\.\d+\*\*)", cell.source, flags=re.M):
                heading = re.match(r"#{1,3} .*", part)
                exercise = re.match(r"\*\*(\d+\.\d+)\*\*", part)
                text = part[heading.end() :] if heading else part
                said = paragraphs(text)
                if heading:
                    cells.append(_markdown(heading[0], sentences(said[0]) if said else "", _notes(text)))
                    filled = bool(said) and heading[0].startswith("# ")
                elif exercise:
                    cells.append(_markdown(_BREAK, said[0] if said else "", _notes(part)))
                    filled = True
                elif part.strip():
                    cells.append(_markdown(_notes(text)))
                prose = said[-1] if said else ""
        elif guess := re.search(r"Prediction \S+\. (.+?\?) Not guessed", str(cell.get("outputs", ""))):
            cells.append(_markdown(_BREAK, "Your guess, aloud:", f"**{guess[1]}**"))
            filled = True
        elif outputs := shown(cell):
            for output in outputs:
                cells.append(_markdown(_BREAK if filled else "", sentences(prose, 30, last=True) if filled else ""))
                prose, filled = "", True
                hidden = {"tags": ["remove-input"]}
                cells.append(nbformat.v4.new_code_cell(cell.source, outputs=[output], metadata=hidden))
    result = nbformat.v4.new_notebook(cells=[c for c in cells if c.source or c.cell_type == "code"])
    result.metadata = notebook.metadata
    return result


def build(output: Path = SLIDES, only: list[str] = (), jobs: int = 2, anew: bool = False, timeout: int = 240) -> None:
    """Build the decks into `output`, which is replaced only when all went well.

    Raises:
        RuntimeError: where a cell fails, Sphinx warns, or a link is broken.
    """
    with replaced(output) as work:
        source = work / "source"
        entries = [e for e in written(only) if not only or e.slug in only]

        def page(entry):
            place = source / entry.path
            place.parent.mkdir(exist_ok=True)
            notebook = deck(live(kept(ROOT / entry.path, timeout, anew), place.stem, source / "extra" / "pictures"))
            for cell in notebook.cells:  # what another chapter says is not in this deck
                cell.source = re.sub(r"(?<!!)\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", cell.source)
            nbformat.write(notebook, place)

        each(page, entries, jobs)
        links = "\n".join(f"- [{e.slug}]({e.path}): {e.question}" for e in entries)
        tree = "\n".join(Path(e.path).with_suffix("").as_posix() for e in entries)
        text = f"# Every Byte: slides\n\n{links}\n\n```{{toctree}}\n:hidden:\n\n{tree}\n```\n"
        (source / "index.md").write_text(text, encoding="utf-8")
        sphinx(work, "revealjs")
        for theme in (work / "html").glob("_static/revealjs/dist/theme/*.css"):  # the others ask for fonts outside
            if theme.stem != "white":
                theme.unlink()


if __name__ == "__main__":
    sys.exit(main(build, SLIDES, __doc__))
