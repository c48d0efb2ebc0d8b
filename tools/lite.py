"""Build a JupyterLite in which `import everybyte` works: Python and sympy in the reader's browser, no server.

    make lite     # into build/lite; needs pip, npm and the network once, and an environment of its own

What needs compiled packages is not there: numpy's, matplotlib's and torch's are not to be had as wheels. So it is the formulas' side of
the book: models, formulas, budgets, what fits, plans and exercises; the explorers live in the static edition's pages. The page itself asks for nothing outside.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "lite.part"
SITE = ROOT / "build" / "lite"
#: Exact, and matching: the kernel names the version of Pyodide that it takes.
TOOLS = ("jupyterlite-core==0.8.6", "jupyterlite-pyodide-kernel==0.8.6", "jupyter-server")
PYODIDE = "pyodide@314.0.6"
#: What the kernel and the book need of Pyodide's own distribution; what these depend on comes along.
PACKAGES = ("micropip", "packaging", "ipython", "jedi", "sympy", "traitlets", "six", "python-dateutil")
#: What the kernel fetches by itself.
WIDGETS = ("comm", "ipywidgets", "jupyterlab-widgets")
CELLS = (
    "# The formulas of Every Byte\n\nPython runs in this page. The first cell takes some twenty seconds: it loads sympy.",
    "import everybyte as eb",
    'gpt2 = eb.model("gpt2")\ngpt2.parameters',
    'eb.formula("parameters").for_model(gpt2)',
    'eb.formula("parameters").at(gpt2)',
    'setup = eb.Setup(batch=8, sequence=1024, precision="bf16-mixed", optimizer="adamw")\neb.budget(gpt2, setup)',
    'eb.fit(gpt2, setup, eb.gpu("rtx-4090"))  # what fits, and what limits it',
    'from everybyte.teach import check, hint\n\ncheck("13.1", ...)  # an exercise of the book: put a number in place of the three dots',
    'eb.formula("loss.logits").for_model(gpt2, setup)',
    'eb.formula("loss.logits").at(gpt2, setup)',
    "Change a number, and run the cell again. The derivations, the explorers and the dry run are in the book.",
)


def prose(cell: str) -> bool:
    """Whether a cell is text."""
    return cell.startswith("# ") or cell.endswith(".")


def run(*command, **more):
    subprocess.run([str(c) for c in command], check=True, **more)


def download(python: Path, place: Path, *packages: str) -> None:
    """Pure-Python wheels, exactly these, into `place`."""
    pure = [
        "--no-deps",
        "--only-binary=:all:",
        "--python-version",
        "3.14",
        "--platform",
        "any",
        "--implementation",
        "py",
    ]
    run(python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", *pure, "-d", place, *packages)


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
    run(python, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "-w", place, package)
    wheels = {p.name.split("-")[0].lower().replace("_", "-"): p for p in place.glob("*.whl")}
    version = wheels["everybyte"].name.split("-")[1]
    kept["everybyte"] = kept["sympy"] | {
        "name": "everybyte",
        "version": version,
        "imports": ["everybyte"],
        "depends": ["sympy"],
    }
    for name, entry in kept.items():
        entry["file_name"] = wheels[name].name
        entry["sha256"] = hashlib.sha256(wheels[name].read_bytes()).hexdigest()
        entry["depends"] = [d for d in entry["depends"] if d.lower().replace("_", "-") in kept]
    (place / "pyodide-lock.json").write_text(json.dumps(lock | {"packages": kept}), encoding="utf-8")


def main() -> int:
    npm = shutil.which("npm")
    if not npm:
        print(
            "JupyterLite needs npm, for Pyodide: install Node.js with npm, or read the static edition", file=sys.stderr
        )
        return 1
    shutil.rmtree(WORK, ignore_errors=True)
    lite = WORK / "lite"
    (lite / "files").mkdir(parents=True)
    (lite / "pypi").mkdir()
    venv.create(WORK / "venv", with_pip=True)
    python = WORK / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *TOOLS)
    with tempfile.TemporaryDirectory() as folder:
        run(npm, "install", "--silent", "--no-audit", "--no-fund", PYODIDE, cwd=folder)
        distribution(python, Path(folder) / "node_modules" / "pyodide", lite / "static" / "pyodide")
    download(python, lite / "pypi", *WIDGETS)
    cells = [nbformat.v4.new_markdown_cell(c) if prose(c) else nbformat.v4.new_code_cell(c) for c in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata.kernelspec = {"display_name": "Python (Pyodide)", "language": "python", "name": "python"}
    nbformat.write(notebook, lite / "files" / "formulas.ipynb")
    settings = {"disablePyPIFallback": True}
    config = {"litePluginSettings": {"@jupyterlite/pyodide-kernel-extension:kernel": settings}}
    page = {"jupyter-lite-schema-version": 0, "jupyter-config-data": config}
    (lite / "jupyter-lite.json").write_text(json.dumps(page), encoding="utf-8")
    run(python, "-m", "jupyterlite_core", "build", "--contents", "files", "--output-dir", WORK / "site", cwd=lite)
    shutil.rmtree(SITE, ignore_errors=True)
    (WORK / "site").rename(SITE)
    shutil.rmtree(WORK)
    print(f"python -m http.server -d {SITE.relative_to(ROOT)}   then open /lab/index.html?path=formulas.ipynb")
    return 0


if __name__ == "__main__":
    sys.exit(main())
