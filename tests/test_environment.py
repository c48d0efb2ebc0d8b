"""environment.yml and constraints.txt say what pyproject.toml says; no conda solve is made here."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
NEEDED = [Requirement(r) for rs in [PROJECT["dependencies"], *EXTRAS.values()] for r in rs]
NEEDED = [r for r in NEEDED if r.name != PROJECT["name"]]
PINNED = re.findall(r"^([^#\s=]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)


def test_conda_gets_python_and_this_repository_with_all_extras():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    python, pip, by_pip = environment["dependencies"]
    name, _, release = python.partition("=")
    assert name == "python" and SpecifierSet(PROJECT["requires-python"]).contains(f"{release}.0")
    assert pip == "pip"
    assert by_pip == {"pip": ["-c constraints.txt", "-e .[all]"]}
    assert environment["channels"] == ["conda-forge", "nodefaults"]


def test_all_means_every_extra():
    (requirement,) = map(Requirement, EXTRAS["all"])
    assert requirement.name == PROJECT["name"]
    assert requirement.extras == EXTRAS.keys() - {"all"}


def test_the_formulas_need_sympy_and_nothing_else():
    assert [Requirement(r).name for r in PROJECT["dependencies"]] == ["sympy"]


def test_constraints_are_names_and_exact_versions_and_no_more():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert len(PINNED) == len([line for line in lines if line and not line.startswith("#")])
    assert not [v for _, v in PINNED if not re.fullmatch(r"[0-9][0-9A-Za-z.]*", v)]
    assert len({canonicalize_name(n) for n, _ in PINNED}) == len(PINNED)


@pytest.mark.parametrize("requirement", NEEDED, ids=str)
def test_what_is_needed_is_pinned_within_its_bounds_and_installed(requirement):
    pins = {canonicalize_name(name): pin for name, pin in PINNED}
    pin = pins[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(pin)
    assert requirement.specifier.contains(version(requirement.name).split("+")[0])
