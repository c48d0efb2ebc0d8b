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


def predictions(notebook) -> Iterator[tuple[str, str, str]]:
    """(id, question, unit) of each prediction, in the notebook's order.

    Raises:
        ValueError: a prediction whose question is neither text nor a name that its cell gives a text.
    """
    for cell in notebook.cells:
        if cell.cell_type != "code" or "predict(" not in cell.source:
            continue
        named = {}
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                named |= {target.id: node.value.value for target in node.targets if isinstance(target, ast.Name)}
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "predict":
                said = dict(zip(("id", "guess", "question", "unit"), node.args, strict=False))
                said |= {keyword.arg: keyword.value for keyword in node.keywords}
                texts = {key: named.get(value.id) if isinstance(value, ast.Name) else getattr(value, "value", None)
                         for key, value in said.items()}  # fmt: skip
                if not isinstance(texts.get("question"), str):
                    raise ValueError(
                        f"predict({texts.get('id')!r}): its question is no text that can be read off the cell"
                    )
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
    guesses = [f"{run}**{id}** {asked} {_blank(unit)}{_room(_SHORT)}" for run, id, asked, unit in told(notebook)]
    tasks = [f"{text}{_room(_LONG)}" for _, text in exercises(notebook)]
    lines += ["### Before reading: commit to a number", *guesses] if guesses else []
    lines += ["### Exercises", *tasks] if tasks else []
    return "\n\n".join(lines) + "\n"


def told(notebook) -> Iterator[tuple[str, str, str, str]]:
    """(what stands before it, id, question, unit) of each prediction: the sentences that say which run is meant."""
    asked, before = {id: rest for id, *rest in predictions(notebook)}, ""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            last = cell.source.strip().rpartition("\n\n")[2]
            before = "" if last.startswith(("#", "|", "<", "```", "*")) else _LINKS.sub(r"\1", last) + "\n\n"
            continue
        for id in [id for id in asked if "predict(" in cell.source and f'"{id}"' in cell.source]:
            yield (before, id, *asked.pop(id))
            before = ""


def _blank(unit):
    return f"(in {unit})" if unit else "(a number)"


def _room(lines):
    return "\n\n" + '<div class="everybyte-room">' + "<br>" * lines + "</div>"


def _sheets(entries, root):
    return [sheet(nbformat.read(root / entry.path, as_version=4)) for entry in entries]


def _whole(name, sheets):
    return f"# Every Byte: worksheet {name}\n\nName:\n\n" + "\n".join(sheets)


def written(root: Path = ROOT) -> dict[str, str]:
    """{name: worksheets of its chapters, in Markdown} of each part of the book, chapter 00 as part 0, and of each track."""
    chapters = {
        e.slug: e
        for e in contents((root / "README.md").read_text(encoding="utf-8"))
        if e.path and e.path.startswith("notebooks/")
    }
    sheets = dict(zip(chapters, _sheets(chapters.values(), root), strict=True))
    parts = sorted({slug[0] for slug in chapters})
    found = {f"part{part}": [text for slug, text in sheets.items() if slug[0] == part] for part in parts}
    found |= {
        f"track-{name}": [sheets[slug] for slug in slugs if slug in sheets] for name, slugs in tracks(root).items()
    }
    return {
        name: _whole(name.replace("track-", "of the track ").replace("part", ""), some) for name, some in found.items()
    }
