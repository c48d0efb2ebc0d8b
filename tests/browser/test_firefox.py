"""A chapter's explorer in JupyterLab in Firefox: it opens, and answers to the keyboard."""

import json
import os

import pytest
from driving import ARTIFACTS, PROMPTS
from firefox import FIREFOX, Firefox

pytestmark = [
    pytest.mark.skipif(not FIREFOX, reason="no Firefox on this machine"),
    pytest.mark.skipif(not os.environ.get("EVERYBYTE_BROWSER"), reason="`make test-browser` runs this"),
]
RUN = ".jp-NotebookPanel-toolbar [data-command='notebook:run-cell-and-select-next']"


def test_an_explorer_opens_and_answers(lab, tmp_path):
    path = lab.write("firefox", "from everybyte import explore\nexplore.step()")
    browser = Firefox(tmp_path)
    try:
        browser.open(lab.at(path))
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
        browser.move()
        assert browser.evaluate("document.querySelectorAll('.everybyte-error').length") == 0
        browser.screenshot(ARTIFACTS / "firefox-lab.png")
    finally:
        browser.close()
