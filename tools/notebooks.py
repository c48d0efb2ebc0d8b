"""Run notebooks and store them so that an unchanged notebook is an unchanged file.

    python tools/notebooks.py run all
    python tools/notebooks.py run notebooks/11_parameters.ipynb notebooks/20_number_formats.ipynb

Each notebook runs top to bottom in a fresh kernel, in its own folder, and replaces the stored one only if no cell
failed. Outputs are kept, so that the book reads on a code host; what differs from run to run is not.
"""

import argparse
import ast
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
IMAGES = ("image/png", "image/jpeg")
ADDRESS = re.compile(r"\b0x[0-9a-f]{9,16}\b")


#: Lines up to which a cell that ends in a table or a picture is read beside it; a longer one is folded.
BESIDE = 6
FOLDED = "hide-input"
#: The tag of a cell that begins with a heading whose part is read by whoever asks for it.
FOLD = "fold"


def plumbing(source: str) -> bool:
    """Whether a cell's code is no part of the argument: imports alone, or what lays out a table or a picture at length."""
    try:
        statements = ast.parse(source).body
    except SyntaxError:
        return False
    if not statements or all(isinstance(one, ast.Import | ast.ImportFrom) for one in statements):
        return bool(statements)
    last = statements[-1]
    called = ast.unparse(last.value.func) if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) else ""
    return called in ("Table", "draw.show", "measured") and source.count("\n") >= BESIDE


def _metadata(cell):
    """A cell's metadata: its tags, and what folds its code, or its heading's part, in JupyterLab (a page folds by the tags)."""
    tags = [tag for tag in cell.metadata.get("tags", []) if tag != FOLDED]
    if cell.cell_type == "code" and "slide-code" not in tags and plumbing(cell.source):
        return {"jupyter": {"source_hidden": True}, "tags": [*tags, FOLDED]}
    if FOLD in tags:
        return {"jp-MarkdownHeadingCollapsed": True, "tags": tags}
    return {"tags": tags} if tags else {}


def canonical(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A copy without what differs between runs or machines: times, addresses, random ids, live widgets."""
    result = nbformat.from_dict(notebook)
    result.nbformat, result.nbformat_minor = 4, 5
    result.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}})
    for number, cell in enumerate(result.cells, 1):
        cell.id = f"c{number:02d}"
        cell.source = cell.source.strip("\n")
        cell.metadata = nbformat.from_dict(_metadata(cell))
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            data.pop(WIDGET_VIEW, None)  # it names a live model; the picture and the text beside it stay
            for kind in data:
                if isinstance(data[kind], str) and kind not in IMAGES:
                    data[kind] = ADDRESS.sub("0x0", data[kind])
            if "text" in output:
                output.text = ADDRESS.sub("0x0", output.text)
    return result


def run(notebook: nbformat.NotebookNode, path: Path, timeout: int = 120, widgets: bool = False) -> None:
    """Run a notebook in place, in a fresh kernel in the folder of `path`; RuntimeError names the cell that failed.

    `timeout` is in seconds, for each cell. With `widgets` the notebook's metadata get the widgets' state, and each figure its
    slide's picture (`everybyte.draw.ON_SLIDE`); the exercises' cards then mark without a kernel.
    """
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    os.environ["EVERYBYTE_RECORD_ONLY"] = "1"  # what is stored is the record's on every machine, not this GPU's
    os.environ["EVERYBYTE_PROGRESS"] = "off"  # and a new reader's
    client = NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        coalesce_streams=True,
        extra_arguments=["--IPKernelApp.log_level=40"],  # not a warning a run about the loopback socket
        record_timing=False,
        store_widget_state=widgets,
        shutdown_kernel="immediate",
    )
    try:
        client.execute(env=os.environ | ({"EVERYBYTE_SLIDES": "1", "EVERYBYTE_ALONE": "1"} if widgets else {}))
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        cell = next((c.id for c in notebook.cells if any(o.output_type == "error" for o in c.get("outputs", []))), "?")
        raise RuntimeError(f"{path}: cell {cell} failed; nothing was stored\n{error}") from None


def execute(path: Path, timeout: int = 120) -> None:
    """Format, run and store the notebook at `path`; RuntimeError names the cell that failed, and stores nothing.

    `timeout` is in seconds, for each cell.
    """
    ruff = [sys.executable, "-m", "ruff", "format", "--quiet", "--stdin-filename", str(path), "-"]
    text = subprocess.run(ruff, input=path.read_bytes(), stdout=subprocess.PIPE, cwd=ROOT, check=True).stdout
    notebook = canonical(nbformat.reads(text.decode(), as_version=4))
    run(notebook, path, timeout)
    notebook = canonical(notebook)
    nbformat.validate(notebook)
    part = path.with_name(path.name + ".part")
    part.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    os.replace(part, path)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["run"])
    parser.add_argument("paths", nargs="+", help='notebooks, or "all"')
    parser.add_argument("--jobs", type=int, default=2, help="notebooks run at once (default: 2)")
    parser.add_argument("--timeout", type=int, default=120, help="seconds allowed to a cell (default: 120)")
    options = parser.parse_args(arguments)
    paths = [Path(p).resolve() for p in options.paths if p != "all"]
    if "all" in options.paths:
        paths = sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("labs/*.ipynb")])
    if missing := [p for p in paths if not p.is_file()]:
        parser.error(f"no such notebook: {', '.join(map(str, missing))}")
    if not paths:
        parser.error("there is no notebook in notebooks/ or labs/")
    failures = []
    with ThreadPoolExecutor(max(1, options.jobs)) as pool:
        runs = {pool.submit(execute, path, options.timeout): path for path in paths}
        for run in tqdm(as_completed(runs), total=len(runs), unit="notebook", disable=None):
            if error := run.exception():
                failures.append(f"{runs[run].name}: {error}" if not isinstance(error, RuntimeError) else str(error))
    print(*failures, sep="\n\n", file=sys.stderr, end="\n" if failures else "")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
