"""A chapter in a real browser: JupyterLab, headless Chromium, and an explorer moved by the keyboard, kernel or no kernel."""

import json
import os
import secrets
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "13_gradients_and_optimizers.ipynb"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = """--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
           --disable-component-update --disable-sync --disable-dev-shm-usage""".split()
SETTINGS = {  # every cell is in the page, and nothing asks for the network
    "notebook-extension/tracker": {"windowingMode": "none"},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}
PROMPTS = "[...document.querySelectorAll('.jp-Notebook .jp-CodeCell .jp-InputPrompt')].map(e => e.textContent)"
# From a key to the first animation frame in which the picture differs, in the page's own clock.
WATCH = """root => {
  window.answers = [];
  const picture = () => root.querySelector("svg").outerHTML;
  window.addEventListener("keydown", () => {
    const start = performance.now(), before = picture();
    const look = () => picture() !== before ? window.answers.push(performance.now() - start)
      : performance.now() - start < 5000 && requestAnimationFrame(look);
    requestAnimationFrame(look);
  }, true);
}"""


@pytest.fixture
def lab(tmp_path):
    """JupyterLab on loopback over a copy of the notebook without outputs: (its address, its token)."""
    book = tmp_path / "notebooks"
    book.mkdir()
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    nbformat.write(notebook, book / NOTEBOOK.name)
    for name, setting in SETTINGS.items():
        path = tmp_path / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(setting))
    folders = {"CONFIG_DIR": "config", "DATA_DIR": "data", "RUNTIME_DIR": "runtime"}
    env = os.environ | {f"JUPYTER_{k}": str(tmp_path / v) for k, v in folders.items()}
    env |= {"IPYTHONDIR": str(tmp_path / "ipython"), "JUPYTERLAB_WORKSPACES_DIR": str(tmp_path / "workspaces")}
    env |= {"JUPYTERLAB_SETTINGS_DIR": str(tmp_path / "settings"), "JUPYTER_TOKEN": secrets.token_hex()}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}"]
    command += ["--ServerApp.port_retries=0", f"--ServerApp.root_dir={tmp_path}", "--LabApp.news_url=None"]
    log = tmp_path / "lab.log"
    with log.open("wb") as said:
        server = subprocess.Popen(command, env=env, stdout=said, stderr=subprocess.STDOUT)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            if server.poll() is not None:
                pytest.fail(f"JupyterLab did not start:\n{log.read_text()}")
            try:
                kernels(address, env["JUPYTER_TOKEN"])
                break
            except OSError:
                time.sleep(0.1)
        else:
            pytest.fail(f"JupyterLab did not answer in a minute:\n{log.read_text()}")
        yield address, env["JUPYTER_TOKEN"]
    finally:
        server.terminate()
        server.wait(30)


@pytest.fixture
def page(tmp_path):
    if not CHROMIUM:
        pytest.skip("no Chromium on this machine: install chromium (or google-chrome) to run this")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch_persistent_context(
            tmp_path / "chromium", executable_path=CHROMIUM, args=FLAGS, viewport={"width": 1400, "height": 1000}
        )
        page = browser.new_page()
        page.set_default_timeout(60_000)
        yield page
        browser.close()


def kernels(address, token):
    request = urllib.request.Request(f"{address}/api/kernels", headers={"Authorization": f"token {token}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def menu(page, name, item):
    page.get_by_role("menuitem", name=name, exact=True).click()
    page.get_by_role("menuitem", name=item, exact=True).click()


def run_all(page):
    """Run every cell and wait for the last. A run asked for too early is dropped without a word, so ask again."""
    idle = "document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status === 'idle'"
    page.locator(".jp-Notebook .jp-Cell").first.wait_for()
    page.wait_for_function(idle)
    for _ in range(10):
        menu(page, "Run", "Run All Cells")
        try:
            page.wait_for_function(PROMPTS + ".some(t => /[*\\d]/.test(t))", timeout=5_000)
            break
        except Exception as error:
            if type(error).__name__ != "TimeoutError":
                raise
            if (select := page.locator(".jp-Dialog").get_by_role("button", name="Select")).count():
                select.click()  # asked for before the kernel was there, JupyterLab asks back which one
    page.wait_for_function(PROMPTS + ".every(t => /\\d/.test(t))", timeout=180_000)


def seen(explorer):
    return explorer.locator(".everybyte-sentence").inner_text(), explorer.locator("svg").evaluate("e => e.outerHTML")


def press_right(page, explorer):
    """Move the first slider by one step; (sentence, picture) before and after."""
    slider = explorer.locator(".noUi-handle, input[type=range]").first
    slider.scroll_into_view_if_needed()
    slider.focus()
    before, answers = seen(explorer), page.evaluate("window.answers.length")
    page.keyboard.press("ArrowRight")
    try:
        page.wait_for_function("n => window.answers.length > n", arg=answers, timeout=6_000)
    except Exception as error:
        if type(error).__name__ != "TimeoutError":
            raise
    return before, seen(explorer)


def test_a_slider_moves_text_and_picture_with_the_kernel_and_without(page, lab, capsys):
    address, token = lab
    page.goto(f"{address}/lab/tree/notebooks/{NOTEBOOK.name}?token={token}")
    run_all(page)
    errors = page.locator(".jp-Notebook [data-mime-type='application/vnd.jupyter.error']")
    assert errors.all_inner_texts() == []
    explorer = page.locator(".everybyte-explorer").first
    explorer.locator("svg").wait_for()
    explorer.evaluate(WATCH)

    answers = []
    for running in (True, False):
        if not running:
            menu(page, "Kernel", "Shut Down Kernel")
            for _ in range(100):
                if not kernels(address, token):
                    break
                page.wait_for_timeout(200)
        assert bool(kernels(address, token)) is running
        page.evaluate("window.answers.length = 0")
        for _ in range(9):
            (text, picture), (new_text, new_picture) = press_right(page, explorer)
            assert new_text != text
            assert new_picture != picture
        answers.append(statistics.median(page.evaluate("window.answers")))
    with capsys.disabled():
        print("\nkey to picture, median of 9: {:.1f} ms; with the kernel stopped: {:.1f} ms".format(*answers))
