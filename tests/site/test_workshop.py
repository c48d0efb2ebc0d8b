"""The workshop's page says what the chapters say: its minutes add up, its numbers and quotations are the book's."""

import re
from functools import cache
from pathlib import Path

import nbformat
import pytest

from everybyte.teach.exercise import bank, chapters
from everybyte.teach.predictions import TOLD, seal

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "notebooks" / name for name in ("workshop.md", "anywhere.md")]
TEXT = PAGES[0].read_text(encoding="utf-8")
KNOWN = {number: exercise for chapter in chapters() for number, exercise in bank(chapter).items()}


@cache
def outputs(chapter):
    """The outputs that a chapter stores."""
    (path,) = ROOT.glob(f"notebooks/{chapter}_*.ipynb")
    cells = nbformat.read(path, as_version=4).cells
    return [output for cell in cells for output in cell.get("outputs", [])]


def rows(heading):
    """The rows of the table under a heading, without its head."""
    section = re.split(r"^#+ ", TEXT.split(f" {heading}\n", 1)[1], flags=re.M)[0]
    found = [[c.strip() for c in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")]
    assert len(found) > 3, heading
    return found[2:]


@pytest.mark.parametrize(
    ("track", "minutes"),
    [
        ("90 minutes: will it fit?", 90),
        ("Half a day: what fills the GPU", 240),
        ("Day 1", 420),
        ("Day 2", 420),
        ("Half a day more: many GPUs", 180),
    ],
)
def test_a_track_takes_the_time_that_it_says(track, minutes):
    assert sum(int(row[0]) for row in rows(track)) == minutes


@pytest.mark.parametrize("row", rows("What to predict aloud"), ids=lambda row: row[0])
def test_an_answer_is_what_its_chapter_reveals(row):
    number, _, answer, _ = row
    told = [output.get("metadata", {}).get(TOLD, {}) for output in outputs(number[1:3])]
    assert [seal(number, answer) in one["sealed"] for one in told if one.get("prediction") == number] == [True]


@pytest.mark.parametrize("row", rows("Where people stumble"), ids=lambda row: row[1][:40])
def test_a_stumble_is_one_that_check_names(row):
    number, said, _ = row
    assert said.strip('"') in KNOWN[number].mistakes


def test_every_exercise_and_prediction_named_is_there():
    for number in re.findall(r"exercises? (\d\d\.\d)", TEXT) + re.findall(r"exercises \d\d\.\d and (\d\d\.\d)", TEXT):
        assert number in KNOWN
    for number in re.findall(r"[Pp]rediction (P?\d\d\.\d)", TEXT):
        texts = [output.get("data", {}).get("text/plain", "") for output in outputs(number.removeprefix("P")[:2])]
        assert any(f"Prediction {number}" in text for text in texts), number


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_what_a_page_links_is_there(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).is_file(), target


def test_every_make_target_named_exists():
    made = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    for page in PAGES:
        assert set(re.findall(r"`make ([a-z-]+)`", page.read_text(encoding="utf-8"))) <= made
