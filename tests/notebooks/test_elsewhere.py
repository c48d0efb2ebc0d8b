"""Chapters elsewhere than in JupyterLab: on Colab, where there is no repository, and in VS Code, whose kernels start in another folder.

As far as it goes without either: their kernels, folders and first cells, run by nbclient; what a reader then sees is what is stored.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from notebooks import canonical

ROOT = Path(__file__).resolve().parents[2]
QUIET = {"EVERYBYTE_RECORD_ONLY": "1", "EVERYBYTE_PROGRESS": "off", "OMP_NUM_THREADS": "1"}
#: Colab's own module, as much of it as the instructions call.
COLAB = """
from pathlib import Path

def enable_custom_widget_manager():
    Path("widgets").write_text("enabled")
"""


def first_cell():
    """What `anywhere.md` tells a reader on Colab to run first: (what it installs, the rest)."""
    text = (ROOT / "notebooks" / "anywhere.md").read_text(encoding="utf-8")
    cell = re.search(r"## Google Colab\n.*?```python\n(.*?)```", text, re.S)[1]
    pip, rest = cell.split("\n", 1)
    return re.fullmatch(r"%pip install -q git\+(\S+)", pip)[1], rest


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the package as pip installs it from a clone, without the network: what it needs is this environment's."""
    folder = tmp_path_factory.mktemp("colab")
    clone, target = folder / "clone", folder / "installed"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    shutil.copytree(
        ROOT / "src" / "everybyte", clone / "src" / "everybyte", dirs_exist_ok=True
    )  # what is not committed too
    alone = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", "-q", *alone, "--target", str(target), str(clone)]
    subprocess.run(command, check=True, timeout=300)
    shutil.rmtree(clone)
    (target / "google" / "colab").mkdir(parents=True)
    (target / "google" / "colab" / "output.py").write_text(COLAB, encoding="utf-8")
    return target


def ran(path, folder, before=(), **environment):
    """The notebook run in that folder with some cells before it, which are dropped: and what is stored, both as text alone."""
    notebook = canonical(nbformat.read(path, as_version=4))
    stored = seen(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    notebook.cells[:0] = map(nbformat.v4.new_code_cell, before)
    client = NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}}, coalesce_streams=True,
        extra_arguments=["--IPKernelApp.log_level=40"], shutdown_kernel="immediate",
    )  # fmt: skip
    client.execute(env=os.environ | QUIET | environment)
    del notebook.cells[: len(before)]
    return seen(canonical(notebook)), stored


def seen(notebook):
    """Cell -> what its outputs say, but for pictures."""
    said = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data") or {"text": output.get("text", output.get("evalue"))}
            said.setdefault(cell.id, []).append({kind: x for kind, x in data.items() if not kind.startswith("image/")})
    return said


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["11_parameters", "12_gradients_and_optimizers", "33_tensor_and_sequence_parallel"])
def test_on_colab_a_chapter_alone_shows_what_is_stored(name, installed, tmp_path):
    address, rest = first_cell()
    assert address.isupper()  # the reader puts one in
    path = shutil.copy(ROOT / "notebooks" / f"{name}.ipynb", tmp_path)
    where = f"import everybyte\nassert everybyte.__file__.startswith({str(installed)!r}), everybyte.__file__"
    said, stored = ran(path, tmp_path, [rest, where], PYTHONPATH=str(installed))
    assert said.keys() == stored.keys() and len(stored) > 10
    for cell in said:  # what was rehearsed stands in the clone, and is not made up
        assert (
            said[cell] == stored[cell]
            or "not rehearsed" in str(said[cell])
            and "not rehearsed" not in str(stored[cell])
        )
    assert (tmp_path / "widgets").read_text() == "enabled"
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{name}.ipynb", "widgets"]  # a chapter leaves nothing behind


def test_chapters_that_need_a_clone_are_named():
    text = (ROOT / "notebooks" / "anywhere.md").read_text(encoding="utf-8")
    named = re.search(r"Chapters?\s+([\d, and]+) read files of the repository", text)[1]
    asks = [
        p.name[:2]
        for p in sorted((ROOT / "notebooks").glob("*.ipynb"))
        if re.search(r"\b(shipped|book)\(", p.read_text("utf-8"))
    ]
    assert re.findall(r"\d+", named) == asks


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["11_parameters", "00_start_here", "20_number_formats"])
def test_in_vs_code_the_folder_does_not_matter(name, tmp_path):
    """Its kernels start in the notebook's folder, or in the workspace's, as a setting says; and they know the notebook's path."""
    path = ROOT / "notebooks" / f"{name}.ipynb"
    knows = f"__vsc_ipynb_file__ = {str(path)!r}"
    said, stored = ran(path, tmp_path, [knows], VSCODE_PID=str(os.getpid()))
    assert said == stored and len(stored) > 5
    assert list(tmp_path.iterdir()) == []
