"""Chapters where there is no PyTorch and no matplotlib: which cells run all the same, and what becomes of the others.

    bare = Bare(folder)              # a Python of its own there: this one's, but with the packages alone that a page has
    notebook = bare.chapter(path)    # of a chapter of the book

A cell stays a cell where it runs without the others and gives what is stored. Of another the page shows the code and what is stored,
as text: nothing in a notebook fails, and nothing is said that the book does not say.
"""

import ast
import copy
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import nbformat
from edition import RUNS, code
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient

from notebooks import IMAGES, ROOT, WIDGET_VIEW, canonical

#: The distributions that a page's kernel has, and with each what it asks for.
HAS = ("sympy", "ipywidgets", "anywidget")
#: Opens what a page shows in place of a cell that does not run there.
LABEL = "*Not run in this page, shown as the book stores it:*"
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()#\s:]+)(#[^()\s]*)?\)")


def closure(*names: str) -> list:
    """The distributions of these names, and those that they need, as far as they are installed."""
    waiting, found = list(names), {}
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:  # of another system or Python
            continue
        needs = (r for r in found[name].requires or () if not re.search(r"\bextra\s*==", r))
        waiting += [re.match(r"[\w.-]+", r)[0] for r in needs]
    return list(found.values())


def said(cell) -> list:
    """What a cell gave, but for pictures and live widgets."""
    kinds = {*IMAGES, WIDGET_VIEW}
    return [
        {kind: text for kind, text in output.get("data", {}).items() if kind not in kinds} or (output.output_type, output.get("text"))
        for output in cell.outputs
    ]  # fmt: skip


def _only(statement, aliases):
    """An import statement with these of its names."""
    if isinstance(statement, ast.Import):
        return ast.unparse(ast.Import(aliases))
    return ast.unparse(ast.ImportFrom(statement.module, aliases, statement.level))


def _taken(cell, text):
    """The cell as a page without its packages shows it: the code and what it gave, as Markdown."""
    pieces, pictures = [LABEL, f"```python\n{text}\n```"], {}
    for output in cell.outputs:
        data = output.get("data", {"text/plain": output.get("text", "")})
        if image := data.get("image/png"):
            name = f"{cell.id}-{len(pictures)}.png"
            pictures[name] = {"image/png": image}
            alt = output.get("metadata", {}).get("image/png", {}).get("alt", "")
            pieces.append(f"![{re.sub(r'[][]', '', alt)}](attachment:{name})")
        elif "text/html" in data:
            pieces.append(re.sub(r"\n\s*\n", "\n", data["text/html"]))
        else:
            kind = next((k for k in ("text/latex", "text/markdown") if k in data), None)
            pieces.append(data[kind] if kind else f"```text\n{data['text/plain'].rstrip()}\n```")
    shown = nbformat.v4.new_markdown_cell("\n\n".join(pieces), id=cell.id)
    if pictures:
        shown.attachments = pictures
    return shown


def linked(text: str, there) -> str:
    """Markdown without the links to what is not `there`, a function of a link's path: the words stay."""
    return _LINK.sub(lambda found: found[0] if there(found[2]) else found[1], text)


class Bare:
    """A Python that has the standard library, this package and what `HAS` says, laid out in a folder; its kernels run chapters."""

    def __init__(self, folder: Path):
        self.packages, self._kernels = folder / "packages", folder / "kernels"
        self.packages.mkdir(parents=True)
        for found in closure(*HAS, "ipykernel"):
            for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
                if not (self.packages / top).exists():
                    (self.packages / top).symlink_to(Path(found.locate_file(top)).resolve())
        away = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "src" / "everybyte", self.packages / "everybyte", ignore=away)
        (self._kernels / "bare").mkdir(parents=True)
        spec = {"argv": [*self._python, "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "bare"}
        (self._kernels / "bare" / "kernel.json").write_text(json.dumps(spec | {"language": "python"}), encoding="utf-8")
        self._known = {}

    @property
    def _python(self):
        return [sys.executable, "-S"]  # -S: nothing of this environment but what the folder has

    @property
    def environment(self) -> dict[str, str]:
        """Its environment variables."""
        told = {"PYTHONPATH": str(self.packages), "EVERYBYTE_PROGRESS": "off", "EVERYBYTE_RECORD_ONLY": "1"}
        return {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | told

    def program(self, text: str, given: str = "") -> str:
        """What a program prints there; RuntimeError where it fails."""
        done = subprocess.run(
            [*self._python, "-c", text], input=given, env=self.environment, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout

    def imports(self, text: str) -> str:
        """A cell's imports without those that fail here, which a remark names."""
        statements = ast.parse(text).body
        new = {_only(s, [alias]) for s in statements for alias in s.names} - self._known.keys()
        program = (
            "import json, sys\nfailed = []\nfor line in json.load(sys.stdin):\n    try:\n        exec(line)\n"
            "    except ImportError:\n        failed.append(line)\nprint(json.dumps(failed))"
        )
        failed = json.loads(self.program(program, json.dumps(sorted(new))).splitlines()[-1]) if new else []
        self._known |= {line: line not in failed for line in new}
        lines, gone = [], []
        for statement in statements:
            here = [alias for alias in statement.names if self._known[_only(statement, [alias])]]
            gone += [alias.asname or alias.name for alias in statement.names if alias not in here]
            if here:
                lines.append(_only(statement, here))
        return "\n".join([*lines, *([f"# not in this page: {', '.join(gone)}"] if gone else [])])

    def run(self, cells: list, timeout: int = 240) -> list:
        """The code cells run in a kernel of this Python, in an empty folder; one that fails ends none of the others."""
        notebook = nbformat.v4.new_notebook(cells=copy.deepcopy(cells))
        manager = AsyncKernelManager(
            kernel_name="bare", kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(self._kernels)])
        )
        with tempfile.TemporaryDirectory() as folder:
            NotebookClient(
                notebook, km=manager, timeout=timeout, allow_errors=True, coalesce_streams=True, record_timing=False,
                resources={"metadata": {"path": folder}}, shutdown_kernel="immediate",
                extra_arguments=["--IPKernelApp.log_level=40"],
            ).execute(env=self.environment)  # fmt: skip
        return canonical(notebook).cells

    def living(self, cells: list) -> list[str]:
        """The ids of those code cells that run one after the other, without the rest, and give what is stored."""
        stored = {cell.id: said(cell) for cell in cells}
        while True:
            ran = self.run(cells)
            kept = [
                (cell, new) for cell, new in zip(cells, ran, strict=True)
                if all(o.output_type != "error" for o in new.outputs) and said(new) == stored[cell.id]
            ]  # fmt: skip
            if len(kept) == len(cells):
                return [cell.id for cell in cells]
            cells = [cell for cell, _ in kept]

    def chapter(self, path: Path, there=lambda target: True, runs: Path = RUNS) -> nbformat.NotebookNode:
        """The chapter as a page has it. Its metadata's `everybyte`: how many code cells of how many run.

        Args:
            there: whether the page has what a link in the chapter leads to.
        """
        notebook = canonical(nbformat.read(path, as_version=4))
        cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        texts = {cell.id: cell.source for cell in cells}
        cells[0].source = self.imports(cells[0].source)
        key = hashlib.sha256(json.dumps([code(), [(c.source, said(c)) for c in cells]]).encode()).hexdigest()[:32]
        file = runs / f"bare-{path.stem}-{key}.json"
        if file.is_file():
            live = json.loads(file.read_text(encoding="utf-8"))
        else:
            live = self.living(cells)
            runs.mkdir(parents=True, exist_ok=True)
            for older in runs.glob(f"bare-{path.stem}-{'?' * 32}.json"):
                older.unlink()
            file.write_text(json.dumps(live), encoding="utf-8")
        shown = []
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.execution_count = None
            elif cell.cell_type == "markdown":
                cell.source = linked(cell.source, there)
            shown.append(cell if cell.cell_type != "code" or cell.id in live else _taken(cell, texts[cell.id]))
        told = (
            f"**In this page** {len(live)} of the chapter's {len(texts)} code cells run, with Python in the page itself: "
            "*Run*, then *Run All Cells*. The others need PyTorch or matplotlib, or build on what does; "
            "they are text here, with what the book stores of them."
        )
        notebook.cells = [shown[0], nbformat.v4.new_markdown_cell(told, id="page"), *shown[1:]]
        notebook.metadata.everybyte = {"live": len(live), "code": len(texts)}
        return notebook
