"""The verdict on a machine: its word follows from what the book needs, and from nothing that varies."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import namedtuple
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from everybyte.answers import machine
from everybyte.answers.machine import Finding, Verdict, verdict

GREEN = "green: everything that this book needs is here"
Memory = namedtuple("Memory", "available")


def found(what, said):
    return next(f for f in said.findings if f.what == what)


def test_this_machine_is_green_and_says_so_in_one_line():
    assert repr(verdict()) == GREEN
    assert GREEN in verdict()._repr_html_()


def test_every_package_of_the_extras_is_looked_at():
    text = " ".join(f.what for f in verdict().findings)
    for name in ("sympy", "torch", "numpy", "jupyterlab", "ipywidgets", "anywidget", "matplotlib"):
        assert name in text
    assert "pytest" not in text  # the tests' own needs are not the reader's


@pytest.mark.parametrize("there", [True, False])
def test_a_gpu_or_none_is_the_same_word_and_other_details(monkeypatch, there):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100")
    said = verdict()
    assert repr(said) == GREEN
    assert found("GPU", said).found.startswith("NVIDIA A100" if there else "none that PyTorch can use")
    assert ("NVIDIA A100" in repr(said.details())) is there


@pytest.mark.parametrize("free, tight", [(2**30, True), (8 * 2**30, False)])
def test_memory_is_in_the_details_only(monkeypatch, free, tight):
    import psutil

    monkeypatch.setattr(psutil, "virtual_memory", lambda: Memory(free))
    said = verdict()
    assert repr(said) == GREEN
    assert ("tight" in found("free memory", said).found) is tight


def test_an_old_python_is_amber(monkeypatch):
    monkeypatch.setattr(machine.sys, "version_info", (3, 10, 4, "final", 0))
    said = verdict()
    assert said.word == "amber"
    assert "Python: 3.10.4. Install Python 3.11 or newer." in repr(said)


@pytest.mark.parametrize("old, ok", [("2.10.9", False), ("2.11.0", True), ("2.99.0+cu130", True), ("2.12.0rc1", True)])
def test_a_package_outside_its_bounds_is_amber(monkeypatch, old, ok):
    real = machine.version
    monkeypatch.setattr(machine, "version", lambda name: old if name == "torch" else real(name))
    said = verdict()
    assert (said.word == "green") is ok
    assert ("2.10.9, and the book needs >=2.11" in repr(said)) is not ok


def test_a_package_that_is_not_installed_is_amber_and_says_what_to_do(monkeypatch):
    real = machine.version

    def version(name):
        if name == "anywidget":
            raise PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(machine, "version", version)
    said = verdict()
    assert [f.what for f in said.missing] == ["anywidget"]
    assert "not installed" in repr(said) and "make install" in repr(said)


def test_an_installation_without_the_extras_is_amber(monkeypatch):
    class Bare:
        def get_all(self, _):
            return None

    monkeypatch.setattr(machine, "metadata", lambda _: Bare())
    assert "older copy of the book" in repr(verdict())


def test_a_package_that_was_never_installed_is_amber(monkeypatch):
    def metadata(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(machine, "metadata", metadata)
    assert "everybyte is not installed" in repr(verdict())


@pytest.mark.parametrize("error", [ImportError, OSError])
def test_a_torch_that_does_not_load_is_amber(monkeypatch, error):
    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name == "torch":
                raise error("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    said = verdict()
    assert found("PyTorch runs", said).ok is False
    assert found("GPU", said).ok is None
    assert said.word == "amber"


def test_a_lab_without_the_widgets_front_end_is_amber(monkeypatch):
    monkeypatch.setattr("jupyter_core.paths.jupyter_path", lambda *_: [])
    assert "JupyterLab lacks @jupyter-widgets/jupyterlab-manager and anywidget" in repr(verdict())


def test_a_folder_that_cannot_be_written_to_is_amber(monkeypatch):
    real = tempfile.TemporaryFile

    def refuse(*_, dir=None, **options):
        if dir == ".":
            raise PermissionError(13, "Permission denied")
        return real(dir=dir, **options)

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert "this folder cannot be written to (Permission denied)" in repr(verdict())


def test_it_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    verdict()
    assert os.listdir(tmp_path) == []


def test_the_word_names_no_version_and_no_path():
    assert not re.search(r"[\d/\\]", repr(verdict()))


def test_html_is_escaped():
    said = Verdict((Finding("<b>x</b>", False, "<script>", "Mend."),))
    assert "<script>" not in said._repr_html_() and "&lt;script&gt;" in said._repr_html_()


def test_the_module_loads_nothing_heavy():
    code = "import sys, everybyte.answers.machine; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "everybyte.answers.machine" in loaded and "torch" not in loaded


def test_the_books_folder_is_found_from_any_other(tmp_path, monkeypatch):
    root = Path(machine.__file__).resolve().parents[3]
    for folder in (root, root / "notebooks", root / "src" / "everybyte", tmp_path):
        monkeypatch.chdir(folder)
        assert machine.book() == root
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "a" / "b" / "machine.py"))  # installed, without a book
    with pytest.raises(ValueError, match=r"book.folder: no notebooks in .*; allowed: a working folder within"):
        machine.book()


def test_the_first_chapter_reads_its_files_from_any_folder(tmp_path, monkeypatch):
    """Its cells that read a file, where Jupyter was started elsewhere: what they show is what is stored."""
    cells = json.loads((machine.book() / "notebooks" / "00_start_here.ipynb").read_text(encoding="utf-8"))["cells"]
    monkeypatch.chdir(tmp_path)
    read = ["".join(c["source"]) for c in cells if "book() /" in "".join(c["source"])]
    assert len(read) == 1
    assert not [c for c in cells if c["cell_type"] == "code" and "../README" in "".join(c["source"])]
    names = {"book": machine.book, "re": re, "Markdown": str}
    for source in read:
        exec(source, names)
    assert names["chapters"].count("](notebooks/") > 10
