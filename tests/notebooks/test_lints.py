"""The lints find what they are there to find: one right notebook, and it broken in one way after another."""

import subprocess
import sys
from pathlib import Path

import lints
import nbformat
import pytest
from contents import contents
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from everybyte.teach.predictions import seal
from everybyte.teach.terms import Term
from notebooks import WIDGET_VIEW, canonical, execute, main

ROOT = Path(__file__).resolve().parents[2]
ALT = "Bars: the gradients take 4 bytes of the 16 that each parameter costs."
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def right():
    """A chapter with which no lint finds fault."""
    cells = [new_markdown_cell("# A title"), new_code_cell("import math\nimport sys")]
    for beat in lints.BEATS:
        cells.append(
            new_markdown_cell(
                f"## {beat}\n\n" + "word word word word. " * 37 + "`a #b`\n\n```python\n# no heading\n```"
            )
        )
        cells.append(new_code_cell("x = 1\nx + 1", outputs=[new_output("execute_result", {"text/plain": "2"})]))
    cells[2].source += "\n\n[before](a.ipynb) [after](c.ipynb) [there](#You-can-now)"
    cells[-2].source += "\n\n[after](c.ipynb)"
    cells[2].source += " [asked](https://example.org/thread)\n\n*15 minutes. Read before: nothing.*"
    cells[8].source += "\n\n<details><summary>What you should have seen</summary>\n\nTwo.\n\n</details>"
    cells.append(new_code_cell("picture()\npicture()", outputs=[picture(ALT)] * 4))
    notebook = new_notebook(cells=cells)
    for number, cell in enumerate(lints.code_cells(notebook), 1):
        cell.execution_count = number
    return canonical(notebook)


def picture(alt):
    data = {"image/png": PNG, "text/plain": "a picture"}
    return new_output("display_data", data, metadata={"image/png": {"alt": alt}})


def order(path="notebooks/b.ipynb"):
    return ["notebooks/a.ipynb", path, "notebooks/c.ipynb"]


def test_no_lint_faults_a_right_notebook(tmp_path):
    for lint in (*lints.EVERYWHERE, *lints.IN_CHAPTERS, *lints.IN_SIGHT, lints.minutes, lints.seen):
        assert lint(right()) == [], lint.__name__
    for name in ("a.ipynb", "c.ipynb"):
        (tmp_path / name).touch()
    assert lints.broken_links(right(), tmp_path, nbformat.read) == []
    assert lints.neighbors(right(), order()[1], order()) == []


def answered(text="Prediction P1. No guess was made. print(_) shows the answer without one."):
    told = {"everybyte": {"prediction": "P1", "sealed": [seal("P1", "4.51 GiB"), seal("P1", "4.51")]}}
    return new_output("execute_result", {"text/plain": text}, metadata=told)


def told_before(notebook):
    said = {"text/plain": "Prediction P1. How much? Not guessed yet: put"}
    notebook.cells[3].outputs, notebook.cells[5].outputs = [new_output("execute_result", said)], [answered()]
    assert lints.spoilers(notebook) == []
    notebook.cells[2].source += "\n\nIt is 4.51 GiB."


def source(cell, old, new):
    def change(notebook):
        assert old in notebook.cells[cell].source
        notebook.cells[cell].source = notebook.cells[cell].source.replace(old, new)

    return change


def edit(cell, **fields):
    return lambda notebook: notebook.cells[cell].update(nbformat.from_dict(fields))


def output(cell, *outputs):
    return edit(cell, outputs=list(outputs))


def markdown(text):
    return lambda notebook: notebook.cells.append(new_markdown_cell(text, id=f"c{len(notebook.cells) + 1:02d}"))


BROKEN = {
    "a beat is missing": (lints.beats, lambda n: n.cells.pop(4)),
    "two beats change places": (lints.beats, lambda n: n.cells.insert(2, n.cells.pop(4))),
    "a beat is renamed": (lints.beats, source(6, "Check", "Checks")),
    "two titles": (lints.heading_levels, source(2, "## ", "# ")),
    "no title": (lints.heading_levels, source(0, "# ", "")),
    "a level is skipped": (lints.heading_levels, markdown("#### Deep")),
    "a long cell": (lints.cell_lengths, edit(3, source="x\n" * 21)),
    "an empty cell": (lints.cell_lengths, edit(3, source="")),
    "long cells": (lints.cell_lengths, lambda n: [c.update(source="x\n" * 5) for c in lints.code_cells(n)]),
    "tiny cells": (lints.cell_lengths, lambda n: [c.update(source="x") for c in lints.code_cells(n)]),
    "the first cell works": (lints.code, edit(1, source="import math\nx = 1")),
    "a star import": (lints.code, edit(3, source="from math import *\n1")),
    "a magic": (lints.code, edit(3, source="%matplotlib inline\n1")),
    "a shell line": (lints.code, edit(3, source="!ls\n1")),
    "an install": (lints.code, edit(3, source="run('pip install x')\n1")),
    "a semicolon": (lints.code, edit(3, source="x = 1\nx;")),
    "no Python": (lints.code, edit(3, source="x =\n1")),
    "never run": (lints.outputs, edit(3, execution_count=None)),
    "run out of order": (lints.outputs, edit(3, execution_count=9)),
    "an error": (lints.outputs, output(3, new_output("error", ename="E", evalue="", traceback=[]))),
    "a warning": (lints.outputs, output(3, new_output("stream", name="stderr", text="Warning"))),
    "widget state": (lints.outputs, lambda n: n.metadata.update(widgets={})),
    "a live widget": (lints.outputs, output(3, new_output("display_data", {WIDGET_VIEW: {"model_id": "0"}}))),
    "an address": (lints.outputs, output(3, new_output("execute_result", {"text/plain": "<a 0x7f0123456789>"}))),
    "a time": (lints.outputs, edit(3, metadata={"execution": {"iopub.status.busy": "2026"}})),
    "a random id": (lints.outputs, edit(3, id="9f8a7b6c")),
    "a skipped cell": (lints.excuses, edit(3, metadata={"tags": ["nbval-skip"]})),
    "an ignored output": (lints.excuses, edit(3, metadata={"tags": ["nbval-ignore-output"]})),
    "an ignoring comment": (lints.excuses, edit(3, source="# NBVAL_IGNORE_OUTPUT\nx")),
    "an excused error": (lints.excuses, edit(3, metadata={"tags": ["raises-exception"]})),
    "an answer before its prediction": (lints.spoilers, told_before),
    "an answer in plain text": (
        lints.spoilers,
        output(5, answered("Prediction P1. No guess was made. The answer is 4.51 GiB.")),
    ),
    "an answer stored": (
        lints.spoilers,
        lambda n: told_before(n) or n.cells[5].outputs[0].metadata["everybyte"].update(answer="4.51 GiB"),
    ),
    "a prediction without an answer": (lints.answers, edit(3, source='predict("P11.1", ...)\n1')),
    "a home": (lints.machine_paths, source(3, "x = 1", f"open('{Path('/home') / 'me'}')")),
    "a folder printed": (lints.machine_paths, output(3, new_output("stream", text=str(Path("/tmp") / "x")))),
    "a drive": (lints.machine_paths, source(2, "word", "C:" + "\\x")),
    "a picture without text": (lints.alternative_text, output(3, picture(""))),
    "a picture without a number": (lints.alternative_text, output(3, picture("The gradients take a part of " * 3))),
    "a bare picture in prose": (lints.alternative_text, source(2, "word", "![](p.png)")),
    "a bare picture in HTML": (lints.alternative_text, source(2, "word", '<img src="p.png">')),
    "a long sentence": (lints.plain, markdown("word " * 41 + ".")),
    "a banned phrase": (lints.plain, markdown("The block is made again.")),
    "a verb before its subject": (lints.plain, markdown("All rests. Down come the gradients.")),
    "a prediction with an exercise's id": (lints.ids, edit(3, source="predict('11.1', ...)\n1".replace("'", '"'))),
    "an exercise with a prediction's id": (lints.ids, edit(3, source='check("P11.1", ...)\n1')),
    "few words": (lints.words, lambda n: n.cells.pop(2) and n.cells.pop(3)),
    "more cells than one reads": (lints.short, lambda n: n.cells.extend(n.cells[-2:] * 20)),
    "a fold within a cell": (lints.folds, edit(2, metadata={"tags": ["fold"]})),
    "many tables": (lints.tables, markdown("| a |\n|---|\n| 1 |\n\n" * 9)),
    "a table too many": (lints.tables, output(3, new_output("execute_result", {"text/html": "<table></table>" * 9}))),
    "three pictures": (lints.pictures, output(-1, *[picture(ALT)] * 3)),
    "a question that nobody asked": (lints.asked, source(2, "https://", "")),
    "other minutes than it takes": (lints.minutes, source(2, "*15 minutes", "*20 minutes")),
    "no minutes": (lints.minutes, source(2, "*15 minutes", "*minutes")),
    "an hour": (lints.minutes, markdown("word " * 150 * 45)),
    "nothing to be seen": (lints.seen, source(8, "<summary>", "")),
    "an answer that is not computed": (lints.asked, lambda n: n.cells.pop(-4)),
}


@pytest.mark.parametrize(
    ("slug", "text", "said"),
    [
        ("11_a", "*Tied* weights.", []),
        ("11_a", "Tied weights. A *tied* head.", []),
        ("11_a", "Tied weights.\n", ["'tied head': its first use is not in italics or bold"]),
        ("11_a", "Nothing.", ["'tied head' is not defined here, as terms.toml says"]),
        ("00_b", "`tied` is code.", []),
        ("00_b", "Tied weights, of [there](11_a.ipynb).", []),
        ("00_b", "Tied weights.", ["'tied head' stands before its chapter, without a link to 11_a"]),
        ("12_c", "Tied weights.", []),
    ],
)
def test_a_term_stands_after_its_definition(monkeypatch, slug, text, said):
    tied = Term("tied head", "11_a", "One tensor.", ("tied",))
    monkeypatch.setattr(lints, "terms", lambda: {"tied head": tied})
    notebook = new_notebook(cells=[new_markdown_cell(part) for part in text.split("\n")])
    assert lints.reading_order(notebook, slug, ["00_b", "11_a", "12_c"]) == said


def test_reading_takes_what_is_in_sight_and_no_exercise():
    notebook, pace = right(), lints.SECONDS
    before = lints.reading(notebook)
    notebook.cells.insert(13, new_markdown_cell("word " * 300))
    assert notebook.cells[12].source.startswith("## Exercises") and lints.reading(notebook) == before
    notebook.cells.insert(4, new_code_cell("predict('P1', ...)\n1", outputs=[picture(ALT)]))
    assert lints.reading(notebook) - before == pytest.approx((2 * pace["line"] + pace["guess"] + pace["picture"]) / 60)
    notebook.cells[4].metadata["tags"] = ["hide-input"]
    assert lints.reading(notebook) - before == pytest.approx((pace["guess"] + pace["picture"]) / 60)


def test_what_is_folded_is_not_in_sight():
    notebook = right()
    markdown("### More checks")(notebook)
    notebook.cells[-1].metadata["tags"] = ["fold"]
    markdown("| a |\n|---|\n| 1 |\n\n" * 9)(notebook)
    assert lints.tables(notebook) == [] and canonical(notebook).cells[-2].metadata["jp-MarkdownHeadingCollapsed"]
    markdown("## Lab")(notebook)
    markdown("| a |\n|---|\n| 1 |\n\n" * 9)(notebook)
    assert lints.tables(notebook) == ["9 tables in sight; allowed: 8"]


def right_lab():
    """A lab with which no lint finds fault."""
    cells = [new_markdown_cell("# A lab"), new_code_cell("import math\nimport sys")]
    for station in lints.STATIONS:
        cells.append(new_markdown_cell(f"## {station}\n\n" + "word word. " * 45))
    cells.append(new_code_cell("measured = lab.runs(gpt2, {'a': f(1)})\nmeasured"))
    cells.append(new_code_cell('here = lab.runs(small, few(), device="cpu")\nhere'))
    return new_notebook(cells=cells)


LABS_BROKEN = {
    "a station is missing": (lints.stations, lambda n: n.cells.pop(4)),
    "a station is renamed": (lints.stations, source(3, "The step", "Steps")),
    "nothing of a GPU": (lints.runs_really, source(-2, "{'a': f(1)}", '{}, device="cpu"')),
    "nothing on the CPU": (lints.runs_really, source(-1, ', device="cpu"', "")),
    "few words in a lab": (lints.lab_words, lambda n: [n.cells.pop(4) for _ in range(4)]),
}


@pytest.mark.parametrize("name", LABS_BROKEN)
def test_each_lint_of_labs_finds_its_fault(name):
    lint, breaking = LABS_BROKEN[name]
    notebook = right_lab()
    assert all(lint(notebook) == [] for lint in lints.IN_LABS)
    breaking(notebook)
    assert lint(notebook) != []


@pytest.mark.parametrize("name", BROKEN)
def test_each_lint_finds_its_fault(name):
    lint, breaking = BROKEN[name]
    notebook = right()
    breaking(notebook)
    assert lint(notebook) != []


def test_the_library_s_words_are_the_field_s_too():
    """Docstrings, labels, messages and comments. What records hash, `reference/`, stays as recorded; in a claim, "so many times"
    stands where the article has its number."""
    files = [p for kind in ("py", "toml", "js", "md") for p in (ROOT / "src").rglob(f"*.{kind}")]
    files = [p for p in files if "reference" not in p.parts] + [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    assert len(files) > 150
    texts = {p.name: p.read_text(encoding="utf-8") for p in files if p.name != "claims.toml"}
    claims = (ROOT / "src/everybyte/catalog/claims.toml").read_text(encoding="utf-8")
    texts["claims.toml"] = claims.replace("so many times", "a number of times")
    faults = {name: found for name, text in texts.items() if (found := lints.phrases(text))}
    assert faults == {}
    assert lints.phrases("What forward forgets is made again, and FSDP lets go of it.")


@pytest.mark.parametrize("link", ["d.ipynb", "c.ipynb#Nothing", "#Nothing", "folder/c.ipynb"])
@pytest.mark.parametrize("form", ["[there]({})", '<a href="{}">there</a>'])
def test_a_broken_link_is_found(tmp_path, form, link):
    for name in ("a.ipynb", "c.ipynb"):
        nbformat.write(right(), tmp_path / name)
    notebook = right()
    markdown(form.format(link))(notebook)
    assert len(lints.broken_links(notebook, tmp_path, lambda path: nbformat.read(path, 4))) == 1


@pytest.mark.parametrize("cell, link", [(2, "a.ipynb"), (2, "c.ipynb"), (-3, "c.ipynb")])
def test_a_missing_neighbor_is_found(cell, link):
    notebook = right()
    source(cell, link, "z.ipynb")(notebook)
    assert len(lints.neighbors(notebook, order()[1], order())) == 1


def test_an_empty_book_is_an_error(tmp_path):
    (tmp_path / "notebooks").mkdir()
    with pytest.raises(ValueError, match="no notebook"):
        lints.on_disk(tmp_path)
    with pytest.raises(ValueError, match="links no notebook"):
        contents("| chapter | question |\n|---|---|\n| `11_parameters` | How many? |\n")


def test_the_map_is_read_in_order():
    rows = "| [`11_a`](notebooks/11_a.ipynb) | One? |\n| `12_b` | Two? |\n| [`01_c`](labs/01_c.ipynb) | Three? |\n"
    found = [(e.slug, e.path, e.question) for e in contents(rows)]
    assert found == [
        ("11_a", "notebooks/11_a.ipynb", "One?"),
        ("12_b", None, "Two?"),
        ("01_c", "labs/01_c.ipynb", "Three?"),
    ]


def stored(path, *sources):
    """A notebook that was run and stored at `path`."""
    nbformat.write(new_notebook(cells=[new_code_cell(s) for s in sources]), path)
    execute(path)
    return nbformat.read(path, as_version=4)


def test_nbval_passes_a_right_notebook_and_fails_a_stale_one(tmp_path):
    """With the options that the project's own run has."""
    notebook = stored(tmp_path / "good.ipynb", "import sympy", "print('a')\nsympy.Symbol('x') ** 2")
    notebook.cells[1].outputs[1].data["text/latex"] = "$\\displaystyle x^{3}$"
    nbformat.write(notebook, tmp_path / "stale.ipynb")
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider", "-rA", "."]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert said.returncode == 1, said.stdout + said.stderr
    assert "1 failed, 3 passed" in said.stdout
    assert [line for line in said.stdout.splitlines() if line.startswith("FAILED") and "stale.ipynb" in line]


def test_storing_twice_changes_nothing(tmp_path):
    cells = "import ipywidgets", "x=object()\nprint(x)\nipywidgets.IntSlider()", "x"
    stored(tmp_path / "a.ipynb", *cells)
    first = (tmp_path / "a.ipynb").read_bytes()
    execute(tmp_path / "a.ipynb")
    assert (tmp_path / "a.ipynb").read_bytes() == first
    notebook = nbformat.read(tmp_path / "a.ipynb", as_version=4)
    assert notebook.cells[1].source.startswith("x = object()")
    assert WIDGET_VIEW not in str(notebook) and "0x0" in notebook.cells[1].outputs[0].text
    assert canonical(notebook) == notebook


def test_a_notebook_that_fails_is_not_stored(tmp_path, capsys):
    path = tmp_path / "a.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell("x = 1"), new_code_cell("1 / 0")]), path)
    before = path.read_bytes()
    assert main(["run", str(path)]) == 1
    said = capsys.readouterr().err
    assert "a.ipynb: cell c02 failed; nothing was stored" in said and "ZeroDivisionError" in said
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["a.ipynb"]
