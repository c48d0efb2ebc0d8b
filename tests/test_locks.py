"""What is installed here is held to a digest: constraints.txt and locks/ say the same versions, and `make install` takes no others."""

import hashlib
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import SimpleNamespace

import install
import lite
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCKS = sorted((ROOT / "locks").glob("*.txt"))
ENTRY = re.compile(r"([\w.-]+)==([\w.+]+)( ; [^\\\n]+)?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n")


def entries(path: Path) -> dict[str, str]:
    """{name: version} of a lock, which has nothing but names, versions, markers, digests and comments.

    Raises:
        ValueError: where something else stands in it: an address, an option, a package without digests.
    """
    text = re.sub(r"(?m)^#.*\n", "", path.read_text(encoding="utf-8"))
    if rest := ENTRY.sub("", text).strip():
        raise ValueError(f"{path.name}: {rest[:100]}")
    return {canonicalize_name(name): version for name, version, _, _ in ENTRY.findall(text)}


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    assert len({canonicalize_name(name) for name, _ in pairs}) == len(pairs)
    return {canonicalize_name(name): version for name, version in pairs}


def test_constraints_and_locks_say_the_same_versions():
    assert [path.stem for path in LOCKS] == ["cpu", "install", "lite", "release", "torch"]
    locked = [(name, version.partition("+")[0]) for path in LOCKS for name, version in entries(path).items()]
    assert set(locked) == set(pinned().items()), "make lock"


def test_everything_asked_for_is_in_its_lock():
    said = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    build = said["build-system"]["requires"]
    wanted = [*said["project"]["dependencies"], *sum(said["project"]["optional-dependencies"].values(), []), *build]
    install, release, torch = (entries(ROOT / "locks" / f"{name}.txt") for name in ("install", "release", "torch"))
    for requirement in map(Requirement, wanted):
        if requirement.name != said["project"]["name"]:
            assert requirement.specifier.contains((install | torch)[canonicalize_name(requirement.name)])
    assert {canonicalize_name(Requirement(r).name) for r in build} | {"build", "uv"} <= release.keys()


@pytest.mark.parametrize(
    "line", ["requests\n", "requests==2.34.2\n", "-e .\n", "requests @ file:///x\n", "--index-url x\n"]
)
def test_a_line_without_a_digest_is_seen(line, tmp_path):
    (tmp_path / "lock.txt").write_text(line, encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(line[:4])):
        entries(tmp_path / "lock.txt")


def test_jupyterlite_is_built_from_its_lock():
    there = entries(ROOT / "locks" / "lite.txt")
    assert all(there[canonicalize_name(r.name)] in r.specifier for r in map(Requirement, lite.TOOLS))
    assert {*lite.BOOK, *lite.WIDGETS} <= entries(ROOT / "locks" / "install.txt").keys()


def test_make_installs_nothing_unheld():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "$(BIN)/python tools/install.py" in makefile
    assert all("--require-hashes" in line for line in makefile.splitlines() if "pip install" in line)


@pytest.mark.parametrize(
    ("system", "offered", "lock"),
    [
        ("linux", "torch (2.15.0)\nAvailable versions: 2.15.0, 2.13.0+cpu, 2.13.0", "cpu.txt"),
        ("linux", "torch (2.15.0)\nAvailable versions: 2.15.0, 2.13.0", "torch.txt"),
        ("linux", "", "torch.txt"),
        ("win32", "torch (2.13.0)\nAvailable versions: 2.13.0+cpu", "torch.txt"),
    ],
)
@pytest.mark.parametrize("broken", [None, 0, 1, 2])
def test_install_takes_others_files_by_their_digests_and_stops_where_a_step_fails(
    monkeypatch, system, offered, lock, broken
):
    steps = []

    def run(command, **more):
        if "index" in command:
            return SimpleNamespace(stdout=offered.replace("2.13.0", pinned()["torch"]))
        steps.append(command)
        return SimpleNamespace(returncode=3 if len(steps) - 1 == broken else 0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(sys, "platform", system)
    assert install.main() == (0 if broken is None else 3)
    assert len(steps) == (3 if broken is None else broken + 1)
    assert {"--require-hashes", "--no-deps", str(ROOT / "locks" / "install.txt"), str(ROOT / "locks" / lock)} <= {
        *steps[0]
    }
    assert all({"--no-deps", "--no-build-isolation"} <= {*step} for step in steps[1:2])


def test_a_changed_file_is_not_installed(tmp_path):
    """pip itself, as it is called here, with a wheel made on the spot and its digest, then with another."""
    wheel = tmp_path / "held-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("held.py", "")
        made.writestr("held-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: held\nVersion: 1\n")
        made.writestr("held-1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        made.writestr("held-1.dist-info/RECORD", "")

    def taken(digest):
        (tmp_path / "lock.txt").write_text(f"held==1 --hash=sha256:{digest}\n", encoding="utf-8")
        command = [
            *install.PIP,
            *install.HELD,
            "--dry-run",
            "--no-index",
            "--find-links",
            tmp_path,
            "-r",
            tmp_path / "lock.txt",
        ]
        return subprocess.run([*map(str, command)], capture_output=True, text=True)

    assert "Would install held-1" in taken(hashlib.sha256(wheel.read_bytes()).hexdigest()).stdout
    refused = taken("0" * 64)
    assert refused.returncode and "DO NOT MATCH" in refused.stderr
