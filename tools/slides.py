"""Build slides from the book's own notebooks: a deck for each chapter, with its explorers live.

    python tools/slides.py                     # every chapter and lab, into build/slides
    python tools/slides.py --only 17_the_step

What stands on slides is marked in the notebook, by a cell's tags, which JupyterLab's property inspector edits:

    slide         of a text: its headings, paragraphs, lists and tables, a slide for each idea; of code: what it shows
    slide-code    the same, with the code above what it shows

Nothing of a marked cell is cut: what is too long for a slide goes on the next. A prediction is a question, and its `reveal`
the answer. Whatever is not marked is in the speaker's notes (press S), and so are solutions.
"""

import re
import sys
from collections.abc import Iterator
from html import escape
from itertools import pairwise
from pathlib import Path

import nbformat
from edition import ROOT, WIDGET_VIEW, each, kept, live, main, replaced, sphinx, written

SLIDES = ROOT / "build" / "slides"
MARKS = ("slide", "slide-code")
WORDS = 60  # of prose on a slide, at most, where it can be parted
ROWS = 8  # of a table on a slide, at most
_SHOWN = {"image/png", "text/latex", "text/html", "text/markdown", WIDGET_VIEW}
_BREAK = "```{revealjs-break}\n```"
_FOLDED = re.compile(r"<details>.*?</details>", re.S)


def marked(cell) -> bool:
    """Whether a cell's tags say that it stands on a slide."""
    return any(tag in MARKS for tag in cell.metadata.get("tags", ()))


def sentences(text: str, words: int, last: bool = False) -> str:
    """The first, or the last, sentences of a text that are not more words than `words`; "" where one alone is more."""
    found = re.split(r"(?<=[.?!:])\s+(?=[A-Z*`$0-9])", " ".join(text.split()))
    kept = []
    for sentence in reversed(found) if last else found:
        if sum(len(s.split()) for s in [*kept, sentence]) > words:
            break
        kept.append(sentence)
    return " ".join(reversed(kept) if last else kept)


def blocks(text: str) -> list[str]:
    """The blocks of a text, whole: paragraphs, lists, tables, code, formulas. What is folded is none."""
    found = re.split(
        r"\n\s*\n",
        re.sub(
            r"^(```|~~~)(.*?)^\1", lambda m: m[0].replace("\n\n", "\n\0\n"), _FOLDED.sub("", text), flags=re.S | re.M
        ),
    )
    joined: list[str] = []
    for block in (b.strip("\n").replace("\0", "") for b in found if b.strip()):
        if joined and re.match(r" +|\d+\. |[-*] ", block) and re.match(r"\d+\. |[-*] ", joined[-1]):
            joined[-1] += f"\n\n{block}"  # the next item of a list, or the rest of one
        else:
            joined.append(block)
    return joined


def ideas(text: str) -> Iterator[str]:
    """The blocks, a slide's at a time: a block that ends in a colon stays with what it promises."""
    slide: list[str] = []
    for block in blocks(text):
        promised = slide and slide[-1].endswith(":")
        if slide and not promised and len(" ".join([*slide, block]).split()) > WORDS:
            yield "\n\n".join(slide)
            slide = []
        slide.append(block)
    if slide:
        yield "\n\n".join(slide)


def _notes(text):
    text = re.sub(r"</?(details|summary)>", "\n\n", text)
    text = re.sub(r"^#+ .*$", "", text, flags=re.M).strip()
    return f'<aside class="notes">\n\n{text}\n\n</aside>' if text else ""


def shown(cell) -> list:
    """The outputs of a code cell that belong on a slide: not text alone, and no answers to the reader."""
    outputs = [o for o in cell.get("outputs", []) if _SHOWN & o.get("data", {}).keys()]
    return [o for o in outputs if 'role="note"' not in o.data.get("text/html", "")]


def _plain(cell):
    return "\n".join(o.get("data", {}).get("text/plain", "") for o in cell.get("outputs", []))


def guessed(cell) -> str:
    """The question of a prediction, "" where the cell makes none."""
    found = re.search(r"Prediction \S+\. (.+?\?) Not guessed", _plain(cell))
    return found[1] if found else ""


def answered(cell) -> str:
    """The answer that a cell reveals, "" where it reveals none."""
    found = re.search(r"No guess was made\. The answer is (.+)\.$", _plain(cell), re.M)
    return found[1] if found else ""


def parted(output, rows: int = ROWS) -> list:
    """A table longer than a slide as several, each with its heading; anything else as it is."""
    html = output.data.get("text/html", "")
    found = re.findall(r"<tr\b.*?</tr>", html, re.S)
    head, body = [r for r in found if "<th" in r and "<td" not in r], [r for r in found if "<td" in r]
    if "<table" not in html or "everybyte-live" in html or len(body) <= rows:
        return [output]
    before, after = html.split(found[0])[0], html.split(found[-1])[-1]
    between = "</thead><tbody>" if "<tbody" in html else ""
    count = -(-len(body) // rows)
    size = -(-len(body) // count)
    return [
        nbformat.v4.new_output("display_data", {"text/html": before + "".join(head) + between + "".join(body[i : i + size]) + after})
        for i in range(0, len(body), size)
    ]  # fmt: skip


def faults(notebook: nbformat.NotebookNode) -> list[str]:
    """What is wrong with a notebook's marks: none, one on what shows nothing, a colon that loses what it promises."""
    cells = notebook.cells
    found = [] if cells and marked(cells[0]) else ["the title is not marked as a slide"]
    for cell in cells:
        if marked(cell) and cell.cell_type == "code" and not (shown(cell) or guessed(cell) or answered(cell)):
            found.append(f"{cell.id}: it shows nothing that stands on a slide")
    for cell, following in pairwise(cells):
        if marked(cell) and cell.cell_type == "markdown" and _FOLDED.sub("", cell.source).strip().endswith(":"):
            if not marked(following):
                found.append(f"{cell.id}: it ends in a colon, and what comes then is not marked")
    return found


def deck(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The slides of a notebook that ran, as a notebook: of what is marked."""
    cells: list = []
    heading, opened, lead = "", "", ""

    def put(text="", code=None):
        nonlocal opened
        top = _BREAK if heading == opened else f"{'##' if opened else '#'} {heading}"
        opened = heading
        cells.append(nbformat.v4.new_markdown_cell("\n\n".join(filter(None, [top, text]))))
        if code is not None:
            cells.append(code)

    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for part in re.split(r"^(?=#{1,3} )|^(?=\*\*\d+\.\d+\*\*)", cell.source, flags=re.M):
                if not part.strip():
                    continue
                if found := re.match(r"#{1,3} (.*)", part):
                    heading, part = found[1], part[found.end() :]
                said = list(ideas(part))
                lead = sentences(blocks(part)[-1], 35, last=True) if said else ""
                if marked(cell):
                    promise = said.pop() if said and said[-1].endswith(":") else ""
                    for text in said or ([""] if not opened and not promise else []):
                        put(text)
                    lead = promise
                if cells and (note := _notes("\n\n".join(_FOLDED.findall(part)) if marked(cell) else part)):
                    cells[-1 if cells[-1].cell_type == "markdown" else -2].source += f"\n\n{note}"
        elif marked(cell):
            if question := guessed(cell):
                put(f'Your guess, aloud:\n\n<p class="everybyte-large">{escape(question)}</p>')
            if answer := answered(cell):
                put(f'The answer:\n\n<p class="everybyte-large">{escape(answer)}</p>')
            for output in [one for whole in shown(cell) for one in parted(whole)]:
                tags = [] if "slide-code" in cell.metadata.get("tags", ()) else ["remove-input"]
                code = nbformat.v4.new_code_cell(cell.source, outputs=[output], metadata={"tags": tags})
                put("" if "everybyte-live" in output.data.get("text/html", "") else lead, code)
                lead = ""
            lead = ""
    result = nbformat.v4.new_notebook(cells=cells)
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
