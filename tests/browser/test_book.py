"""Every notebook and lab as a reader meets it in JupyterLab: run whole, every explorer moved, nothing wrong on the page.

A minute a notebook: `make test-browser` runs it, `make test` does not.
"""

import ast
import os
import re

import lints
import nbformat
import pytest
from driving import ARTIFACTS, ERRORS, ROOT, Keys, own_errors, run_all, serious, theme, watched

pytestmark = pytest.mark.skipif(not os.environ.get("EVERYBYTE_BROWSER"), reason="`make test-browser` runs this")
NOTEBOOKS = sorted(lints.on_disk(ROOT))
TALLEST = 14_000  # pixels of one screenshot


def explorers(notebook):
    """How many cells end in an explorer, called there or under the name that a call was given, and so show one."""
    names, shown = set(), 0
    for cell in lints.code_cells(notebook):
        for n in (body := ast.parse(cell.source).body):
            if isinstance(n, ast.Assign) and opens(n.value):
                names |= {ast.unparse(target) for target in n.targets}
        if body and isinstance(body[-1], ast.Expr):
            shown += opens(body[-1].value) or ast.unparse(body[-1].value) in names
    return shown


def opens(expression):
    """Whether it is a call such as `explore.states(...)`."""
    return (
        isinstance(expression, ast.Call)
        and re.fullmatch(r"(eb\.)?explore\.(?!yours)[a-z_]+", ast.unparse(expression.func)) is not None
    )


def photograph(page, name):
    """The whole notebook, in as many pictures as it takes."""
    panel = page.locator(".jp-WindowedPanel-outer").first
    height = panel.evaluate("e => e.scrollHeight")
    page.set_viewport_size({"width": 1200, "height": min(height + 120, TALLEST)})
    page.wait_for_timeout(700)
    for i in range(-(-height // TALLEST)):
        panel.evaluate("(e, top) => e.scrollTo(0, top)", i * (TALLEST - 120))
        ARTIFACTS.mkdir(parents=True, exist_ok=True)
        panel.screenshot(path=ARTIFACTS / f"{name}-{i}.png")
    page.set_viewport_size({"width": 1400, "height": 1000})


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_a_notebook_runs_answers_and_reads(path, lab, chromium, answers):
    page = watched(chromium)
    try:
        lab.open(page, path)
        page.keyboard.press("Control+b")
        run_all(page)
        assert page.locator(ERRORS).all_inner_texts() == []
        there = page.locator(".everybyte-explorer")
        count = explorers(nbformat.read(ROOT / path, as_version=4))
        if count:
            there.nth(count - 1).locator("svg[role=img]").wait_for()
        assert there.count() == count
        for mode in ("Dark", "Light"):
            theme(page, f"JupyterLab {mode}")
            assert serious(page) == []
            photograph(page, f"{os.path.basename(path).removesuffix('.ipynb')}-{mode.lower()}")
        for i in range(count):
            keys = Keys(page, there.nth(i))
            keys.every_control()
            answers[f"{path}, {i + 1}"] = keys.answers
        assert own_errors(page) == []
    finally:
        page.close()
        for kernel in lab.kernels():
            lab.end(kernel["id"])
