"""What `make test` leaves to `make test-all`, and that it leaves nothing out for good."""

from itertools import product
from pathlib import Path

import pytest
from sampling import TURNS, git, notebooks, representative, some

pytest_plugins = "pytester"
ROOT = Path(__file__).resolve().parents[1]


def test_some_are_spread_with_both_ends():
    assert some(range(100), 4) == [0, 33, 66, 99]
    assert some("abc", 3) == list("abc") and some("abc", 1) == ["a"]


def test_every_value_of_every_argument_is_there():
    cases = [{"precision": p, "optimizer": o, "seed": s} for p, o, s in product(range(5), range(3), range(40))]
    kept = [cases[i] for i in representative(cases, 6)]
    assert len(kept) == 6
    assert {c["precision"] for c in kept} == set(range(5)) and {c["optimizer"] for c in kept} == set(range(3))


def test_arguments_that_go_together_are_one():
    cases = [{"model": i, "setup": i} for i in range(30)]
    assert representative(cases, 3) == {0, 14, 29}


def test_few_cases_are_all_kept():
    cases = [{"a": a, "b": b} for a, b in product(range(2), range(3))]
    assert representative(cases, 6) == set(range(6)) and representative([{}], 2) == {0}


def test_every_notebook_has_its_turn_and_what_changed_is_run_at_once():
    paths = [f"notebooks/{i:02}.ipynb" for i in range(29)]
    shares = [notebooks(paths, f"{turn:08x}", []) for turn in range(TURNS)]
    assert sorted(p for share in shares for p in share) == paths and max(map(len, shares)) == 5
    assert notebooks(paths, "", []) == shares[0]
    assert set(notebooks(paths, "", [paths[1]])) == {*shares[0], paths[1]}


def test_without_git_there_is_no_commit(tmp_path):
    assert git(tmp_path, "rev-parse", "HEAD") == ""


SUITE = """
import pytest

@pytest.mark.sampled(2)
@pytest.mark.parametrize("a", range(9))
def test_many(a): pass

@pytest.mark.thorough("it takes an hour")
def test_long(): pass
"""


@pytest.mark.parametrize(
    ("asked", "ran"),
    [("", {"passed": 2, "skipped": 1, "deselected": 7}), ("all", {"passed": 10})],
    ids=["test", "test-all"],
)
def test_the_whole_is_one_word_away(pytester, monkeypatch, asked, ran):
    monkeypatch.setenv("EVERYBYTE_TESTS", asked)
    pytester.makeconftest((ROOT / "tests/conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile(SUITE)
    pytester.makeini("[pytest]\nmarkers =\n    sampled(most): x\n    thorough(why): x")
    result = pytester.runpytest_inprocess("-rs", "-p", "no:cacheprovider")
    result.assert_outcomes(**ran)
    assert asked or "it takes an hour: make test-all" in result.stdout.str()
