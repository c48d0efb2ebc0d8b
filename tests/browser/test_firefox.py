"""A chapter's explorer in JupyterLab in Firefox: it opens, and answers to the keyboard."""

import json
import os

import nbformat
import pytest
from driving import ARTIFACTS, PROMPTS
from firefox import FIREFOX, RIGHT, SHOWN, Firefox

pytestmark = [
    pytest.mark.skipif(not FIREFOX, reason="no Firefox on this machine"),
    pytest.mark.skipif(not os.environ.get("EVERYBYTE_BROWSER"), reason="`make test-browser` runs this"),
]
RUN = ".jp-NotebookPanel-toolbar [data-command='notebook:run-cell-and-select-next']"


def test_an_explorer_opens_and_answers(lab, tmp_path):
    cells = [nbformat.v4.new_code_cell("from everybyte import explore\nexplore.step()")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata.kernelspec = {"display_name": "Python 3", "language": "python", "name": "python3"}
    nbformat.write(notebook, lab.folder / "firefox.ipynb")
    browser = Firefox(tmp_path)
    try:
        browser.open(lab.at("firefox.ipynb"))
        browser.wait(f"document.querySelector({json.dumps(RUN)}) && document.querySelector('.jp-Notebook .jp-Cell')")
        for _ in range(10):  # JupyterLab drops a run while its kernel is not quite there
            browser.evaluate("document.querySelector('.jp-Dialog .jp-mod-accept')?.click()")
            browser.click(RUN)
            try:
                browser.wait(f"/\\d/.test({PROMPTS}[0])", 10)
                break
            except TimeoutError:
                continue
        browser.wait("document.querySelector('.everybyte-explorer svg[role=img]')")
        before = browser.evaluate(SHOWN)
        browser.evaluate("document.querySelector('.everybyte-explorer .noUi-handle').focus()")
        browser.press(RIGHT)
        browser.wait(f"{json.dumps(before)} !== {SHOWN}")
        assert browser.evaluate("document.querySelectorAll('.everybyte-error').length") == 0
        browser.screenshot(ARTIFACTS / "firefox-lab.png")
    finally:
        browser.close()
