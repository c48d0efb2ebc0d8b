"""The page that reads evidence: a memory snapshot or an error's text, answered in the reader's browser by this package's own Python.

Its worker runs `answers.reading` under Pyodide, which JupyterLite brings along: the page is of the edition with JupyterLite under it.
"""

from ..common import files
from ..draw.palette import PARTS
from ..evidence.pickles import MOST
from . import beside
from .beside import read
from .pictures import looks

WORKER = "evidence.worker.js"
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Every Byte: why did it die?</title>
<link rel="icon" href="data:,">
<style>
{style}
.everybyte-picture {{ --everybyte-ink: CanvasText; --everybyte-page: Canvas; }} .ranges {{ display: flex; flex-wrap: wrap; gap: 6px; }}
</style></head><body>
<nav aria-label="book"><a href="index.html">Every Byte</a></nav>
<main>
<h1>Why did it die?</h1>
<p>Give a memory snapshot that PyTorch wrote (<code>torch.cuda.memory._dump_snapshot</code>), or the last lines of an out-of-memory error. They
are read in this page, by the book's own Python, and go nowhere.</p>
<div id="drop">
<label for="file">Drop the file here, or choose it:</label>
<input id="file" type="file">
<label for="text">or paste the error's text:</label>
<textarea id="text" spellcheck="false" autocomplete="off"></textarea>
<button id="read" type="button">read it</button>
</div>
<p id="status" role="status"></p>
<section id="said" aria-label="the answer"></section>
<noscript><p>Without JavaScript this page reads nothing: <code>everybyte doctor FILE</code> answers in a terminal.</p></noscript>
</main>
<script type="module">
{program}
new Page(document.body);
</script></body></html>
"""


def program() -> str:
    """The page's JavaScript."""
    known = {name: look | {"label": PARTS[name].label} for name, look in looks().items()}
    given = f"const LOOKS = {files.literal(known)};\nconst MOST = {MOST}; // bytes of a snapshot\n"
    return beside.program({}, "paint.js") + given + read("dropping.js", "evidence.js")


def page() -> str:
    """The page, as HTML; beside it stands its `worker`."""
    return _PAGE.format(style=read("configs.css", "picture.css"), program=program())


def worker() -> str:
    """The worker's JavaScript, for a file named `WORKER`."""
    return read(WORKER)
