"""How long a reader waits from a key on a slider to the painted picture in JupyterLab, beside `interact` with matplotlib.

Times belong to the machine, and their ratio is what is held: both are taken in one notebook, one after the other.
"""

import os
from statistics import median

import nbformat
import pytest
from driving import Keys, run_all, summary, watched

pytestmark = pytest.mark.skipif(not os.environ.get("EVERYBYTE_BROWSER"), reason="`make test-browser` runs this")
OURS = "import everybyte as eb\nfrom everybyte import explore\nexplore.states()"
PEER = """
import ipywidgets
import matplotlib.pyplot as plt

def drawn(layers=12):
    states = eb.catalog.model("gpt2").replace(layers=layers).parameters * 4
    plt.barh(["parameters", "gradients", "Adam's states"], [states, states, 2 * states])
    plt.show()

ipywidgets.interact(drawn, layers=(1, 48));
"""
# As `driving.WATCH`, for what a kernel sends: from a key to the frame after a new picture has been decoded.
WATCH = """root => {
  const paint = new MessageChannel();
  window.answers = [];
  let start = 0;
  window.addEventListener("keydown", (event) => { start = event.timeStamp; }, true);
  paint.port1.onmessage = () => { window.answers.push(performance.now() - start); };
  let shown = root.querySelector("img").src;
  new MutationObserver(() => {
    const image = root.querySelector("img");
    if (!image || image.src === shown) return;
    shown = image.src;
    image.decode().then(() => requestAnimationFrame(() => paint.port2.postMessage(0)));
  }).observe(root, { attributes: true, childList: true, subtree: true });
}"""
PRESSES = 24


def test_a_key_is_answered_sooner_than_interact_answers(lab, chromium, capsys):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in (OURS, PEER)])
    notebook.metadata.kernelspec = {"display_name": "Python 3", "language": "python", "name": "python3"}
    nbformat.write(notebook, lab.folder / "keys.ipynb")
    page = watched(chromium)
    lab.open(page, "keys.ipynb")
    run_all(page)
    ours = Keys(page, page.locator(".everybyte-explorer").first)
    for i in range(PRESSES):
        ours.press(ours.sliders()[0], ("ArrowRight", "ArrowLeft")[i % 2])

    peer = page.locator(".widget-interact")
    peer.locator("img").wait_for()
    peer.evaluate(WATCH)
    theirs = []
    for i in range(PRESSES):
        peer.locator(".noUi-handle").focus()
        page.evaluate("window.answers.length = 0")
        page.keyboard.press(("ArrowRight", "ArrowLeft")[i % 2])
        page.wait_for_function("window.answers.length > 0", polling=5)
        theirs.append(page.evaluate("window.answers[0]"))
    page.close()
    with capsys.disabled():
        print(f"\nin JupyterLab: {summary(ours.answers)}; interact with matplotlib: {summary(theirs)}")
    assert len(ours.answers) == len(theirs) == PRESSES
    assert median(ours.answers) < median(theirs) / 3
