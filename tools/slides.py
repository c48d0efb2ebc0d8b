"""Build slides from the book's own notebooks: a deck for each chapter, with its explorers live.

    python tools/slides.py                     # every chapter and lab, into build/slides
    python tools/slides.py --only 15_the_step

What stands on slides is marked in the notebook, by a cell's tags, which JupyterLab's property inspector edits:

    slide         of a text: its headings, paragraphs, lists and tables, a slide for each idea; of code: what it shows
    slide-code    the same, with the code above what it shows

Nothing of a marked cell is cut: what is too long for a slide goes on the next. A prediction is a question, and its `reveal`
the answer, under the question again. What is spoken is in the speaker's notes (press S): whatever is not marked, quotations,
solutions. Figures are drawn for a slide, with larger words (`everybyte.draw.projected`).
"""

import re
import sys
from collections.abc import Iterator
from copy import deepcopy
from html import escape
from itertools import pairwise
from pathlib import Path

import face
import nbformat
from edition import MARKS, ROOT, WIDGET_VIEW, each, kept, live, main, replaced, sphinx, written
from tracks import track, tracks

from everybyte.draw import ON_SLIDE
from everybyte.teach.predictions import TOLD

STATES = "application/vnd.jupyter.widget-state+json"
SLIDES = ROOT / "build" / "slides"
WORDS = 60  # of prose on a slide, at most, where it can be parted; a list may have some more
LISTED = 80
ROWS = 8  # of a table on a slide, at most, and so many lines of words
LINES = 13
LETTERS = 34  # of a formula on a line, at most, where it can be broken
LEAD = 35  # words of what was said before, above what is shown; fewer above a picture
OVER_PICTURE = 22
_SHOWN = {"image/png", "text/latex", "text/html", "text/markdown", WIDGET_VIEW}
_BREAK = "```{revealjs-break}\n```"
_FOLDED = re.compile(r"<details>.*?</details>", re.S)
_SPOKEN = re.compile(
    r"^(?:>|\*[^*\n]*\bminutes\b).*?(?=\n\s*\n|\Z)", re.S | re.M
)  # quoted, or of how long a chapter takes
_HINTS = re.compile(
    r"\s*\(?(?:Stuck\? )?(?:Each exercise has two hints: )?`(?:eb\.teach\.)?hint\([^`]*`[^.)]*\.\)?"
)  # how a reader asks for one
_ASKED = re.compile(r'\*(["“][^*]*)\*', re.S)  # a question in somebody's mouth
_MATH = re.compile(r"\$\$(.*?)\$\$", re.S)
_LIST = re.compile(r"\d+\. |[-*] ")


def marked(cell) -> bool:
    """Whether a cell's tags say that it stands on a slide."""
    return any(tag in MARKS for tag in cell.metadata.get("tags", ()))


def sentences(text: str, words: int, last: bool = False) -> str:
    """The first, or the last, sentences of a text that are not more words than `words`; "" where one alone is more."""
    found = re.split(r"(?<=[.?!:])(?<!\bal\.)\s+(?=[A-Z*`$0-9])", " ".join(text.split()))
    kept = []
    for sentence in reversed(found) if last else found:
        if sum(len(s.split()) for s in [*kept, sentence]) > words:
            break
        kept.append(sentence)
    return " ".join(reversed(kept) if last else kept)


def blocks(text: str) -> list[str]:
    """The blocks of a text, whole: paragraphs, lists, tables, code, formulas. What is folded or quoted is none."""
    text = _SPOKEN.sub("", _FOLDED.sub("", text))
    text = re.sub(r"^(```|~~~)(.*?)^\1", lambda m: m[0].replace("\n\n", "\n\0\n"), text, flags=re.S | re.M)
    found = re.split(r"\n\s*\n", text)
    joined: list[str] = []
    for block in (b.strip("\n").replace("\0", "") for b in found if b.strip()):
        if joined and (block[0] == " " or _LIST.match(block)) and _LIST.match(joined[-1]):
            joined[-1] += f"\n\n{block}"  # the next item of a list, or the rest of one
        else:
            joined.append(block)
    return joined


def _pieces(block):
    """A block with more words than a slide has: a list by its items, a paragraph by its sentences."""
    count = len(block.split())
    most = LISTED if _LIST.match(block) else WORDS
    if count <= most or block.endswith(":") or re.match(r"[|~`<$]|#", block):
        return [block]
    if _LIST.match(block):
        found, joint = re.split(r"\n+(?=\d+\. |[-*] )", block), "\n"
    else:
        found, joint = re.split(r"(?<=[.?!])\s+(?=[A-Z*`$])", " ".join(block.split())), " "
    half, pieces = count / -(-count // most), [[]]
    for one in found:
        if pieces[-1] and sum(len(s.split()) for s in pieces[-1]) + len(one.split()) / 2 > half:
            pieces.append([])
        pieces[-1].append(one)
    return [joint.join(piece) for piece in pieces]


def ideas(text: str) -> Iterator[str]:
    """The blocks, a slide's at a time: a block that ends in a colon stays with what it promises, a question asked stands alone."""
    slide: list[str] = []
    for block in [piece for whole in blocks(text) for piece in _pieces(whole)]:
        promised = slide and (slide[-1].endswith(":") or bool(_LIST.match(block)) and len(slide[-1].split()) <= 12)
        asked = bool(slide) and _ASKED.fullmatch(slide[-1])
        if slide and not promised and (asked or len(" ".join([*slide, block]).split()) > WORDS):
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
    """The outputs of a code cell that belong on a slide: no answers to the reader, and text alone where there is nothing else."""
    rich = [o for o in cell.get("outputs", []) if _SHOWN & o.get("data", {}).keys()]
    if not rich and not guessed(cell)[0] and not answered(cell):
        return [o for o in cell.get("outputs", []) if "text" in o or "data" in o]
    return [o for o in rich if 'role="note"' not in o.data.get("text/html", "")]


def _plain(cell):
    return "\n".join(o.get("data", {}).get("text/plain", "") for o in cell.get("outputs", []))


def guessed(cell) -> tuple[str, str]:
    """The name and the question of a prediction, empty where the cell makes none."""
    found = re.search(r"Prediction (\S+)\. (.+?\?) Not guessed", _plain(cell))
    return (found[1], found[2]) if found else ("", "")


def answered(cell) -> list[tuple[str, str]]:
    """The name of each prediction that a cell reveals, and the answer, which its outputs do not show."""
    told = [output.metadata[TOLD] for output in cell.get("outputs", []) if TOLD in output.get("metadata", {})]
    answers = [(one["prediction"], one.get("answer", "\N{HORIZONTAL ELLIPSIS}")) for one in told]
    return [(id, re.sub(r"\b\d+\.\d{3,}", lambda m: f"{float(m[0]):.4g}", said)) for id, said in answers]


def _letters(tex):
    """About how many letters wide a formula is."""
    tex = re.sub(r"\\(left|right|displaystyle|boxed|frac|text|operatorname|quad|,|;|begin\{\w+\}|end\{\w+\})", "", tex)
    return len(re.sub(r"[{}\s^_]", "", re.sub(r"\\[a-zA-Z]+", "x", tex)))


def _terms(tex, signs=("+", "-")):
    """A formula's terms, each with its sign before it: cut where no bracket is open."""
    found, depth, start, place = [], 0, 0, 0
    for token in re.finditer(r"\\left|\\right|\\begin|\\end|[{}]|\S+?(?=[\s{}\\]|$)|\S", tex):
        word, place = token[0], token.start()
        depth += (word in ("{", "\\left", "\\begin")) - (word in ("}", "\\right", "\\end"))
        if depth == 0 and word in signs and place > start and tex[start:place].strip().rstrip("=").strip():
            found.append(tex[start:place].strip())
            start = place
    return [*found, tex[start:].strip()]


def broken(tex: str) -> str:
    """A formula that is longer than a line, on several: cut between its terms."""
    if _letters(tex) <= LETTERS:
        return tex
    head, equals, rest = tex.partition(" = ")
    if not equals or _terms(tex, ("=",))[0] != head.strip():
        head, rest = "", tex
    elif _letters(head) > LETTERS / 2:  # it is the left side that is long
        return rf"\begin{{aligned}}& {head} \\ & = {rest}\end{{aligned}}"
    terms = _terms(rest)
    wide = [_letters(term) for term in terms]
    room = sum(wide) / -(-sum(wide) // (LETTERS - _letters(head)))  # lines of about the same length
    lines, filled = [""], 0
    for term, letters in zip(terms, wide, strict=True):
        if lines[-1] and filled + letters / 2 > room:
            lines.append("")
            filled = 0
        lines[-1] += f" {term}"
        filled += letters
    if len(lines) > 1 and _letters(lines[-1]) < 8:  # a short rest stays with the line before
        lines[-2:] = ["".join(lines[-2:])]
    if len(lines) == 1:
        return tex
    return r"\begin{aligned}" + f"{head}{' =' if head else ''} &" + r" \\ & \quad ".join(lines) + r"\end{aligned}"


def _stacked(lines, gap):
    """Formulas as one, each on a line of its own; `gap`: between them, in em."""
    return lines[0] if len(lines) == 1 else r"\begin{gathered}" + rf" \\[{gap}em] ".join(lines) + r"\end{gathered}"


def formulas(outputs: list) -> list:
    """Outputs, in which the formulas that follow one another are one: each on a line of its own, a long one on several."""
    result: list = []
    for output in outputs:
        found = re.fullmatch(r"\$\\displaystyle (.*)\$", output.get("data", {}).get("text/latex", "").strip(), re.S)
        if not found or "text/html" in output.data:
            result.append(output)
            continue
        lines = [broken(tex) for tex in re.split(r"\\q?quad(?=\s*\\boxed)", found[1])]
        if result and "tex" in result[-1].metadata:
            lines = [*result[-1].metadata.tex, *lines]
            result.pop()
        text = _stacked(lines, 0.8)
        one = nbformat.v4.new_output(
            "display_data", {"text/latex": rf"$\displaystyle {text}$"}, metadata={"tex": lines}
        )
        result.append(one)
    return result


def _lines(rows):
    """About how many lines of words each row of a table is high."""
    cells = [[re.sub(r"<[^>]+>", "", c) for c in re.findall(r"<t[dh]\b.*?</t[dh]>", row, re.S)] for row in rows]
    columns = max(map(len, cells))
    wide = [max(len(row[i]) for row in cells if i < len(row)) for i in range(columns)]
    room = 82 - 2 * columns
    fixed = sum(w for w in wide if w <= 14)
    free = sum(w for w in wide if w > 14)
    share = min(1, max(room - fixed, 20) / free) if free else 1
    return [
        max(-(-len(c) // max(w * share if w > 14 else w, 1)) for c, w in zip(row, wide, strict=False)) for row in cells
    ]


def _table(output):
    """An output's HTML, and of the table in it the rows of its heading, and the others: none where there is no table."""
    html = output.get("data", {}).get("text/html", "")
    found = re.findall(r"<tr\b.*?</tr>", html, re.S) if "<table" in html else []
    return html, [r for r in found if "<th" in r and "<td" not in r], [r for r in found if "<td" in r]


def parted(output, rows: int = ROWS) -> list:
    """A table longer than a slide as several, each with its heading; anything else as it is."""
    html, head, body = _table(output)
    if "everybyte-live" in html or not body:
        return [output]
    high = _lines(body)
    count = max(-(-len(body) // rows), int(-(-sum(high) // LINES)))
    if count == 1:
        return [output]
    before, after = html.split([*head, *body][0])[0], html.split(body[-1])[-1]
    between = "</thead><tbody>" if "<tbody" in html else ""
    pages: list = [[]]
    for row, lines in zip(body, high, strict=True):
        full = len(pages[-1]) >= -(-len(body) // count) or sum(n for _, n in pages[-1]) + lines > LINES
        if pages[-1] and full:
            pages.append([])
        pages[-1].append((row, lines))
    return [
        nbformat.v4.new_output("display_data", {"text/html": before + "".join(head) + between + "".join(r for r, _ in page) + after})
        for page in pages
    ]  # fmt: skip


def faults(notebook: nbformat.NotebookNode) -> list[str]:
    """What is wrong with a notebook's marks.

    No title; one on what shows nothing; an answer whose question is not on a slide before it; a row of a table that is higher
    than a slide; a colon that loses what it promises.
    """
    cells = notebook.cells
    found = [] if cells and marked(cells[0]) else ["the title is not marked as a slide"]
    asked: set[str] = set()
    for cell in cells:
        if marked(cell) and cell.cell_type == "code" and not (shown(cell) or guessed(cell)[0] or answered(cell)):
            found.append(f"{cell.id}: it shows nothing that stands on a slide")
        if not marked(cell):
            continue
        asked.add(guessed(cell)[0])
        unasked = (name for name, _ in answered(cell) if name not in asked)
        found += [f"{cell.id}: it answers {name}, and no slide before asks it" for name in unasked]
        for output in shown(cell):
            rows = _table(output)[2]
            if rows and max(_lines(rows)) > LINES:
                found.append(f"{cell.id}: a row of its table is higher than a slide")
    for cell, following in pairwise(cells):
        if marked(cell) and cell.cell_type == "markdown" and _FOLDED.sub("", cell.source).strip().endswith(":"):
            if not marked(following):
                found.append(f"{cell.id}: it ends in a colon, and what comes then is not marked")
    return found


def _gathered(found):
    """A displayed formula of several, each on a line of its own."""
    lines = re.split(r",?\s*\\q?quad\s*", found[1].strip())
    return found[0] if len(lines) == 1 else f"$${_stacked(lines, 0.6)}$$"


def _large(found):
    return f'<p class="everybyte-large">{escape(" ".join(found[1].split()))}</p>'


def _last(said):
    """The last paragraph of what was said, "" where there is none."""
    return next((b for b in reversed(said) if not (_LIST.match(b) or re.match(r"[|~`<#$]", b))), "")


def deck(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The slides of a notebook that ran, as a notebook: of what is marked."""
    slides = _Deck()
    for cell, following in zip(notebook.cells, [*notebook.cells[1:], None], strict=True):
        if cell.cell_type == "markdown":
            slides.say(cell, following)
        elif marked(cell):
            slides.show(cell)
    return nbformat.v4.new_notebook(cells=slides.cells, metadata=notebook.metadata)


class _Deck:
    """Slides as they are made: `before` is what leads to the next output, `most` how many words of it."""

    def __init__(self):
        self.cells: list = []
        self.heading = self.opened = self.before = ""
        self.most = LEAD
        self.questions: dict[str, str] = {}

    def put(self, text="", code=None):
        top = _BREAK if self.heading == self.opened else f"{'##' if self.opened else '#'} {self.heading}"
        self.opened = self.heading
        self.cells.append(nbformat.v4.new_markdown_cell("\n\n".join(filter(None, [top, text]))))
        if code is not None:
            self.cells.append(code)

    def say(self, cell, following) -> None:
        """A cell of text: its parts, each under its heading."""
        for part in re.split(r"^(?=#{1,3} )|^(?=\*\*\d+\.\d+\*\*)", cell.source, flags=re.M):
            if not part.strip():
                continue
            if found := re.match(r"#{1,3} (.*)", part):
                self.heading, part = found[1], part[found.end() :]
            last = cell.source.endswith(part)
            part = _HINTS.sub("", part)
            housekeeping = _SPOKEN.match(part.strip().rpartition("\n\n")[2])
            self.before, self.most = "" if housekeeping else _last(blocks(part)), LEAD
            if marked(cell):
                over = following and marked(following) and following.cell_type == "code" and last
                self.part(part, over)
            spoken = "\n\n".join(_FOLDED.findall(part) + _SPOKEN.findall(_FOLDED.sub("", part)))
            if self.cells and (note := _notes(spoken if marked(cell) else part)):
                self.cells[-1 if self.cells[-1].cell_type == "markdown" else -2].source += f"\n\n{note}"

    def part(self, part, over) -> None:
        """A marked part. over: an output follows, which its last sentence may promise."""
        said, promise = list(ideas(part)), ""
        *others, end = blocks(part) or [""]
        short = over and others and end == _last([end]) and len(end.split()) <= LEAD
        if said and (end.endswith(":") or short):
            *rest, promise = blocks(said.pop())
            said += ["\n\n".join(rest)] if rest else []
        for text in said or ([""] if not self.opened and not promise else []):
            self.put(_MATH.sub(_gathered, _ASKED.sub(_large, text) if _ASKED.fullmatch(text) else text))
        self.before, self.most = promise, WORDS

    def show(self, cell) -> None:
        """A marked cell of code: its answers, outputs and guess."""
        for name, answer in answered(cell):
            asked = escape(self.questions.get(name, "The answer:"))
            self.put(f'<p>{asked}</p>\n\n<p class="everybyte-large">{escape(answer)}</p>')
        for output in [one for whole in formulas(shown(cell)) for one in parted(whole)]:
            tags = [] if "slide-code" in cell.metadata.get("tags", ()) else ["remove-input"]
            code = nbformat.v4.new_code_cell(cell.source, outputs=[output], metadata={"tags": tags})
            self.put(sentences(self.before, self.words(output), last=True), code)
            self.before = ""
        name, question = guessed(cell)
        if question:
            self.questions[name] = question
            lead, large = sentences(self.before, self.most, last=True), escape(question)
            self.put(f'{lead}\n\nYour guess, aloud:\n\n<p class="everybyte-large">{large}</p>')
        self.before = ""

    def words(self, output) -> int:
        """How many words lead to an output."""
        html = output.get("data", {}).get("text/html", "")
        if "everybyte-live" in html:
            return 0
        return min(self.most, OVER_PICTURE) if "<img" in html and self.most == LEAD else self.most


def build(
    output: Path = SLIDES, only: list[str] = (), jobs: int = 2, anew: bool = False, timeout: int = 240, course: str = ""
) -> None:
    """Build decks into `output`, which is replaced only when all went well. Decks that stand there already stay.

    Args:
        only: the chapters whose decks are built; by default all. course: a track of the workshop: one deck of its chapters, in order.

    Raises:
        RuntimeError: where a cell fails, Sphinx warns, or a link is broken; ValueError for no chapter or track.
    """
    wanted = track(course) if course else list(only)
    there = {path.stem for path in output.glob("*/*.html")}
    with replaced(output) as work:
        source = work / "source"
        entries = [e for e in written(wanted) if not wanted or e.slug in wanted or e.slug in there]
        made = {}

        def page(entry):
            place = source / entry.path
            place.parent.mkdir(exist_ok=True)
            ran = kept(ROOT / entry.path, timeout, anew)
            for output in [o for cell in ran.cells for o in cell.get("outputs", []) if ON_SLIDE in o.get("data", {})]:
                output.data["image/png"] = output.data[ON_SLIDE]
            notebook = deck(live(ran, place.stem, source / "extra" / "pictures"))
            for cell in notebook.cells:  # what another chapter says is not in this deck
                cell.source = re.sub(r"(?<!!)\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", cell.source)
            made[entry.slug] = deepcopy(notebook)
            notebook.cells[0].source += face.marker(entry.part)
            nbformat.write(notebook, place)

        each(page, entries, jobs)
        links = [f"- [{e.slug}]({e.path}): {e.question}" for e in entries]
        places = [Path(e.path).with_suffix("").as_posix() for e in entries]
        if course:
            nbformat.write(joined([made[slug] for slug in wanted]), source / "notebooks" / f"track_{course}.ipynb")
            links.insert(0, f"- [the track {course}](notebooks/track_{course}.ipynb): its chapters, one after another")
            places.insert(0, f"notebooks/track_{course}")
        text = "# Every Byte: slides\n\n{}\n\n```{{toctree}}\n:hidden:\n\n{}\n```\n"
        (source / "index.md").write_text(text.format("\n".join(links), "\n".join(places)), encoding="utf-8")
        sphinx(work, "revealjs")
        for theme in (work / "html").glob("_static/revealjs/dist/theme/*.css"):  # the others ask for fonts outside
            if theme.stem != "white":
                theme.unlink()


def joined(decks: list[nbformat.NotebookNode]) -> nbformat.NotebookNode:
    """Decks as one, with the state of all their widgets; only the first has a title, each other's is a slide."""
    cells, states = [], {}
    for number, one in enumerate(decks):
        for cell in map(nbformat.from_dict, one.cells):
            cell.id = f"{number}-{len(cells)}"
            if number and cell.cell_type == "markdown":
                cell.source = re.sub(r"^# ", "## ", cell.source)
            cells.append(cell)
        states |= one.metadata.get("widgets", {}).get(STATES, {}).get("state", {})
    metadata = dict(decks[0].metadata)
    if states:
        metadata["widgets"] = {STATES: {"version_major": 2, "version_minor": 0, "state": states}}
    return nbformat.v4.new_notebook(cells=cells, metadata=metadata)


if __name__ == "__main__":
    sys.exit(main(build, SLIDES, __doc__, courses=tracks()))
