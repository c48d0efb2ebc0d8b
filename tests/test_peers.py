"""What the README says of other estimators is what `tools/peers.py` computes."""

from pathlib import Path

import peers
import pytest

README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_readme_has_the_table():
    pytest.importorskip("accelerate")
    assert peers.table() in README.read_text(encoding="utf-8")


def test_the_books_formula_is_within_a_percent_of_every_run_and_the_rule_of_thumb_is_not():
    pytest.importorskip("accelerate")
    off = peers.errors()
    assert max(off["this book's formula"]) < 0.01
    assert min(off["16 bytes a parameter"]) > 0.01


def test_an_estimator_that_does_not_know_flash_says_nothing_of_it():
    said = [peers.cookbook(*run) is None for run in peers.runs()]
    assert said == [run[1].attention == "flash" for run in peers.runs()]
