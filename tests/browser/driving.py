"""Driving JupyterLab by menu and keyboard, and what is measured and kept on the way."""

import json
import re
import secrets
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import nbformat
import psutil

from everybyte.explore.explorer import FIRST

ROOT = Path(__file__).resolve().parents[2]
ARTIFACTS = ROOT / ".artifacts" / "browser"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = """--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
           --disable-component-update --disable-sync --disable-dev-shm-usage""".split()
SETTINGS = {"notebook-extension/tracker": {"windowingMode": "none"}}  # every cell is in the page
#: Of every code cell that shows one: a collapsed cell has none. Cells run in order, so those after it tell that it has run.
PROMPTS = """[...document.querySelectorAll('.jp-Notebook .jp-CodeCell:not(:has(.jp-Placeholder)) .jp-InputPrompt')]
  .map(e => e.textContent)"""
IDLE = """!document.querySelector('.jp-Dialog')
  && document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status === 'idle'"""
ERRORS = ".jp-Notebook [data-mime-type='application/vnd.jupyter.error']"
#: What JupyterLab itself says of a kernel that was ended on purpose.
OWN = ("Canceled future for", "Cannot send", "Kernel Died", "WebSocket", "ERR_CONNECTION", "the kernel")


@contextmanager
def served(folder):
    """A folder over http, on loopback, at a port of its own; its address."""
    command = [sys.executable, "-u", "-m", "http.server", "--bind", "127.0.0.1", "-d", str(folder), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            yield re.search(r"http://[\d.]+:\d+", server.stdout.readline())[0]
        finally:
            server.terminate()


@dataclass
class Lab:
    """A running JupyterLab: where, its token, the folder that it shows, its process."""

    address: str
    token: str
    folder: Path
    process: subprocess.Popen

    def ask(self, path, method="GET"):
        """The server's answer, or nothing where it says nothing."""
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(f"{self.address}/api/{path}", headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or "null")

    def kernels(self):
        """What the server says of its kernels."""
        return self.ask("kernels")

    def end(self, kernel):
        """Shut a kernel down."""
        self.ask(f"kernels/{kernel}", "DELETE")

    def processes(self):
        """The kernels' own processes."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [p for p in children if "ipykernel_launcher" in " ".join(p.cmdline())]

    def at(self, path):
        """The address of the notebook at `path`, from the folder, in a workspace of its own."""
        return f"{self.address}/lab/workspaces/{secrets.token_hex(4)}/tree/{path}?token={self.token}"

    def write(self, name, *cells, title=""):
        """A notebook of these code cells, nothing run, in the folder: its path there."""
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        if title:
            notebook.cells.insert(0, nbformat.v4.new_markdown_cell(f"# {title}"))
        notebook.metadata.kernelspec = {"display_name": "Python 3", "language": "python", "name": "python3"}
        nbformat.write(notebook, self.folder / f"{name}.ipynb")
        return f"{name}.ipynb"

    def open(self, page, path):
        """Show the notebook at `path`."""
        page.goto(self.at(path))
        page.locator(".jp-Notebook .jp-Cell").first.wait_for()


def copy(folder):
    """The book without its outputs, so that what is seen is new."""
    for name in ("notebooks", "labs", "figures"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns(".*"))
    for path in folder.rglob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        nbformat.write(notebook, path)


def watched(chromium):
    """A new page; what its console calls an error is kept in `page.errors`."""
    page = chromium.new_page()
    page.set_default_timeout(30_000)
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("console", lambda said: said.type == "error" and page.errors.append(said.text))
    page.on("dialog", lambda dialog: dialog.accept())  # a page opened again asks whether to leave
    return page


def own_errors(page):
    """The page's errors, without what JupyterLab says of a lost kernel."""
    return [e for e in page.errors if not any(word in e for word in OWN)]


def waited(page, condition, timeout, **more):
    """Whether `condition` became true in the page within `timeout` milliseconds."""
    try:
        page.wait_for_function(condition, timeout=timeout, **more)
    except Exception as error:
        if type(error).__name__ != "TimeoutError":
            raise
        return False
    return True


def menu(page, name, item):
    page.get_by_role("menuitem", name=name, exact=True).click()
    page.get_by_role("menuitem", name=item, exact=True).click()


def accept(page):
    """Agree to what JupyterLab asks, such as which kernel to start, or that one died; whether it asked."""
    asked = (button := page.locator(".jp-Dialog .jp-mod-accept")).count() > 0
    if asked:
        button.first.click()
    return asked


def run_all(page, patience=90, attempts=4):
    """Run every cell and wait for the last, or for an error, which ends a run.

    JupyterLab drops a run, whole or in part, without a word while its kernel is not quite there: where no prompt has
    changed for `patience` seconds, or nothing is left to run but not all has run, the page is opened again and asked again.
    """
    seen = []
    for _ in range(attempts):
        for _ in range(20):
            accept(page)
            if waited(page, IDLE, 6_000):
                menu(page, "Run", "Run All Cells")
                break
        if ended(page, patience, seen):
            return
        page.reload()
        page.locator(".jp-Notebook .jp-Cell").first.wait_for()
    raise TimeoutError(f"the cells did not run in {attempts} attempts; their prompts, and what the kernel was: {seen}")


def ended(page, patience, seen):
    """Whether every cell has run or one has failed; if not, what was there is added to `seen`."""
    prompts, changed = [], time.monotonic()
    while time.monotonic() - changed < patience:
        page.wait_for_timeout(300)
        if prompts != (prompts := page.evaluate(PROMPTS)):
            changed = time.monotonic()
        if all(re.search(r"\d", prompt) for prompt in prompts) or page.locator(ERRORS).count():
            return True
        if not any("*" in prompt for prompt in prompts) and time.monotonic() - changed > 6:
            break  # asked for, and nothing runs: dropped
    seen.append((prompts, page.evaluate("document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status")))
    return False


def screenshot(page, name):
    """Keep a picture of the page to be looked at."""
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=ARTIFACTS / f"{name}.png")


# In the page: from a key to the moment after the frame in which an explorer's picture differs was painted.
WATCH = """root => {
  if (root.watched) return;
  root.watched = true;
  const place = root.querySelector(".everybyte-picture"), paint = new MessageChannel();
  window.answers ??= [];
  let start = 0, waiting = false;
  window.addEventListener("keydown", (event) => { start = event.timeStamp; }, true);
  paint.port1.onmessage = () => { waiting = false; window.answers.push(performance.now() - start); start = 0; };
  new MutationObserver(() => {
    if (!start || waiting || !root.contains(document.activeElement)) return;
    waiting = true;
    requestAnimationFrame(() => paint.port2.postMessage(0));
  }).observe(place, { childList: true, subtree: true });
}"""
# In the page: an explorer that is nothing but one element, replaced at each key.
EMPTY = """() => {
  const [root, picture] = [document.createElement("button"), document.createElement("span")];
  picture.className = "everybyte-picture";
  root.append(picture);
  root.addEventListener("keydown", () => picture.replaceChildren(document.createElement("i")));
  document.body.prepend(root);
  root.focus();
  return root;
}"""
STATE = """root => ({
  sentence: root.querySelector(".everybyte-sentence").textContent,
  picture: root.querySelector("svg")?.outerHTML ?? "",
  error: root.querySelector(".everybyte-error")?.textContent ?? "",
})"""


def drawer(explorer):
    """The button of an explorer's drawer, once it is there; None where there is none."""
    button = explorer.locator(".everybyte-drawer button")
    if explorer.locator(".widget-box > .widget-inline-hbox").count() <= FIRST:
        return None
    button.wait_for()
    return button


def pull(explorer, is_open=True):
    """Open an explorer's drawer, or close it."""
    button = drawer(explorer)
    if button and button.get_attribute("aria-expanded") != str(is_open).lower():
        button.click()


class Keys:
    """An explorer moved by the keyboard alone, its drawer open. `answers`: milliseconds from each key to the painted picture."""

    def __init__(self, page, explorer):
        self.page, self.explorer, self.answers = page, explorer, []
        explorer.locator("svg[role=img]").wait_for()
        pull(explorer)
        explorer.evaluate(WATCH)

    def seen(self):
        """What the explorer shows: its sentence, its picture, its error."""
        return self.explorer.evaluate(STATE)

    def press(self, control, key, patience=2_000):
        """Press a key on a control: what was seen before and after, the same where nothing followed in `patience` ms."""
        before = self.seen()
        control.focus()
        self.page.evaluate("window.answers.length = 0")
        self.page.keyboard.press(key)
        if waited(self.page, "window.answers.length > 0", patience, polling=5):
            self.answers.append(self.page.evaluate("window.answers[0]"))
        return before, self.seen()

    def moves(self, control, key, what):
        """Press a key that must change picture and sentence."""
        before, after = self.press(control, key)
        assert not after["error"], (what, key, after["error"])
        for side in ("sentence", "picture"):
            assert before[side] != after[side], (what, key, before["sentence"])
        return after

    def sliders(self):
        return self.explorer.locator(".noUi-handle").all()

    def choices(self):
        return self.explorer.locator("select").all()

    def presets(self):
        return self.explorer.locator(".widget-toggle-buttons button").all()

    def every_control(self):
        """Each slider to both its ends, each choice to its last option, each preset from a state that is none."""
        reset = self.presets()[0]
        for slider in self.sliders():
            self.press(reset, "Enter", 300)
            name = slider.get_attribute("aria-label")
            least = slider.get_attribute("aria-valuemin")
            for key in ("End", "Home") if slider.get_attribute("aria-valuenow") == least else ("Home", "End"):
                self.moves(slider, key, name)
                assert (slider.get_attribute("aria-valuenow") == least) is (key == "Home"), (name, key)
        for choice in self.choices():
            self.press(reset, "Enter", 300)
            index, last = choice.evaluate("e => [e.selectedIndex, e.options.length - 1]")
            if not last:
                continue  # a reader's own model, or Nora's: there is no other to choose
            if index == last:
                self.moves(choice, "ArrowUp", choice.input_value())
            self.moves(choice, "End", choice.input_value())
        for preset in reversed(self.presets()):
            if preset.get_attribute("aria-pressed") == "true":
                continue  # what is shown is this preset
            before, after = self.press(preset, "Enter")
            said = after["sentence"]
            assert said.startswith(preset.inner_text().strip() + ": ") and not after["error"], (said, after["error"])
            assert ": as it was." in said or before["picture"] != after["picture"], said
            assert preset.get_attribute("aria-pressed") == "true", said


def floor(page, presses=24):
    """Milliseconds from each of some keys to the painted picture where there is next to nothing to paint."""
    page.goto("about:blank")
    root, answers = page.evaluate_handle(EMPTY), []
    root.evaluate(WATCH)
    for _ in range(presses):
        page.evaluate("window.answers.length = 0")
        page.keyboard.press("ArrowRight")
        page.wait_for_function("window.answers.length > 0", polling=5)
        answers.append(page.evaluate("window.answers[0]"))
    return answers


def summary(answers):
    """Median and 95th percentile of the answers, as text."""
    if len(answers) < 2:
        return "too few answers"
    middle, high = statistics.median(answers), statistics.quantiles(answers, n=20)[-1]
    return f"{len(answers)} keys: median {middle:.0f} ms, 95th percentile {high:.0f} ms"


def theme(page, name):
    """Choose a theme by the menu, as a reader does."""
    page.get_by_role("menuitem", name="Settings", exact=True).click()
    page.get_by_text("Theme", exact=True).hover()
    page.get_by_text(name, exact=True).click()
    page.wait_for_function(f"document.body.dataset.jpThemeName === {json.dumps(name)}")


def serious(page, within=(".jp-OutputArea-output", ".jp-RenderedMarkdown")):
    """What axe-core finds serious or critical in the cells' outputs and prose, but for JupyterLab's own parts."""
    from axe_playwright_python.sync_playwright import Axe

    ours = {"include": [[selector] for selector in within]}
    rules = {
        "image-alt": {"enabled": False}
    }  # JupyterLab drops the alternative text that outputs carry; a lint holds them to it
    found = Axe().run(page, context=ours, options={"rules": rules}).response["violations"]
    return [
        f"{v['impact']}, {v['help']}: {node['html'][:200]} {node['failureSummary'][:300]}"
        for v in found
        if v["impact"] in ("serious", "critical")
        for node in v["nodes"]
    ]
