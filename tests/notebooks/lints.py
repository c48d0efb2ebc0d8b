"""What every notebook of the book must be. Each lint is a pure function: notebook in, list of faults out."""

import ast
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

from nbformat import NotebookNode

from everybyte.teach.predictions import TOLD, seal
from everybyte.teach.terms import terms
from notebooks import FOLD, canonical

BEATS = (
    "The question",
    "Derivation",
    "Check",
    "Explorer",
    "Lab",
    "Exercises",
    "Interview answer",
    "The question, answered",
    "You can now",
)
#: A lab's.
STATIONS = (
    "The question",
    "The step",
    "The run",
    "Side by side",
    "Memory against time",
    "The loss",
    "Conclusion",
    "Exercises",
    "You can now",
)
LINES = 20  # of a code cell, at most
WORDS = 1_200  # of a chapter's markdown, at least, code in it and marks included; there is no most
LAB_WORDS = 500  # of a lab's
CELLS = 60  # of a chapter, at most, in sight
TABLES = 8  # of a chapter, at most, in sight
PICTURES = 4  # of a chapter, at least
#: Chapters whose matter is rows: the interview's cards and the articles' claims.
ROWS = ("46", "47")
SENTENCE = 40  # words, at most
LONGEST = 45  # minutes of a chapter, at most, in sight and without exercises
#: Words that a reader of a technical text takes in a minute, and the seconds that the rest of a page takes.
PACE, SECONDS = 150, {"line": 4, "formula": 20, "picture": 40, "table": 45, "guess": 60, "explorer": 240}
_ANSWERED = re.compile(r"Prediction (\S+)\. No guess was made\. The answer is")
#: Turns of phrase that readers stumbled over, and what the field says.
BANNED = {
    r"\bmade (?:again|anew)\b|\bmakes? (?:it |them )?again\b": "recomputed",
    r"\bforgets? (?:it|them|each|every|all|nothing|the (?:block|layer|score|square)s?)\b": "checkpoints, recomputes",
    r"\bcrumbs\b": "small terms",
    r"\b(?:fewer|all their) digits\b": "lower precision, precision bits",
    r"\bso many times\b": "by a factor",
    r"\bknows? nothing of\b|\bnor they of it\b": "is separate code",
    r"\b(?:is|are|was|were|be) let go\b|\blets go\b": "freed",
    r"(?m)(?:^|[.?!] )(?:Down|Up|Out) (?:come|comes|go|goes) ": "the subject before the verb",
    r"(?m)(?:^|[.?!] )Who \w+ it (?:has|pays|needs)\b": "the subject before the verb",
    r"\bmore of (?:it|them) has he who\b|\band is none\b": "plain words",
}
ALT = 40  # characters of alternative text, at least
EXCUSES = re.compile(r"nbval[-_]|raises[-_]exception|skip[-_]execution|PYTEST_VALIDATE", re.IGNORECASE)
MACHINE = re.compile(r"(?<![\w.])/(?:home|root|work|tmp|Users)/|\b[A-Z]:\\Users|\bC:\\")
LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^()\s]+)\)|<a[^>]*\shref=\"([^\"]+)\"")
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^()\s]+)[^)]*\)")
TAG = re.compile(r"<img\b[^>]*>")


def on_disk(root: Path) -> set[str]:
    """Every notebook under notebooks/ and labs/, as paths from `root`; ValueError where there is none."""
    found = {p.relative_to(root).as_posix() for folder in ("notebooks", "labs") for p in root.glob(f"{folder}/*.ipynb")}
    if not found:
        raise ValueError(f"no notebook in {root.name}/notebooks or {root.name}/labs")
    return found


def is_chapter(path: str) -> bool:
    """Not the first two, which have no beats yet, nor 48, which is a page of many questions."""
    return path.startswith("notebooks/") and not Path(path).name.startswith(("00", "01", "48"))


def is_lab(path: str) -> bool:
    return path.startswith("labs/")


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [c for c in notebook.cells if c.cell_type == "code"]


def prose(notebook: NotebookNode) -> list[str]:
    """The text of the markdown cells, without code."""
    texts = (c.source for c in notebook.cells if c.cell_type == "markdown")
    return [re.sub(r"`[^`\n]*`", "`code`", re.sub(r"^(```|~~~).*?^\1", "", t, flags=re.S | re.M)) for t in texts]


def headings(notebook: NotebookNode) -> list[tuple[int, str]]:
    found = (re.findall(r"^(#{1,6}) +(.+?) *#*$", text, re.M) for text in prose(notebook))
    return [(len(marks), text) for cell in found for marks, text in cell]


def section(notebook: NotebookNode, *names: str) -> str:
    """The prose that stands under these headings of the second level."""
    kept, inside = [], False
    for text in prose(notebook):
        for part in re.split(r"^(?=## )", text, flags=re.M):
            if match := re.match(r"## +(.+?) *$", part, re.M):
                inside = match[1] in names
            if inside:
                kept.append(part)
    return "\n".join(kept)


def links(text: str) -> list[str]:
    return [a or b for a, b in LINK.findall(text)]


def beats(notebook: NotebookNode) -> list[str]:
    found = [text for level, text in headings(notebook) if level == 2]
    return [] if tuple(found) == BEATS else [f"second-level headings are {found}; a chapter's are {list(BEATS)}"]


def stations(notebook: NotebookNode) -> list[str]:
    found = [text for level, text in headings(notebook) if level == 2]
    return [] if tuple(found) == STATIONS else [f"second-level headings are {found}; a lab's are {list(STATIONS)}"]


def runs_really(notebook: NotebookNode) -> list[str]:
    """A lab measures on a GPU or shows the record, and where there is neither runs the same step on the CPU."""
    sources = "\n".join(c.source for c in code_cells(notebook))
    calls = re.findall(r"lab\.runs\(((?:[^()]|\([^()]*\))*)\)", sources)
    if (
        "eb.leaks(" in sources
    ):  # what Python holds is the same on every device: it runs on the CPU, and that is all there is
        return []
    faults = [] if any("device" not in call for call in calls) else ["no lab.runs(...) on a GPU or from its record"]
    return faults + ([] if any('device="cpu"' in call for call in calls) else ['no lab.runs(..., device="cpu")'])


def heading_levels(notebook: NotebookNode) -> list[str]:
    levels = [level for level, _ in headings(notebook)]
    faults = (
        [] if levels[:1] == [1] and levels.count(1) == 1 else ["there must be one title (# ...), and it comes first"]
    )
    return faults + [f"a heading of level {b} under one of level {a}" for a, b in pairwise(levels) if b > a + 1]


def cell_lengths(notebook: NotebookNode) -> list[str]:
    lines = [len(c.source.splitlines()) for c in code_cells(notebook)]
    faults = [
        f"code cell {i} has {n} lines; allowed: 1 to {LINES}" for i, n in enumerate(lines, 1) if not 1 <= n <= LINES
    ]
    middle = median(lines or [0])
    return faults + ([] if 2 <= middle <= 4 else [f"the median code cell has {middle} lines; allowed: 2 to 4"])


def code(notebook: NotebookNode) -> list[str]:
    """The first cell imports and does no more; no magics, no installs, no star imports, no trailing semicolons."""
    faults = []
    for number, cell in enumerate(code_cells(notebook), 1):
        if re.search(r"^\s*[!%]", cell.source, re.M) or re.search(r"\bpip3? +install\b", cell.source):
            faults.append(f"code cell {number}: a magic, a shell line or an install")
            continue
        if cell.source.rstrip().endswith(";"):
            faults.append(f"code cell {number}: ends with a semicolon")
        try:
            tree = ast.parse(cell.source)
        except SyntaxError as error:
            faults.append(f"code cell {number}: {error}")
            continue
        if number == 1 and not (tree.body and all(isinstance(n, ast.Import | ast.ImportFrom) for n in tree.body)):
            faults.append("the first code cell must import and do no more")
        stars = (n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.names[0].name == "*")
        faults += [f"code cell {number}: from {n.module} import *" for n in stars]
    return faults


def outputs(notebook: NotebookNode) -> list[str]:
    """Run once, top to bottom, without errors or warnings, and stored as `tools/notebooks.py run` stores it."""
    faults = []
    counts = [c.execution_count for c in code_cells(notebook)]
    if counts != list(range(1, len(counts) + 1)):
        faults.append(f"execution counts are {counts}: run it top to bottom")
    for number, cell in enumerate(code_cells(notebook), 1):
        kinds = {o.get("name", o.output_type) for o in cell.outputs}
        faults += [f"code cell {number} stores {kind} output" for kind in sorted(kinds & {"error", "stderr"})]
    if "widgets" in notebook.metadata:
        faults.append("widget state is stored")
    if canonical(notebook) != notebook:
        faults.append("not as stored by tools/notebooks.py run (times, addresses, live widgets or ids)")
    return faults


def excuses(notebook: NotebookNode) -> list[str]:
    """No cell is excused from running or from being compared."""
    marks = [" ".join(c.metadata.get("tags", [])) + "".join(re.findall("#.*", c.source)) for c in code_cells(notebook)]
    return [f"code cell {i} is excused: {text}" for i, text in enumerate(marks, 1) if EXCUSES.search(text)]


def spoilers(notebook: NotebookNode) -> list[str]:
    """No answer stands before its prediction: none with a decimal point, which is not there by chance. And none in plain text."""
    faults, said, asked = [], "", {}
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        texts = [o.get("text", "") + o.get("data", {}).get("text/plain", "") for o in outputs]
        asked |= {name: said for text in texts for name in re.findall(r"Prediction (\S+)\. .* Not guessed yet", text)}
        for told in filter(None, (o.get("metadata", {}).get(TOLD) for o in outputs)):
            name = told["prediction"]
            faults += [f"the answer of prediction {name} is stored"] * ("answer" in told)
            numbers = set(re.findall(r"(?<![\d.,])\d[\d,]*\.\d+", asked.get(name, "")))
            told_before = [one for one in numbers if seal(name, one) in told["sealed"]]
            faults += [f"the answer of prediction {name}, {one}, stands before it" for one in told_before]
        for text in texts:
            faults += [f"the answer of prediction {name} stands in plain text" for name in _ANSWERED.findall(text)]
        said += "\n".join([*([cell.source] if cell.cell_type == "markdown" else []), *texts, ""])
    return faults


def answers(notebook: NotebookNode) -> list[str]:
    """Every prediction is answered in some output: a `reveal` that is not the last of its cell shows nothing."""
    source = "\n".join(c.source for c in code_cells(notebook))
    told = {o.get("metadata", {}).get(TOLD, {}).get("prediction") for c in code_cells(notebook) for o in c.outputs}
    return [
        f"prediction {id} has no answer" for id in re.findall(r"\bpredict\(\s*\"([^\"]+)\"", source) if id not in told
    ]


def machine_paths(notebook: NotebookNode) -> list[str]:
    faults = []
    for number, cell in enumerate(notebook.cells, 1):
        texts = [cell.source]
        for output in cell.get("outputs", []):
            data = {k: v for k, v in output.get("data", {}).items() if not k.startswith("image/")}
            texts += [output.get("text", ""), *map(str, data.values())]
        faults += [f"cell {number}: a path of one machine, {m[0]!r}" for text in texts if (m := MACHINE.search(text))]
    return faults


def alternative_text(notebook: NotebookNode) -> list[str]:
    """A picture's alternative text states its message and a number."""
    faults = []
    for number, cell in enumerate(notebook.cells, 1):
        said = []
        for output in cell.get("outputs", []):
            images = [kind for kind in output.get("data", {}) if kind.startswith("image/")]
            said += [output.metadata.get(kind, {}).get("alt", "") for kind in images]
        if cell.cell_type == "markdown":
            said += [alt for alt, _ in PICTURE.findall(cell.source)]
            said += [(re.search(r"\balt=\"([^\"]*)\"", tag) or ["", ""])[1] for tag in TAG.findall(cell.source)]
        short = (alt for alt in said if len(alt) < ALT or not re.search(r"\d", alt))
        faults += [f"cell {number}: {alt!r} is no alternative text ({ALT} characters, with a number)" for alt in short]
    return faults


def in_sight(notebook: NotebookNode) -> list[NotebookNode]:
    """The cells that no folded heading hides, and the cells of such headings."""
    kept, folded = [], 0
    for cell in notebook.cells:
        found = re.search(r"^(#{1,6}) ", cell.source, re.M) if cell.cell_type == "markdown" else None
        if found and len(found[1]) <= folded:
            folded = 0
        kept += [] if folded else [cell]
        if found and FOLD in cell.metadata.get("tags", []):
            folded = len(found[1])
    return kept


def folds(notebook: NotebookNode) -> list[str]:
    """What folds is a part of the third level, and its cell begins with the heading, as JupyterLab folds by cells."""
    marked = [(i, c) for i, c in enumerate(notebook.cells, 1) if FOLD in c.metadata.get("tags", [])]
    return [
        f"cell {i} is tagged {FOLD!r} and does not begin with ### "
        for i, c in marked
        if not c.source.startswith("### ")
    ]


def words(notebook: NotebookNode, least: int = WORDS) -> list[str]:
    """Every word of the markdown counts: a solution's code is read as well."""
    count = sum(len(c.source.split()) for c in notebook.cells if c.cell_type == "markdown")
    return [] if count >= least else [f"{count:,} words; a chapter that says why has {least:,} and more"]


def short(notebook: NotebookNode) -> list[str]:
    """A chapter of a bounded number of cells in sight."""
    seen = len(in_sight(notebook))
    return ([] if seen <= CELLS else [f"{seen} cells in sight; allowed: {CELLS}"]) + words(notebook)


def tables(notebook: NotebookNode) -> list[str]:
    """Few tables in sight: what a table says beside the argument is folded, or a picture."""
    count = 0
    for cell in in_sight(notebook):
        if cell.cell_type == "markdown":
            text = re.sub(r"<details>.*?</details>", "", cell.source, flags=re.S)
            count += len(re.findall(r"^\|[-:| ]+\|$", text, re.M))
        for output in cell.get("outputs", []):
            count += output.get("data", {}).get("text/html", "").count("<table")
    return [] if count <= TABLES else [f"{count} tables in sight; allowed: {TABLES}"]


def pictures(notebook: NotebookNode) -> list[str]:
    """Anything people would rather look at than read is a picture."""
    count = 0
    for cell in in_sight(notebook):
        if cell.cell_type == "markdown":
            count += len(PICTURE.findall(cell.source))
        kinds = [kind for output in cell.get("outputs", []) for kind in output.get("data", {})]
        count += len([kind for kind in kinds if kind.startswith("image/")])
    return [] if count >= PICTURES else [f"{count} pictures in sight; a chapter has {PICTURES} and more"]


def reading(notebook: NotebookNode) -> float:
    """Minutes of what is in sight, without the exercises: words, lines of code, what they print, two guesses, the explorer."""
    exercises, words, counts = False, 0, dict.fromkeys(SECONDS, 0)
    for cell in in_sight(notebook):
        if cell.cell_type == "markdown":
            text = re.sub(r"<details>.*?</details>|\]\([^)]*\)", "", cell.source, flags=re.S)
            for part in re.split(r"^(?=## )", text, flags=re.M):
                exercises = part.startswith("## Exercises") or (exercises and not part.startswith("## "))
                words += 0 if exercises else len(part.split())
                counts["explorer"] += part.startswith("## Explorer")
                counts["picture"] += len(PICTURE.findall(part))
        elif not exercises:
            counts["line"] += 0 if "hide-input" in cell.metadata.get("tags", []) else len(cell.source.splitlines())
            counts["guess"] += cell.source.count("predict(")
            for data in (output.get("data", {}) for output in cell.outputs):
                counts["formula"] += "text/latex" in data
                counts["picture"] += any(kind.startswith("image/") for kind in data)
                counts["table"] += data.get("text/html", "").count("<table")
    return words / PACE + sum(SECONDS[what] * n for what, n in counts.items()) / 60


def minutes(notebook: NotebookNode) -> list[str]:
    """A chapter says how long its reading takes, to five minutes, as `reading` counts it."""
    said = re.search(r"^\*(\d+) minutes\b", "\n".join(prose(notebook)), re.M)
    needs = reading(notebook)
    due = 5 * round(needs / 5)
    faults = (
        [] if said and int(said[1]) == due else [f"says {said and said[1]} minutes; its pages take {needs:.0f}: {due}"]
    )
    return faults + ([] if needs <= LONGEST else [f"takes {needs:.0f} minutes; allowed: {LONGEST}"])


def seen(notebook: NotebookNode) -> list[str]:
    """Who tried the explorer can look up what was to be seen."""
    there = "<summary>What you should have seen</summary>" in section(notebook, "Explorer")
    return [] if there else ['no fold "What you should have seen" under "Explorer"']


def asked(notebook: NotebookNode) -> list[str]:
    """A chapter opens with a question that somebody asked in public, and closes with its answer, computed."""
    opens = [link for link in links(section(notebook, BEATS[0])) if link.startswith("https://")]
    names = [re.findall(r"^## +(.+?) *$", c.source, re.M) if c.cell_type == "markdown" else [] for c in notebook.cells]
    place = next((i for i, found in enumerate(names) if found[-1:] == [BEATS[-2]]), None)
    computed = place is not None and notebook.cells[place + 1].cell_type == "code"
    return ([] if opens else [f'"{BEATS[0]}" links no place where it was asked']) + (
        [] if computed else [f'no code cell under "{BEATS[-2]}"']
    )


def sentences(notebook: NotebookNode) -> list[str]:
    """The sentences of the prose: without tables, headings, addresses and tags; a formula is one word."""
    found = []
    for text in prose(notebook):
        text = re.sub(r"^(?:\||#+ ).*$", "", text, flags=re.M)
        text = re.sub(r"\$\$.*?\$\$|\$[^$]*\$", "formula", text, flags=re.S)
        text = re.sub(r"<[^>]+>", "", re.sub(r"\[([^\[\]]*)\]\([^()]*\)", r"\1", text))
        for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
            found += re.split(r"(?<=[.?!:])[\"”*)]*\s+", " ".join(paragraph.split()))
    return found


def plain(notebook: NotebookNode) -> list[str]:
    """No sentence that must be read twice for its length, and none of the phrases that readers stumbled over."""
    faults = [
        f"{len(s.split())} words in a sentence; allowed: {SENTENCE}: {s[:60]} …"
        for s in sentences(notebook)
        if len(s.split()) > SENTENCE
    ]
    return faults + phrases("\n".join(prose(notebook)))


def phrases(text: str) -> list[str]:
    """The phrases of a text that readers stumbled over, each with what the field says."""
    return [f"{m[0].strip()!r}; say: {say}" for banned, say in BANNED.items() for m in re.finditer(banned, text)]


def ids(notebook: NotebookNode) -> list[str]:
    """A prediction's id begins with P, an exercise's with its chapter: "do 13.1" is one thing."""
    source = "\n".join(c.source for c in code_cells(notebook))
    found = re.findall(r"\b(predict|reveal|check|hint)\(\s*\"([^\"]+)\"", source)
    return [
        f"{call}({id!r}): a prediction's id begins with P, and no other"
        for call, id in found
        if id.startswith("P") != (call in ("predict", "reveal"))
    ]


def lab_words(notebook: NotebookNode) -> list[str]:
    return words(notebook, LAB_WORDS)


def anchors(notebook: NotebookNode) -> set[str]:
    """The anchors that JupyterLab gives to headings."""
    return {text.replace(" ", "-") for _, text in headings(notebook)}


def broken_links(notebook: NotebookNode, folder: Path, read: callable) -> list[str]:
    """Links to files and headings that do not exist; `read(path)` gives the notebook behind a link."""
    faults = []
    targets = [t for text in prose(notebook) for t in links(text) + [p for _, p in PICTURE.findall(text)]]
    for target in targets:
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = folder / name
        if name and not path.exists():
            faults.append(f"link to {target}: no such file")
        elif anchor and (not name or path.suffix == ".ipynb"):
            if anchor not in anchors(read(path) if name else notebook):
                faults.append(f"link to {target}: no such heading (an anchor is the heading with - for spaces)")
    return faults


def neighbors(notebook: NotebookNode, path: str, order: Sequence[str]) -> list[str]:
    """The question links the chapter before and after; "You can now", the one after. `order`: paths that exist."""
    here = [p for p in order if Path(p).parent == Path(path).parent]
    place = here.index(path)
    top, end = "\n".join(prose(notebook)), section(notebook, BEATS[-1])
    if is_chapter(path):
        top = section(notebook, BEATS[0])
    faults = []
    for what, index in (("previous", place - 1), ("next", place + 1)):
        if 0 <= index < len(here):
            name = Path(here[index]).name
            faults += [] if name in links(top) else [f'no link to the {what} chapter, {name}, in "{BEATS[0]}"']
            if what == "next" and is_chapter(path) and name not in links(end):
                faults.append(f'no link to the next chapter, {name}, in "{BEATS[-1]}"')
    return faults


def reading_order(notebook: NotebookNode, slug: str, order: Sequence[str]) -> list[str]:
    """No term before its definition: earlier, it follows a link to the chapter that defines it; there, its first use is marked.

    `order`: the chapters' slugs, as one reads them.
    """
    faults, here = [], order.index(slug)
    cells = [re.sub(r"^#.*$", "", text, flags=re.M) for text in prose(notebook)]
    for term in terms().values():
        first = next((text for text in cells if term.pattern.search(text)), None)
        place = order.index(term.chapter)
        if first is None or place < here:
            faults += [f"{term.name!r} is not defined here, as terms.toml says"] * (place == here)
        elif place == here:
            marked = re.search(rf"\*[^*\n]*{term.pattern.pattern}[^*\n]*\*", first, term.pattern.flags)
            faults += [] if marked else [f"{term.name!r}: its first use is not in italics or bold"]
        elif f"{term.chapter}.ipynb" not in "\n".join(cells[: cells.index(first) + 1]):
            faults.append(f"{term.name!r} stands before its chapter, without a link to {term.chapter}")
    return faults


EVERYWHERE = (
    heading_levels,
    cell_lengths,
    code,
    outputs,
    excuses,
    spoilers,
    answers,
    machine_paths,
    alternative_text,
    plain,
    ids,
    folds,
)
IN_CHAPTERS = (beats, short, asked)
IN_SIGHT = (tables, pictures)  # in chapters but those whose matter is rows
IN_LABS = (stations, runs_really, lab_words)
