"""What `make test` takes a sample of, and which: the same for every worker, and for everybody at the same commit."""

import os
import subprocess
from collections.abc import Container, Iterable
from hashlib import sha256
from math import fsum
from pathlib import Path

#: Every notebook is run again at one of so many commits, on average, and whenever it has changed.
TURNS = 6
#: The seconds of CPU that long tests have in `make test`; where CI runs it, which has half an hour.
LONG = 900 if os.environ.get("CI") else 180
#: Tests of everything that stands in the repository: run at every commit.
WHOLE = (
    "tests/notebooks/test_lints.py", "tests/notebooks/test_notebooks.py", "tests/test_imports.py", "tests/test_repository.py",
    "tests/test_types.py",
)  # fmt: skip


def some(values, most: int) -> list:
    """At most so many of the values, both ends among them, the rest evenly between."""
    values = list(values)
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)] if most > 1 else values[:1]


def representative(cases: list[dict], most: int) -> set[int]:
    """Which cases of a test stand for all, each case being argument -> the index of its value.

    Of one argument `some`. Of several, every value of each that has at most so many values, in as few cases as a greedy choice
    finds, and of the others `some`. Arguments that go together are one.
    """
    columns = {tuple(case.get(name) for case in cases) for name in (cases[0] if cases else ())}
    axes = sorted(column for column in columns if len(set(column)) > 1)
    if len(cases) <= most or len(axes) < 2:
        return set(some(range(len(cases)), most))
    missing = {(axis, value) for axis in axes if len(set(axis)) <= most for value in axis}
    kept: set[int] = set()

    def new(i):
        return {(axis, axis[i]) for axis in axes} & missing

    while missing:
        best = max(range(len(cases)), key=lambda i: len(new(i)))  # the first of the best
        kept.add(best)
        missing -= new(best)
    rest = [i for i in range(len(cases)) if i not in kept]
    return kept | set(some(rest, most - len(kept)) if len(kept) < most else ())


def git(root: Path, *arguments: str) -> str:
    """What git says, or nothing where there is no git, no repository or no such commit."""
    try:
        done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def notebooks(paths: list[str], commit: str, changed: list[str]) -> list[str]:
    """Those to run again: what has changed, and the commit's share of the rest. Without a commit the first share."""
    turn = int(commit[:8] or "0", 16) % TURNS
    return [path for i, path in enumerate(sorted(paths)) if i % TURNS == turn or path in changed]


def changed(root: Path) -> list[str]:
    """What is not committed yet; where CI runs, also what differs from the commit before: a reader's clone has changed nothing."""
    said = (
        git(root, "diff", "--name-only", "HEAD~1" if os.environ.get("CI") else "HEAD"),
        git(root, "ls-files", "--others", "--exclude-standard"),
    )
    return [path for one in said for path in one.splitlines()]


def chosen(root: Path, paths: list[str]) -> list[str]:
    """`notebooks` for what is checked out."""
    return notebooks(paths, git(root, "rev-parse", "HEAD"), changed(root))


def costs(file: Path) -> dict[str, float]:
    """Long tests -> seconds of CPU, from a file of `tools/costs.py`: a test is a path, `::` and a name, with all its cases."""
    if not file.exists():
        return {}
    lines = (line.split(maxsplit=1) for line in file.read_text(encoding="utf-8").splitlines() if line[:1] != "#")
    return {test: float(seconds) for seconds, test in lines}


def concerned(test: str, paths: Iterable[str]) -> bool:
    """Whether one of what has changed is a test's file, a helper in its folder, or in the part of the library that it tests.

    What looks at the whole repository is concerned by anything.
    """
    file = test.partition("::")[0]
    if file.startswith(WHOLE):
        return True
    for path in paths:
        folder, _, name = path.rpartition("/")
        inside = Path(path.removeprefix("src/everybyte/"))
        beside = folder != "tests" and folder == file.rpartition("/")[0] and not name.startswith("test_")
        tested = path.startswith("src/") and (
            file.startswith(f"tests/{inside.parts[0]}/") or file == f"tests/test_{inside.stem}.py"
        )
        if path == file or beside or tested:
            return True
    return False


def drawn(costs: dict[str, float], commit: str, paths: Iterable[str] = (), most: float = LONG) -> Container[str]:
    """The long tests of a commit: those that its changes concern, and of the others as many as it draws in so many seconds."""
    paths = list(paths)
    kept = {test for test in costs if concerned(test, paths)}
    left = most - fsum(costs[test] for test in kept)  # rounded once, whatever the order of a set
    for test in sorted(costs, key=lambda test: sha256(f"{commit} {test}".encode()).digest()):
        if test not in kept and costs[test] <= left:
            kept.add(test)
            left -= costs[test]
    return kept
