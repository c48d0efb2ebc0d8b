"""Every notebook of the book, against every lint. That its outputs are those of a fresh run, nbval shows."""

import ast
import io
import os
import subprocess
import sys
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

import lints
import nbformat
import pytest
from contents import contents

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = [e.path for e in contents((ROOT / "README.md").read_text(encoding="utf-8")) if e.path]
CHAPTERS = [p for p in WRITTEN if lints.is_chapter(p)]
LABS = [p for p in WRITTEN if lints.is_lab(p)]


@cache
def read(path):
    return nbformat.read(path, as_version=4)


def test_the_map_in_the_readme_is_what_stands_on_disk():
    assert sorted(WRITTEN) == sorted(lints.on_disk(ROOT))


def test_the_whole_test_run_executes_exactly_these_notebooks():
    collect = ["--collect-only", "-q", "--ignore-glob=tests/*", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *collect]
    environment = os.environ | {"EVERYBYTE_TESTS": "all"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    listed = done.stdout.splitlines()
    assert {line.split("::")[0] for line in listed if "::" in line} == set(WRITTEN)


@pytest.mark.parametrize("lint", lints.EVERYWHERE, ids=lambda f: f.__name__)
@pytest.mark.parametrize("path", WRITTEN)
def test_notebook(path, lint):
    assert lint(read(ROOT / path)) == []


@pytest.mark.parametrize("lint", lints.IN_CHAPTERS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("path", CHAPTERS)
def test_chapter(path, lint):
    assert lint(read(ROOT / path)) == []


@pytest.mark.parametrize("lint", lints.IN_SIGHT, ids=lambda f: f.__name__)
@pytest.mark.parametrize("path", [p for p in CHAPTERS if not Path(p).name.startswith(lints.ROWS)])
def test_what_is_in_sight(path, lint):
    assert lint(read(ROOT / path)) == []


@pytest.mark.parametrize("path", [p for p in WRITTEN if not lints.is_lab(p)])
def test_no_term_stands_before_its_definition(path):
    order = [Path(p).stem for p in WRITTEN if not lints.is_lab(p)]
    assert lints.reading_order(read(ROOT / path), Path(path).stem, order) == []


@pytest.mark.parametrize("path", [p for p in CHAPTERS if "46_" not in p])  # its explorer is the room where one is asked
def test_what_the_explorer_shows_can_be_looked_up(path):
    assert lints.seen(read(ROOT / path)) == []


@pytest.mark.parametrize("path", [p for p in WRITTEN if not lints.is_lab(p)])
def test_a_chapter_says_how_long_it_takes(path):
    assert lints.minutes(read(ROOT / path)) == []


def test_the_two_chapters_of_someone_in_a_hurry_take_three_quarters_of_an_hour():
    first = [read(ROOT / p) for p in WRITTEN if not lints.is_lab(p)][:2]
    assert sum(map(lints.reading, first)) < 45


def test_the_first_chapter_is_short():
    (first,) = (path for path in WRITTEN if Path(path).name.startswith("00"))
    assert lints.short(read(ROOT / first)) == []


@pytest.mark.parametrize("lint", lints.IN_LABS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("path", LABS)
def test_lab(path, lint):
    assert lint(read(ROOT / path)) == []


@pytest.mark.parametrize("path", WRITTEN)
def test_links(path):
    notebook = read(ROOT / path)
    assert lints.broken_links(notebook, (ROOT / path).parent, read) == []
    assert lints.neighbors(notebook, path, WRITTEN) == []


@pytest.mark.parametrize("path", LABS)
def test_the_code_that_a_lab_shows_is_the_library_s(path):
    """Whichever notebooks this commit runs again: who changes a function does not see that a lab prints it."""
    cells = [cell for cell in read(ROOT / path).cells if cell.cell_type == "code"]
    shown = [cell for cell in cells if "getsource(" in cell.source]
    names = {}
    for node in (
        ast.parse("\n".join(cell.source for cell in cells if cell.source.startswith("import"))).body if shown else ()
    ):
        if isinstance(node, ast.Import | ast.ImportFrom):
            exec(ast.unparse(node), names)
    for cell in shown:
        with redirect_stdout(io.StringIO()) as out:
            exec(cell.source, names)
        assert "".join(output.text for output in cell.outputs) == out.getvalue(), (
            "tools/notebooks.py run stores it anew"
        )
