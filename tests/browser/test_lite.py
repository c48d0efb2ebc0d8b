"""JupyterLite, where `make lite` built it: the page's own Python runs the book, and nothing is asked for outside."""

import os
import re

import nbformat
import pytest
from driving import ARTIFACTS, ERRORS, PROMPTS, ROOT, Keys, menu, screenshot, served, summary, waited, watched

LITE = ROOT / "build" / "lite"
pytestmark = pytest.mark.skipif(not (LITE / "lab" / "index.html").exists(), reason="build/lite is not there: make lite")
#: What the code cells show; of one with a widget nothing, which is a picture or a sentence before it runs.
SHOWN = """[...document.querySelectorAll('.jp-Notebook .jp-CodeCell')]
  .map(e => e.querySelector('.jp-OutputArea-output :is(.everybyte-explorer, .jupyter-widgets)') ? null
  : [...e.querySelectorAll('.jp-OutputArea-output')].map(o => o.innerText.trim()).join('\\n'))"""
CHAPTERS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
if not os.environ.get("EVERYBYTE_BROWSER"):
    CHAPTERS = ["34_pipelines"]


@pytest.fixture
def address():
    """The folder over http, on loopback; at a port of its own, so that no notebook of another test is opened again."""
    with served(LITE) as address:
        yield address


@pytest.fixture
def run(chromium, address):
    """Opens a notebook and runs its cells; at the end nothing has been asked for outside."""
    page, asked = watched(chromium), []
    page.context.on("request", lambda request: asked.append(request.url))

    def run(name):
        page.goto(f"{address}/lab/index.html?path={name}")
        page.locator(".jp-Notebook .jp-Cell").first.wait_for()
        page.wait_for_function(
            "document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status === 'idle'", timeout=120_000
        )
        cells = len(nbformat.read(LITE / "files" / name, as_version=4).cells)
        page.wait_for_function(f"document.querySelectorAll('.jp-Notebook .jp-Cell').length === {cells}")
        page.stored = page.evaluate(SHOWN)
        for _ in range(10):
            menu(page, "Run", "Run All Cells")
            if waited(page, PROMPTS + ".some(t => /[*\\d]/.test(t))", 8_000):
                break
        page.wait_for_function(PROMPTS + ".every(t => /\\d/.test(t))", timeout=400_000)
        assert page.locator(ERRORS).all_inner_texts() == []
        return page

    yield run
    page.close()
    assert [url for url in asked if not url.startswith((address, "data:", "blob:", "attachment:"))] == []


def test_the_formulas_run_and_an_exercise_is_checked(run):
    page = run("formulas.ipynb")
    said = page.locator(".jp-OutputArea-output").all_inner_texts()
    assert said[0] == "124439808"
    assert any("batch 26 fits" in text for text in said) and any("12.1 not attempted yet" in text for text in said)
    assert "4,117,053,440" in said[-1]
    cell = page.locator(".jp-CodeCell", has_text='check("12.1"')
    asked = {'check("12.1", "1 B")': "✗ 12.1", 'check("12.1", "14 B")': "✓ 12.1 right", 'hint("12.1")': "→ 12.1"}
    for answer, mark in asked.items():
        cell.locator(".cm-content").click()
        page.keyboard.press("Control+A")
        page.keyboard.type("from everybyte.teach import check, hint; " + answer)
        page.keyboard.press("Escape")
        page.keyboard.press("Control+Enter")
        shown = page.locator(".jp-CodeCell [role=note]", has_text=mark)
        shown.wait_for()
        assert shown.evaluate("e => getComputedStyle(e).borderLeftStyle") == "solid"


def test_every_explorer_answers_to_the_keyboard(run, capsys):
    page = run("explorers.ipynb")
    source = "\n".join(c.source for c in nbformat.read(LITE / "files" / "explorers.ipynb", as_version=4).cells)
    opened = re.findall(r"(?:explore\.|\.)(\w+)\(.*\)$", source, re.M)
    count = len([name for name in opened if name not in ("yours", "read_text")])
    drawn = "document.querySelectorAll('.everybyte-explorer svg[role=img]').length"
    page.wait_for_function(f"{drawn} >= {count}", timeout=60_000)
    roots, answers = page.locator(".everybyte-explorer").all(), []
    assert len(roots) == count > 25
    for root in roots:
        keys = Keys(page, root)
        reset = keys.presets()[0]
        for slider in keys.sliders()[:1]:
            before, after = keys.press(slider, "ArrowRight")
            if before["sentence"] == after["sentence"]:  # it stood at its end
                keys.moves(slider, "ArrowLeft", slider.get_attribute("aria-label"))
        for choice in keys.choices()[:1]:
            keys.press(reset, "Enter", 300)
            index, last = choice.evaluate("e => [e.selectedIndex, e.options.length - 1]")
            keys.moves(choice, "ArrowUp" if index == last else "End", choice.input_value())
        before, after = keys.press(reset, "Enter")
        assert after["sentence"].startswith("Reset: ") and not after["error"], after
        answers += keys.answers
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    roots[6].scroll_into_view_if_needed()
    screenshot(page, "lite-explorers")
    assert [e for e in page.errors if "everybyte" in e] == []
    with capsys.disabled():
        print(f"\nJupyterLite, {summary(answers)}")


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapters_cells_run(run, name):
    page = run(f"notebooks/{name}.ipynb")
    stored = nbformat.read(LITE / "files" / "notebooks" / f"{name}.ipynb", as_version=4)
    assert len(page.evaluate(PROMPTS)) == stored.metadata.everybyte.live
    page.wait_for_timeout(1_000)
    shown = page.evaluate(SHOWN)
    pairs = [
        (was, now)
        for was, now in zip(page.stored, shown, strict=True)
        if now is not None and "\\displaystyle" not in was
    ]
    assert len(pairs) > 5 and [(was, now) for was, now in pairs if was != now] == []
    assert shown.count(None) >= page.locator(".everybyte-explorer").count()
    assert page.locator(".jp-RenderedMarkdown img").evaluate_all("all => all.filter(e => !e.naturalWidth).length") == 0
    screenshot(page, f"lite-{name}")
