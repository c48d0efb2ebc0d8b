"""JupyterLite, where `make lite` built it: the book's formulas run in the page's own Python, and nothing is asked for outside."""

import re
import subprocess
import sys

import pytest
from driving import PROMPTS, ROOT, menu, waited, watched

LITE = ROOT / "build" / "lite"
pytestmark = pytest.mark.skipif(not (LITE / "lab" / "index.html").exists(), reason="build/lite is not there: make lite")


@pytest.fixture
def address():
    """The folder over http, on loopback."""
    command = [sys.executable, "-u", "-m", "http.server", "--bind", "127.0.0.1", "-d", str(LITE), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        yield re.search(r"http://[\d.]+:\d+", server.stdout.readline())[0]
        server.terminate()


def test_the_formulas_run_in_the_page(chromium, address):
    page, asked = watched(chromium), []
    page.context.on("request", lambda request: asked.append(request.url))
    page.goto(f"{address}/lab/index.html?path=formulas.ipynb")
    page.locator(".jp-Notebook .jp-Cell").first.wait_for()
    page.wait_for_function("document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status === 'idle'")
    for _ in range(10):
        menu(page, "Run", "Run All Cells")
        if waited(page, PROMPTS + ".some(t => /[*\\d]/.test(t))", 8_000):
            break
    page.wait_for_function(PROMPTS + ".every(t => /\\d/.test(t))", timeout=240_000)
    said = page.locator(".jp-OutputArea-output").all_inner_texts()
    assert said[0] == "124439808"
    assert any("batch 26 fits" in text for text in said) and any("13.1 not attempted yet" in text for text in said)
    assert "4,117,053,440" in said[-1]
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
