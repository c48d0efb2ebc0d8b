"""What a public code host runs, read here: it names what there is, at the versions that there are. A wheel, tried for real."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = {path.stem: path for path in (ROOT / ".github" / "workflows").glob("*.yml")}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def read(path):
    return yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)  # the key `on` is no truth value


def steps(name):
    return [step for job in read(WORKFLOWS[name])["jobs"].values() for step in job["steps"]]


def test_there_are_these():
    assert WORKFLOWS.keys() == {"tests", "pages", "release"}


@pytest.mark.parametrize("name", sorted(WORKFLOWS))
def test_a_step_runs_what_there_is(name):
    for step in steps(name):
        assert ("run" in step) != ("uses" in step)
        for target in re.findall(r"^make ([\w-]+)", step.get("run", ""), re.M):
            assert re.search(rf"^{target}:", MAKEFILE, re.M), target
        for path in re.findall(r"\b(?:tools|tests|locks)(?:/[\w.]+)*\b", step.get("run", "")):
            assert (ROOT / path).exists(), path


@pytest.mark.parametrize("name", sorted(WORKFLOWS))
def test_the_tags_are_there_where_the_version_is_made(name):
    for step in steps(name):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["fetch-depth"] == "0"


def test_it_is_tested_on_every_system_and_python_that_it_is_for():
    matrix = read(WORKFLOWS["tests"])["jobs"]["elsewhere"]["strategy"]["matrix"]
    assert {name.partition("-")[0] for name in matrix["os"]} == {"ubuntu", "macos", "windows"}
    least = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["requires-python"]
    assert least == f">={matrix['python'][0]}"
    minors = [int(version.partition(".")[2]) for version in matrix["python"]]
    assert minors == list(range(minors[0], minors[0] + 4))


def test_a_release_is_built_tried_and_only_then_published():
    jobs = read(WORKFLOWS["release"])["jobs"]
    assert jobs["try"]["needs"] == "build" and jobs["publish"]["needs"] == ["build", "try"]
    runs = {name: [step.get("run", "") for step in job["steps"]] for name, job in jobs.items()}
    assert "python -m build --no-isolation" in runs["build"] and "python tools/wheel.py dist/*.whl" in runs["try"]
    assert read(WORKFLOWS["release"])["on"] == {"push": {"tags": ["v[0-9]*"]}}


def test_the_form_asks_for_the_file_as_it_came():
    form = read(ROOT / ".github" / "ISSUE_TEMPLATE" / "record.yml")
    asked = {field["id"]: field for field in form["body"] if "id" in field}
    assert {"gpu", "versions", "command", "file", "as-it-came"} <= asked.keys()
    assert "labs/records/" in asked["file"]["attributes"]["description"]
    assert all(option["required"] == "true" for option in asked["as-it-came"]["attributes"]["options"])


def test_the_hooks_are_the_tests_tools_at_their_versions():
    repositories = read(ROOT / ".pre-commit-config.yaml")["repos"]
    pinned = re.search(r"^ruff==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)[1]
    (ruff,) = [r for r in repositories if r["repo"].endswith("/ruff-pre-commit")]
    assert ruff["rev"] == f"v{pinned}"
    hooks = [hook["id"] for repository in repositories for hook in repository["hooks"]]
    assert hooks == ["ruff-check", "ruff-format", "mypy"]


@pytest.mark.thorough("it builds a wheel, with the network")
def test_a_wheel_installs_alone_and_works(tmp_path):
    """From a clone, so that nothing is in it that git does not have."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(clone)]
    subprocess.run(build, check=True, timeout=300)
    (wheel,) = tmp_path.glob("everybyte-*.whl")
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "wheel.py", wheel], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
