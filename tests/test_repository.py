"""The repository as someone meets it: complete, consistent, and tied to no machine."""

import ast
import gzip
import lzma
import os
import re
import shutil
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

import lints
import nbformat
import pytest
import yaml
from packaging.version import Version

import everybyte

ROOT = Path(__file__).resolve().parents[1]
TOP = """README.md CONTRIBUTING.md CHANGELOG.md LICENSE LICENSE-TEXT CITATION.cff pyproject.toml constraints.txt locks SECURITY.md environment.yml Makefile .gitignore .gitattributes
         .ci/run notebooks labs figures src tests tools""".split()
# In pieces, so that this file does not find itself.
HOSTS = ("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"), ("download.pytorch", "org"), ("anaconda", "org")
PRIVATE = re.compile("|".join([lints.MACHINE.pattern, *(re.escape(".".join(host)) for host in HOSTS)]))


def tracked():
    """Texts that are tracked (in an export without git, all there are), by path; pictures and typefaces left out."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    paths = [ROOT / name for name in listed.stdout.split("\0") if name] if listed.returncode == 0 else ROOT.rglob("*")
    for path in paths:
        if (
            path.is_file()
            and path.suffix not in {".png", ".jpg", ".pdf", ".woff", ".ipynb", ".pyc"}
            and ".venv" not in path.parts
        ):
            yield path


needs_make = pytest.mark.skipif(not shutil.which("make"), reason="make is not on this machine")


def private(text):
    return [match[0] for match in PRIVATE.finditer(text)]


def text_of(path):
    data = path.read_bytes()
    opened = {".gz": gzip.decompress, ".xz": lzma.decompress}.get(path.suffix, bytes)
    return opened(data).decode(errors="replace" if ".pickle" in path.suffixes else "strict")


#: Lines of a program's file, and of a function in it, that one still reads at a sitting.
FILE, FUNCTION = 600, 60


def test_no_file_and_no_function_is_too_long_to_read():
    long = []
    for path in tracked():
        if path.suffix not in {".py", ".js", ".c", ".css"}:
            continue
        text, name = path.read_text(), path.relative_to(ROOT).as_posix()
        if text.count("\n") > FILE:
            long.append(name)
        for node in ast.walk(ast.parse(text)) if path.suffix == ".py" else ():
            if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= FUNCTION:
                long.append(f"{name}: {node.name}")
    assert long == []


def test_no_path_of_a_machine_and_no_registry_in_a_tracked_file():
    found = {p.relative_to(ROOT).as_posix(): private(text_of(p)) for p in tracked()}
    assert len(found) > 20
    assert {path: what for path, what in found.items() if what} == {}


@pytest.mark.parametrize("text", [f"{Path('/home') / 'me'}/x", f"cd {Path('/root') / 'x'}", ".".join(HOSTS[0])])
def test_such_a_path_would_be_found(text):
    assert private(text)


@pytest.mark.parametrize("name", TOP)
def test_the_top_level_is_complete(name):
    assert (ROOT / name).exists()


def test_one_version_everywhere():
    """Tags decide it; the citation and the changelog name the last that was released."""
    said = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert said["project"]["dynamic"] == ["version"] and "version" not in said["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    released = re.findall(r"^## (\d\S*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert str(citation["version"]) == released[0] == said["tool"]["setuptools_scm"]["fallback_version"]
    assert everybyte.__version__ == version("everybyte")
    assert Version(everybyte.__version__) >= Version(released[0])


def test_the_citation_has_what_the_format_requires():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert str(citation["cff-version"]) == "1.2.0"
    assert citation["message"] and citation["title"] and citation["authors"][0]["name"]
    assert citation["license"] == "MIT"


def test_the_licenses_are_the_ones_named():
    assert (ROOT / "LICENSE").read_text(encoding="utf-8").startswith("MIT License")
    assert (ROOT / "LICENSE-TEXT").read_text(encoding="utf-8").startswith("Attribution 4.0 International")


def test_links_in_the_readme_lead_somewhere():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])
    assert lints.broken_links(notebook, ROOT, None) == []
    assert lints.alternative_text(notebook) == []


def make(*arguments):
    """make, as from a shell: it knows nothing of a make that runs these tests."""
    env = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}}
    return subprocess.run(["make", *arguments], cwd=ROOT, env=env, capture_output=True, text=True)


@needs_make
def test_make_lists_its_targets_by_default():
    said = make().stdout
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)[1].split()
    assert [line.split()[0] for line in said.splitlines()[1:]] == targets


@needs_make
def test_make_names_the_python_it_needs(tmp_path):
    old = tmp_path / "python-old"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    said = make("install", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}")
    assert said.returncode != 0
    assert said.stderr.splitlines()[0].startswith("Every Byte needs Python 3.11 or newer")
    assert not (tmp_path / "venv").exists()


def test_the_readme_names_only_targets_that_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(
        re.findall(r"\bmake ([a-z-]+)\b *(?:#|$)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert {"lab", "test"} <= named <= targets
