"""The exercises as they stand in the chapters: all of the bank, each with a folded solution that holds the right answer."""

import re
from functools import cache
from pathlib import Path
from types import FunctionType

import nbformat
import pytest
import sympy as sp

from everybyte.formulas import symbols
from everybyte.teach.exercise import bank, chapters

ROOT = Path(__file__).resolve().parents[2]
BOOKS = {p.name[:2]: p for folder in ("notebooks", "labs") for p in sorted((ROOT / folder).glob("[0-9][0-9]_*.ipynb"))}
ALL = [e for chapter in chapters() for e in bank(chapter).values()]
CHECK = re.compile(r'check\("(\d\d\.\d+)", (?:\.\.\.|[a-z_]+)\)')
FOLDED = re.compile("<details><summary>Solution</summary>(.*?)</details>", re.DOTALL)
QUANTITY = re.compile(r"[-−]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?:\s(?:[KMGT]i?B|kB|B|bytes|bits?)\b)?")
LETTERS = {name: value for name, value in vars(symbols).items() if isinstance(value, sp.Symbol)}
LETTERS |= {str(s): s for s in symbols.BY_SYMBOL}


@cache
def exercises_of(chapter):
    """Ids in the chapter's order, and what stands between each one's `check` and the next."""
    cells = nbformat.read(BOOKS[chapter], as_version=4).cells
    _, *parts = CHECK.split("\n".join(c.source for c in cells))
    return dict(zip(parts[::2], parts[1::2], strict=True))


def answers(e, solution):
    """What a folded solution says, as a reader would type it."""
    if e.accepts == "function":
        return [program(text) for text in re.findall("```python\n(.*?)```", solution, re.DOTALL)]
    if e.accepts == "number":
        return [q.replace("−", "-").rstrip(",") for q in QUANTITY.findall(solution.replace("**", ""))]
    found = []
    for text in re.findall("`([^`]+)`", solution):
        try:
            found.append(sp.sympify(text, locals=LETTERS))
        except (sp.SympifyError, TypeError, AttributeError):
            continue  # a call, not an expression
    return found


def program(text):
    """The last function that the code of a solution defines, with what a chapter imports for it."""
    names = {}
    exec(compile(text, "solution", "exec"), names)
    return [f for f in names.values() if isinstance(f, FunctionType)][-1]


@pytest.mark.parametrize("chapter", chapters())
def test_a_chapter_asks_what_its_bank_has(chapter):
    assert list(exercises_of(chapter)) == list(bank(chapter))
    assert len(bank(chapter)) >= 3


@pytest.mark.parametrize("e", ALL, ids=lambda e: e.id)
def test_the_folded_solution_has_the_right_answer(e):
    (solution,) = FOLDED.findall(exercises_of(e.chapter)[e.id])
    assert any(e.judge(answer).right for answer in answers(e, solution))


@pytest.mark.parametrize(("right", "wrong"), [("12.2", "It is 11.62 GiB."), ("11.2", "`12 * L * H**2`, and no more")])
def test_a_solution_that_is_wrong_is_found(right, wrong):
    (e,) = [e for e in ALL if e.id == right]
    assert answers(e, wrong) and not any(e.judge(answer).right for answer in answers(e, wrong))
