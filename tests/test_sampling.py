"""What `make test` leaves to `make test-all`, and that it leaves nothing out for good."""

from itertools import product
from pathlib import Path

import pytest
from sampling import TURNS, changed, concerned, costs, drawn, git, notebooks, representative, some

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


@pytest.mark.parametrize(("ci", "last"), [("", set()), ("true", {"b"})])
def test_a_clone_has_changed_nothing_but_for_ci(tmp_path, monkeypatch, ci, last):
    """What is not committed counts everywhere, the last commit where CI runs."""
    monkeypatch.setenv("CI", ci)
    git(tmp_path, "init", "-q")
    for name in "ab":
        (tmp_path / name).write_text(name, encoding="utf-8")
        git(tmp_path, "add", name)
        git(tmp_path, "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "-qm", name)
    assert set(changed(tmp_path)) == last
    (tmp_path / "a").write_text("new", encoding="utf-8")
    (tmp_path / "c").write_text("c", encoding="utf-8")
    assert set(changed(tmp_path)) == last | {"a", "c"}


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


COSTS = {f"tests/{folder}/test_{i}.py::test": 1.0 + i for folder in ("theory", "lab") for i in range(20)}


def test_long_tests_are_drawn_within_their_seconds_and_each_has_its_turn():
    drawings = [drawn(COSTS, f"{commit:040x}", most=60) for commit in range(60)]
    assert all(40 <= sum(COSTS[test] for test in drawing) <= 60 for drawing in drawings)
    assert set().union(*drawings) == COSTS.keys() and len({frozenset(drawing) for drawing in drawings}) > 50
    assert drawn(COSTS, "a", most=60) == drawn(COSTS, "a", most=60) and drawn(COSTS, "", most=1e9) == COSTS.keys()


@pytest.mark.parametrize(
    ("path", "concerns"),
    [
        ("src/everybyte/theory/tape.py", "tests/theory/test_meshes.py"),
        ("src/everybyte/answers/layouts.py", "tests/test_layouts.py"),
        ("src/everybyte/dryrun/cuda.py", "tests/dryrun/test_cuda.py"),
        ("tests/dryrun/pipes.py", "tests/dryrun/test_pipelines.py"),
        ("tests/test_plan.py", "tests/test_plan.py"),
    ],
)
def test_what_has_changed_is_tested_at_once(path, concerns):
    assert concerned(f"{concerns}::test_a", [path, "README.md"])
    assert not concerned("tests/catalog/test_models.py::test_b", [path])
    assert not concerned(
        f"{concerns}::test_a", ["tests/conftest.py", "tests/dryrun/test_state.py", "src/everybyte/units.py"]
    )
    long = COSTS | {f"{concerns}::test_a": 200.0}
    assert drawn(long, "a", [path], most=150) >= {f"{concerns}::test_a"}
    assert all(concerned(test, [path]) for test in drawn(long, "a", [path], most=150))  # which took it all
    assert "tests/test_types.py::test_it" in drawn(COSTS | {"tests/test_types.py::test_it": 7.0}, "a", [], most=5)


@pytest.mark.parametrize(
    ("asked", "arguments", "ran"),
    [("", [], {"passed": 1, "deselected": 2}), ("all", [], {"passed": 3}), ("", ["test_it.py"], {"passed": 3})],
    ids=["test", "test-all", "a file by name"],
)
def test_long_tests_are_left_to_other_commits(pytester, monkeypatch, asked, arguments, ran):
    monkeypatch.setenv("EVERYBYTE_TESTS", asked)
    pytester.makeconftest((ROOT / "tests/conftest.py").read_text(encoding="utf-8"))
    here = f"{pytester.path.name}/test_it.py"
    pytester.makepyfile(
        test_it="import pytest\n@pytest.mark.parametrize('a', [1, 2])\ndef test_long(a): pass\ndef test_short(): pass"
    )
    (pytester.path / "costs.txt").write_text(f"# long\n1000.0 {here}::test_long\n", encoding="utf-8")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", f"--rootdir={pytester.path.parent}", *arguments)
    result.assert_outcomes(**ran)
    assert ("long tests of this commit (make test-all: every one): 0 of 1" in result.stdout.str()) == (
        ran["passed"] == 1
    )


def test_the_list_of_long_tests_can_be_read():
    known = costs(ROOT / "tests/costs.txt")
    assert len(known) > 50 and min(known.values()) >= 1
    assert costs(ROOT / "tests/no.txt") == {}
