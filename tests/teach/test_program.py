"""A reader's function runs beside the library's: what is right, what is wrong and where, and nothing it does escapes."""

from contextlib import contextmanager

import pytest

from everybyte.teach.exercise import bank, chapters
from everybyte.teach.program import Case, Program, small_gpts, small_llamas

PROGRAMS = [e for chapter in chapters() for e in bank(chapter).values() if e.accepts == "function"]


def _double(**fields):
    base = {
        "id": "99.1", "title": "t", "difficulty": 1, "minutes": 1, "hints": ("a", "b"), "call": "double(x)",
        "answer": lambda: lambda x: 2 * x, "mistakes": {"it squares": lambda: lambda x: x * x},
        "cases": lambda: [Case(f"of {n}", (n,), 2 * n) for n in (2, 3, 5)],
    }  # fmt: skip
    return Program(**base | fields)


def test_a_right_function_is_right():
    assert _double().judge(lambda x: x + x).right
    assert "all 3 cases" in _double().judge(lambda x: x + x).text


@pytest.mark.parametrize("answer", [..., None, lambda x: None, lambda x: ...])
def test_an_empty_function_is_not_attempted(answer):
    verdict = _double().judge(answer)
    assert verdict.kind == "open" and "double(x)" in verdict.text


def test_a_wrong_function_is_told_where_and_why():
    said = _double().judge(lambda x: x * x).text
    assert "of 3: yours gives 9, the library 6." in said and "It squares" in said
    said = _double().judge(lambda x: x + 2).text
    assert "of 3: yours gives 5" in said and "squares" not in said


def test_a_mistake_is_named_only_where_it_gives_the_same_in_every_case():
    assert "squares" not in _double().judge(lambda x: 9 if x == 3 else 2).text


def test_a_mistake_that_fails_is_named_where_it_fails():
    half = _double(mistakes={"it divides by x - 3": lambda: lambda x: 2 * x * (x - 3) // (x - 3)})
    said = half.judge(lambda x: 2 * x // (x != 3)).text
    assert "of 3: yours raises ZeroDivisionError" in said and "It divides by x - 3" in said
    assert "It divides" not in half.judge(lambda x: 1 // 0).text


class Hostile(Exception):
    def __str__(self):
        raise RuntimeError


class Odd:
    def __repr__(self):
        raise RuntimeError

    def __eq__(self, other):
        raise RuntimeError


def _raises(error):
    def function(x):
        raise error

    return function


@pytest.mark.parametrize(
    "answer",
    [_raises(ValueError("<b>x</b>")), _raises(Hostile()), _raises(SystemExit(3)), lambda: 1, lambda x: Odd(), lambda x: "<b>x</b>",
     lambda x: 10**6000, lambda x: True, lambda x: [x] * 10**5, type],
    ids=range(10),
)  # fmt: skip
def test_whatever_a_function_does_is_a_short_escaped_sentence(answer):
    verdict = _double().judge(answer)
    assert verdict.kind == "wrong" and "of 2" in verdict.text
    assert len(verdict.text) < 400 and "<b>x" not in verdict._repr_html_()


@pytest.mark.parametrize("answer", [3, "double", [1], {}])
def test_what_is_no_function_is_said(answer):
    assert _double().judge(answer).kind == "unreadable"


def test_an_interrupt_is_the_readers():
    with pytest.raises(KeyboardInterrupt):
        _double().judge(_raises(KeyboardInterrupt()))


def test_arguments_that_a_function_changes_are_copies():
    lists = _double(cases=lambda: [Case("list", ([1, 2],), 3)] * 2, answer=lambda: sum, mistakes={})

    def greedy(x):
        return x.pop() + x.pop()

    assert lists.judge(greedy).right


def test_what_watches_a_case_is_there_while_the_function_runs_and_no_longer():
    on = []

    @contextmanager
    def watching():
        on.append(True)
        yield
        on.pop()

    seen = []
    watched = _double(cases=lambda: [Case(f"of {n}", (n,), 2 * n, watching) for n in (2, 3)])
    assert watched.judge(lambda x: seen.append(len(on)) or 2 * x).right
    assert seen == [1, 1] and not on


def test_a_program_checks_its_fields():
    with pytest.raises(ValueError, match="Program.accepts"):
        _double(accepts="number")
    with pytest.raises(ValueError, match=r"Exercise\.hints"):
        _double(hints=("one",))


@pytest.mark.parametrize("made", [small_gpts, small_llamas])
def test_small_models_are_the_same_each_time_and_differ(made):
    assert made(3, 8) == made(3, 8) != made(4, 8)
    assert len({m.parameters for m in made(3, 8)}) == 8


@pytest.mark.parametrize("e", PROGRAMS, ids=lambda e: e.id)
def test_the_cases_tell_each_mistake_from_the_answer(e):
    cases = list(e.cases())
    assert len(cases) >= 5 and len({c.name for c in cases}) == len(cases)
    assert [c.name for c in e.cases()] == [c.name for c in cases]
    for wrong in e.mistakes.values():
        assert not e.judge(wrong()).right
