"""Worksheets for a workshop: of each chapter the predictions and the exercises, with room to write and without answers.

They are read off the notebooks, so a question stands once. `make worksheets` prints one file for each part.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
from contents import contents
from tracks import tracks

ROOT = Path(__file__).resolve().parents[1]
_FOLDED = re.compile(r"<details>.*?</details>", re.S)
_HINTS = re.compile(r"\s*\(?(?:Stuck\?|Each exercise has two hints)[^\n]*")
_EXERCISE = re.compile(r"^\*\*(\d\d\.\d+)\*\*", re.M)
_LINKS = re.compile(r"\[([^\[\]]+)\]\([^()\s]+\.ipynb[^()\s]*\)")
#: Lines to write on, under a prediction and under an exercise.
_SHORT, _LONG = 1, 5


def predictions(notebook) -> Iterator[tuple[str, str, str, str]]:
    """(id, question, unit, what stands before it) of each prediction, in order. Before it: the sentences that say which run is meant.

    Raises:
        ValueError: a prediction whose question is neither text nor a name that its cell gives a text.
    """
    before = ""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            last = cell.source.strip().rpartition("\n\n")[2]
            before = "" if last.startswith(("#", "|", "<", "```", "*")) else _LINKS.sub(r"\1", last) + "\n\n"
        elif "predict(" in cell.source:
            for asked in _asked(ast.parse(cell.source)):
                yield *asked, before
                before = ""


def _asked(program):
    """(id, question, unit) of each call of `predict`."""
    named = {}
    for node in ast.walk(program):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            named |= {target.id: node.value.value for target in node.targets if isinstance(target, ast.Name)}
    for node in ast.walk(program):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "predict":
            said = dict(zip(("id", "guess", "question", "unit"), node.args, strict=False))
            said |= {keyword.arg: keyword.value for keyword in node.keywords}
            texts = {key: named.get(value.id) if isinstance(value, ast.Name) else getattr(value, "value", None)
                     for key, value in said.items()}  # fmt: skip
            if not isinstance(texts.get("question"), str):
                raise ValueError(f"predict({texts.get('id')!r}): its question is no text that can be read off the cell")
            yield texts["id"], texts["question"], texts.get("unit", "GiB")


def exercises(notebook) -> Iterator[tuple[str, str]]:
    """(id, text) of each exercise, in the notebook's order, without hints and solution."""
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            continue
        text = _LINKS.sub(r"\1", _HINTS.sub("", _FOLDED.sub("", cell.source)))
        found = [*_EXERCISE.finditer(text)]
        for match, after in zip(found, [*found, None][1:], strict=True):
            part = text[match.start() : after.start() if after else None]
            yield match[1], re.split(r"^#", part, maxsplit=1, flags=re.M)[0].strip()


def sheet(notebook) -> str:
    """One chapter's worksheet, in Markdown.

    Raises:
        ValueError: as `predictions`.
    """
    title = re.search(r"^# (.+)$", notebook.cells[0].source, re.M)[1]
    question = re.search(r"\*\*(.+?)\*\*", notebook.cells[0].source)[1]
    lines = [f"## {title}", f"*{question}*"]
    guesses = [f"{run}**{id}** {asked} {_blank(unit)}{_room(_SHORT)}" for id, asked, unit, run in predictions(notebook)]
    tasks = [f"{text}{_room(_LONG)}" for _, text in exercises(notebook)]
    lines += ["### Before reading: commit to a number", *guesses] if guesses else []
    lines += ["### Exercises", *tasks] if tasks else []
    return "\n\n".join(lines) + "\n"


def _blank(unit):
    return f"(in {unit})" if unit else "(a number)"


def _room(lines):
    return "\n\n" + '<div class="everybyte-room">' + "<br>" * lines + "</div>"


def written(root: Path = ROOT) -> dict[str, str]:
    """{name: worksheets of its chapters, in Markdown} of each part of the book, chapter 00 as part 0, and of each track."""
    entries = [
        e
        for e in contents((root / "README.md").read_text(encoding="utf-8"))
        if e.path and e.path.startswith("notebooks/")
    ]
    sheets = {e.slug: sheet(nbformat.read(root / e.path, as_version=4)) for e in entries}
    parts = {part: [slug for slug in sheets if slug[0] == part] for part in sorted({slug[0] for slug in sheets})}
    sets = [(f"part{part}", part, slugs) for part, slugs in parts.items()]
    sets += [(f"track-{name}", f"of the track {name}", slugs) for name, slugs in tracks(root).items()]
    return {
        name: f"# Every Byte: worksheet {said}\n\nName:\n\n" + "\n".join(sheets[s] for s in slugs if s in sheets)
        for name, said, slugs in sets
    }
