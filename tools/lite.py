"""Build a JupyterLite with the book in it: Python and sympy in the reader's browser, no server.

    make lite     # into build/lite; needs pip, npm and the network once, and an environment of its own
    make pages    # the static edition with it under it, as it is published

The pages' own Python has no PyTorch; and numpy and matplotlib are not to be had for it as wheels, nor in npm's Pyodide. The explorers need none
of them. So it has models, formulas, budgets, what fits, plans, every explorer and the exercises; and the chapters, whose cells run
where they need no more than that (tools/bare.py finds out which). What is written asks for nothing outside.
"""

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import face
import nbformat
from bare import Bare, linked
from contents import Entry, contents
from edition import faults
from install import HELD, LOCKS
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "lite.part"
SITE = ROOT / "build" / "lite"
#: Exact, and matching: the kernel names the version of Pyodide that it takes. What is installed are the files of locks/lite.txt.
TOOLS = (
    "jupyterlite-core==0.8.6", "jupyterlite-pyodide-kernel==0.8.6", "jupyter-server", "anywidget", "jupyterlab-widgets",
)  # fmt: skip
PYODIDE = "pyodide@314.0.6"
#: What the kernel and the book need of Pyodide's own distribution; what these depend on comes along.
PACKAGES = (
    "micropip", "packaging", "ipython", "jedi", "sympy", "traitlets", "six", "python-dateutil", "typing-extensions",
)  # fmt: skip
#: What the explorers need beside, which comes with the book; and what the kernel fetches by itself.
BOOK, WIDGETS = ("anywidget", "ipywidgets", "psygnal"), ("comm", "ipywidgets", "jupyterlab-widgets")
#: An explorer stays in the page when it is scrolled out of sight; what is Markdown opens to be read.
OVERRIDES = {
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
    "@jupyterlab/docmanager-extension:plugin": {"defaultViewers": {"markdown": "Markdown Preview"}},
}
KERNEL = {"display_name": "Python (Pyodide)", "language": "python", "name": "python"}
CELLS = (
    "# The formulas of Every Byte\n\nPython runs in this page. The first cell takes WAIT: it loads sympy and the book. "
    "[explorers.ipynb](explorers.ipynb) has every explorer, and leads to the chapters.",
    "import everybyte as eb",
    'gpt2 = eb.model("gpt2")\ngpt2.parameters',
    'eb.formula("parameters").for_model(gpt2)',
    'eb.formula("parameters").at(gpt2)',
    'setup = eb.Setup(batch=8, sequence=1024, precision="bf16-mixed", optimizer="adamw")\neb.budget(gpt2, setup)',
    'eb.fit(gpt2, setup, eb.gpu("rtx-4090"))  # what fits, and what limits it',
    'from everybyte.teach import check, hint\n\ncheck("12.1", ...)  # an exercise of the book: put a number in place of the three dots',
    'eb.formula("loss.logits").for_model(gpt2, setup)',
    'eb.formula("loss.logits").at(gpt2, setup)',
    "Change a number, and run the cell again. The dry run, the figures and a GPU's measurements are in the book.",
)
WAIT = "about half a minute, on a busy machine a minute"
#: An explorer in a notebook -> the cell that opens it, where that takes an argument.
OPENS = {
    "memory_map": "from everybyte.evidence import example\n\nexplore.memory_map(example.left())",
    "model": (
        "import json\nfrom pathlib import Path\n\nimport everybyte as eb\n\n"
        "derived = json.loads(Path(\"llama.json\").read_text())  # by PyTorch, when this page was built\n"
        "eb.explore.model(eb.Derivation.from_dict(derived))"
    ),
}  # fmt: skip


def prose(cell: str) -> bool:
    """Whether a cell is text."""
    return cell.startswith("# ") or cell.endswith(".")


def entries() -> list[Entry]:
    """The book's chapters, in order."""
    found = contents((ROOT / "README.md").read_text(encoding="utf-8"))
    return [e for e in found if e.path and e.path.startswith("notebooks/")]


def opened(chapter: nbformat.NotebookNode) -> list[str]:
    """The explorers that a chapter opens, in order."""
    code = "\n".join(cell.source for cell in chapter.cells if cell.cell_type == "code")
    found = re.findall(r"\bexplore\.(\w+)\(|\.(explore)\(", code)
    return [name for name in dict.fromkeys(a or "model" for a, _ in found) if name != "reset"]


def explorers(chapters: dict[Entry, nbformat.NotebookNode]) -> nbformat.NotebookNode:
    """Every explorer, each under the first chapter of a part that opens it; and with it, a table of contents."""
    first = (
        f"# The explorers of Every Byte\n\nPython runs in this page. The first cell takes {WAIT}, each explorer then a second or two. "
        "*Run*, then *Run All Cells* opens all of them. Once shown, an explorer answers without Python: move its controls with the "
        "mouse, or with Tab and the arrow keys.\n\nA chapter's title leads to the chapter."
    )
    cells = [nbformat.v4.new_markdown_cell(first), nbformat.v4.new_code_cell("from everybyte import explore")]
    shown, part = set(), ""
    for entry, chapter in chapters.items():
        title = next(cell.source for cell in chapter.cells if cell.cell_type == "markdown").splitlines()[0].lstrip("# ")
        said = f"### [{title}]({entry.path})\n\n*{entry.question}*"
        if entry.part != part:
            part, said = entry.part, f"## {entry.part}\n\n{said}"
        cells.append(nbformat.v4.new_markdown_cell(said))
        names = [name for name in opened(chapter) if name not in shown] if part else []
        shown |= {*names}
        cells += [nbformat.v4.new_code_cell(OPENS.get(name, f"explore.{name}()")) for name in names]
    return notebook(cells)


def notebook(cells: list) -> nbformat.NotebookNode:
    """A notebook of the page's kernel."""
    made = nbformat.v4.new_notebook(cells=cells)
    made.metadata.kernelspec = KERNEL
    for number, cell in enumerate(made.cells, 1):
        cell.id = f"c{number:02d}"
    return made


def write_book(place: Path, jobs: int = 2) -> None:
    """The notebooks: formulas, explorers, and the chapters as they run in the page."""
    import transformers

    import everybyte as eb

    chapters = {e: nbformat.read(ROOT / e.path, as_version=4) for e in entries()}
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "notebooks").glob("*.md"))}
    here = {*texts, *(Path(e.path).name for e in chapters)}
    (place / "notebooks").mkdir(parents=True)
    for name, text in texts.items():
        (place / "notebooks" / name).write_text(linked(text, here.__contains__), encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        bare = Bare(Path(folder))

        def page(entry):
            chapter = bare.chapter(ROOT / entry.path, here.__contains__)
            chapter.metadata.kernelspec = KERNEL
            # Whole texts, not lists of lines as nbformat writes them: between the lines of printed text JupyterLite puts commas.
            (place / entry.path).write_text(json.dumps(chapter), encoding="utf-8")

        list(tqdm(pool.map(page, chapters), total=len(chapters), unit="chapter", disable=None))
    derived = eb.derive(transformers.LlamaConfig(), eb.Setup(precision="bf16"))
    (place / "llama.json").write_text(json.dumps(derived.as_dict()), encoding="utf-8")
    nbformat.write(explorers(chapters), place / "explorers.ipynb")
    cells = [c.replace("WAIT", WAIT) for c in CELLS]
    cells = [nbformat.v4.new_markdown_cell(c) if prose(c) else nbformat.v4.new_code_cell(c) for c in cells]
    nbformat.write(notebook(cells), place / "formulas.ipynb")


def run(*command, **more):
    subprocess.run([str(c) for c in command], check=True, **more)


def pip(python: Path, command: str, *arguments) -> None:
    run(python, "-m", "pip", command, "--quiet", "--disable-pip-version-check", *arguments)


def download(python: Path, place: Path, *packages: str) -> None:
    """Pure-Python wheels, exactly these, into `place`."""
    pure = "--no-deps --only-binary=:all: --python-version 3.14 --platform any --implementation py".split()
    pip(python, "download", *pure, "-d", place, *packages)


def download_held(python: Path, place: Path, *names: str) -> None:
    """The same, each held to its digest of the lock."""
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "lock.txt"
        blocks = re.split(r"(?m)^(?=\w)", (LOCKS / "install.txt").read_text(encoding="utf-8"))
        lines.write_text("".join(b for b in blocks if b.partition("==")[0] in names), encoding="utf-8")
        download(python, place, "--require-hashes", "-r", lines)


def distribution(python: Path, npm: Path, place: Path) -> None:
    """Pyodide with its lock cut down to what is needed and is pure Python, and this package in it."""
    place.mkdir(parents=True)
    for path in npm.iterdir():
        if path.suffix in {".mjs", ".wasm", ".zip", ".json", ".js"}:
            shutil.copy(path, place)
    lock = json.loads((npm / "pyodide-lock.json").read_text(encoding="utf-8"))
    known, kept, wanted = lock["packages"], {}, list(PACKAGES)
    while wanted:
        name = wanted.pop().lower().replace("_", "-")
        if name in known and name not in kept and known[name]["file_name"].endswith("none-any.whl"):
            kept[name] = known[name]
            wanted += known[name]["depends"]
    download(python, place, *(f"{name}=={entry['version']}" for name, entry in kept.items()))
    package = WORK / "package"
    shutil.copytree(ROOT / "src", package / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, package)
    pip(python, "wheel", "--no-deps", "--no-build-isolation", "-w", place, package)
    download_held(python, place, *BOOK)
    wheels = {p.name.split("-")[0].lower().replace("_", "-"): p for p in place.glob("*.whl")}
    for name, depends in {
        "everybyte": ["sympy", *BOOK],
        **dict.fromkeys(BOOK, ["traitlets", "typing-extensions"]),
    }.items():
        own = {"name": name, "version": wheels[name].name.split("-")[1], "imports": [name], "depends": depends}
        kept[name] = kept["sympy"] | own
    for name, entry in kept.items():
        entry["file_name"] = wheels[name].name
        entry["sha256"] = hashlib.sha256(wheels[name].read_bytes()).hexdigest()
        entry["depends"] = [d for d in entry["depends"] if d.lower().replace("_", "-") in kept]
    (place / "pyodide-lock.json").write_text(json.dumps(lock | {"packages": kept}), encoding="utf-8")


def without_maps(site: Path) -> None:
    """Leave out the maps from the programs to sources that are not here: half of all bytes."""
    for path in site.rglob("*.map"):
        path.unlink()
    for path in [*site.rglob("*.js"), *site.rglob("*.css")]:
        text = path.read_text(encoding="utf-8")
        if (short := re.sub(r"\n(//|/\*)# sourceMappingURL=\S+( \*/)?\s*$", "\n", text)) != text:
            path.write_text(short, encoding="utf-8")


def faced(site: Path) -> None:
    """Give every page of a JupyterLite the edition's typefaces and icon."""
    face.write(site / "static")
    for path in site.rglob("index.html"):
        static = "../" * (len(path.relative_to(site).parts) - 1) + "static"
        path.write_text(face.dressed(path.read_text(encoding="utf-8"), static), encoding="utf-8")


def join(site: Path, lite: Path) -> None:
    """Put JupyterLite under the static edition, and into the pages of chapters, and the first, links to it.

    Raises:
        FileNotFoundError: where either is not built; RuntimeError where a link leads nowhere.
    """
    for folder, name in ((site, "site"), (lite, "lite")):
        if not (folder / "index.html").is_file():
            raise FileNotFoundError(f"{folder} is not there: make {name}")
    shutil.rmtree(site / "lite", ignore_errors=True)
    shutil.copytree(lite, site / "lite")

    def lead(page, path, text):
        link = (
            f'<a href="{"../" * (len(page.relative_to(site).parts) - 1)}lite/lab/index.html?path={path}">{text[0]}</a>'
        )
        told = re.sub(r'<p class="everybyte-run">.*?</p>', "", page.read_text(encoding="utf-8"))
        told = told.replace("</h1>", f'</h1><p class="everybyte-run">{link}{text[1]}</p>', 1)
        page.write_text(told, encoding="utf-8")

    lead(site / "index.html", "explorers.ipynb", (
        "Run it in this page", ": every explorer, the formulas, budgets, exercises, and of the chapters what needs no PyTorch, "
        "with Python in your browser. Nothing is installed.",
    ))  # fmt: skip
    for entry in entries():
        cells = nbformat.read(lite / "files" / entry.path, as_version=4).metadata.everybyte
        said = f": {cells.live} of its {cells.code} code cells, with Python in your browser. Nothing is installed."
        lead((site / entry.path).with_suffix(".html"), entry.path, ("Run this chapter in the page", said))
    if broken := list(faults(site)):
        raise RuntimeError("the pages have faults:\n" + "\n".join(broken))


def main(arguments: list[str]) -> int:
    if arguments == ["join"]:
        try:
            join(ROOT / "build" / "site", SITE)
        except (OSError, RuntimeError) as error:
            print(error, file=sys.stderr)
            return 1
        return 0
    npm = shutil.which("npm")
    if not npm:
        print(
            "JupyterLite needs npm, for Pyodide: install Node.js with npm, or read the static edition", file=sys.stderr
        )
        return 1
    shutil.rmtree(WORK, ignore_errors=True)
    lite = WORK / "lite"
    (lite / "pypi").mkdir(parents=True)
    venv.create(WORK / "venv", with_pip=True)
    python = WORK / "venv" / "bin" / "python"
    pip(python, *HELD, "-r", LOCKS / "lite.txt")
    with tempfile.TemporaryDirectory() as folder:
        run(npm, "install", "--silent", "--no-audit", "--no-fund", PYODIDE, cwd=folder)
        distribution(python, Path(folder) / "node_modules" / "pyodide", lite / "static" / "pyodide")
    download_held(python, lite / "pypi", *WIDGETS)
    write_book(lite / "files")
    settings = {"disablePyPIFallback": True}
    config = {"litePluginSettings": {"@jupyterlite/pyodide-kernel-extension:kernel": settings}}
    page = {"jupyter-lite-schema-version": 0, "jupyter-config-data": config}
    (lite / "jupyter-lite.json").write_text(json.dumps(page), encoding="utf-8")
    (lite / "overrides.json").write_text(json.dumps(OVERRIDES), encoding="utf-8")
    run(python, "-m", "jupyterlite_core", "build", "--contents", "files", "--output-dir", WORK / "site", cwd=lite)
    without_maps(WORK / "site")
    faced(WORK / "site")
    shutil.rmtree(SITE, ignore_errors=True)
    (WORK / "site").rename(SITE)
    shutil.rmtree(WORK)
    size = sum(path.stat().st_size for path in SITE.rglob("*") if path.is_file())
    print(
        f"{size / 2**20:.0f} MiB; python -m http.server -d {SITE.relative_to(ROOT)}   then open /lab/index.html?path=explorers.ipynb"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
