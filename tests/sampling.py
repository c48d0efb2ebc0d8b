"""What `make test` takes a sample of, and which: the same for every worker, and for everybody at the same commit."""

import subprocess
from pathlib import Path

#: Every notebook is run again at one of so many commits, on average, and whenever it has changed.
TURNS = 6


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


def chosen(root: Path, paths: list[str]) -> list[str]:
    """`notebooks` for what is checked out: changed is what differs from the commit before, or is not committed yet."""
    changed = git(root, "diff", "--name-only", "HEAD~1"), git(root, "ls-files", "--others", "--exclude-standard")
    return notebooks(paths, git(root, "rev-parse", "HEAD"), "\n".join(changed).splitlines())
