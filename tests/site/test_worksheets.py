"""Worksheets have every prediction and exercise of the book, in its words, and no answer."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import tracks
import worksheets
from contents import contents
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from everybyte.teach.exercise import bank, chapters

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = [
    e for e in contents((ROOT / "README.md").read_text(encoding="utf-8")) if e.path and e.path.startswith("notebooks/")
]
SHEETS = worksheets.written()


@pytest.mark.parametrize("entry", CHAPTERS, ids=lambda e: e.slug)
def test_a_chapter_s_sheet_asks_everything_and_answers_nothing(entry):
    notebook = nbformat.read(ROOT / entry.path, as_version=4)
    text = worksheets.sheet(notebook)
    assert text in SHEETS[f"part{entry.slug[0]}"]
    source = "\n".join(c.source for c in notebook.cells if c.cell_type == "code")
    asked = re.findall(r"\bpredict\(\s*\"(P[\d.]+)\"", source)
    assert [id for id, *_ in worksheets.predictions(notebook)] == asked and all(f"**{id}**" in text for id in asked)
    number = entry.slug[:2]
    none = entry.slug == "01_thirty_minutes"  # the number in the bank is lab 01's
    known = list(bank(number)) if number in chapters() and not none else []
    assert [id for id, _ in worksheets.exercises(notebook)] == known and all(f"**{id}**" in text for id in known)
    solutions = [s for c in notebook.cells for s in re.findall(r"<details>.*?</details>", c.source, re.S)]
    told = [
        line.strip() for s in solutions for line in s.splitlines() if len(line.split()) > 6 and "summary" not in line
    ]
    assert told or not known
    assert not [line for line in told if line in text]
    assert "<details" not in text and "hint(" not in text and ".ipynb" not in text


def test_a_track_has_the_sheets_of_its_chapters_in_order():
    for name, slugs in tracks.tracks().items():
        titles = re.findall(r"^## (.+)$", SHEETS[f"track-{name}"], re.M)
        assert len(titles) == len(slugs) >= 3 and SHEETS[f"track-{name}"].startswith(
            f"# Every Byte: worksheet of the track {name}"
        )
    assert list(tracks.tracks()) == ["90-minutes", "half-a-day", "two-days", "half-a-day-more"]
    with pytest.raises(ValueError, match="--track: 'an-hour'; allowed: 90-minutes, half-a-day"):
        tracks.track("an-hour")


def test_the_run_that_is_meant_stands_on_the_paper():
    cells = [
        new_markdown_cell("# T\n\n**Q?**\n\nMore.\n\nGPT-2 XL, see [12](12_x.ipynb), in fp32."),
        new_code_cell('predict("P1.1", ..., question="This run?")'),
    ]
    assert "GPT-2 XL, see 12, in fp32.\n\n**P1.1** This run? (in GiB)" in worksheets.sheet(new_notebook(cells=cells))


def test_what_cannot_be_read_off_is_refused():
    cells = [new_markdown_cell("# T\n\n**Q?**"), new_code_cell("predict('P1.1', ..., question=asked())")]
    with pytest.raises(ValueError, match=r"predict\('P1\.1'\): its question is no text"):
        worksheets.sheet(new_notebook(cells=cells))


def test_hints_and_what_follows_the_exercises_are_left_out():
    text = 'Stuck? `hint("1.1")`.\n\n<details><summary>Solution</summary>\n\n42\n\n</details>\n\n**11.2** How many? See [12](12_x.ipynb).\n\n## Interview answer\n\nNo.'
    assert list(worksheets.exercises(new_notebook(cells=[new_markdown_cell(text)]))) == [
        ("11.2", "**11.2** How many? See 12.")
    ]


@pytest.mark.thorough("prints with a browser")
@pytest.mark.skipif(
    not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), reason="no Chromium to print with"
)
def test_they_are_printed(tmp_path):
    program = f"import sys; sys.path.insert(0, {str(ROOT / 'tools')!r}); import paper, pathlib; paper.page({SHEETS['part1'][:3000]!r}, pathlib.Path({str(tmp_path / 'w.pdf')!r}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "w.pdf").read_bytes().startswith(b"%PDF")
