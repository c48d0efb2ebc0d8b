"""Rehearse commits of a git repository in a copy of it: what two of them differ by, and which one moved the peak.

The copy is a repository in a temporary folder that borrows the objects of the user's: neither their files nor their repository is written
to, and a shallow one will do. No hook runs in it. It has what git has of a commit, without submodules and files of LFS; what git does not
have is carried over by name. The environment stays one.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from .. import units
from ..answers import scripts
from ..common import checks, children
from ..common.tables import Shown, Table
from ..rehearsal import ScriptRehearsal, rehearse_script, reports
from .kept import Change, Kept

#: Variables by which git would be told of another repository than the one that is asked.
_GIT = "GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_PREFIX".split()


@dataclass(frozen=True)
class Commit:
    """A commit. name: its whole hash. title: its first line."""

    name: str
    title: str

    def __str__(self):
        return f"{self.name[:10]} {self.title}"


@dataclass(frozen=True, eq=False, repr=False)
class Moved(Shown):
    """A command's peak at two commits.

    Attributes:
        base, head: the commits. change: from the peak at the one to that at the other. largest: the largest value that fits, by name, at
            either, where it was asked for.
    """

    base: Commit
    head: Commit
    change: Change
    largest: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)

    def as_dict(self) -> dict:
        """As JSON."""
        ends = {"base": vars(self.base), "head": vars(self.head)}
        return ends | {"change": self.change.as_dict(), "largest": self.largest}

    def table(self) -> Table:
        """The lines that moved."""
        return replace(self.change.table(), caption=f"{self.headline}, from {self.base} to {self.head}")

    @property
    def headline(self) -> str:
        """`peak +412.00 MiB in attention.py:88, largest batch 12 to 11`."""
        said = [f"largest {name} {_number(was)} to {_number(now)}" for name, (was, now) in self.largest.items()]
        return ", ".join([self.change.headline, *said])

    def said(self) -> list[str]:
        """What else differs."""
        return self.change.said()


def _number(value):
    return "none" if value is None else str(value)


@dataclass(frozen=True, eq=False, repr=False)
class Found(Shown):
    """The commit that moved a peak.

    Attributes:
        moved: the last commit without the change, the first with it, and the change; None where the peaks of both ends are the same.
        ends: the peak at the good end, and at the bad one. tried: commit -> its peak, or why it has none. between: commits between the
            two of `moved` that have no peak: the change may be theirs.
    """

    moved: Moved | None
    ends: tuple[int, int]
    tried: dict[Commit, int | str]
    between: Sequence[Commit] = ()

    def as_dict(self) -> dict:
        """As JSON."""
        tried = [
            {"commit": commit.name, "title": commit.title, ("peak" if isinstance(said, int) else "skipped"): said}
            for commit, said in self.tried.items()
        ]
        found = {"found": self.moved.as_dict() if self.moved else None, "good": self.ends[0], "bad": self.ends[1]}
        return found | {"tried": tried, "between": [commit.name for commit in self.between]}

    def table(self) -> Table:
        """The lines that moved at the commit; where none did, what was tried."""
        if self.moved:
            return replace(self.moved.change.table(), caption=f"{self.moved.head}: {self.moved.headline}")
        rows = [
            [str(commit), said if isinstance(said, int) else "", said if isinstance(said, str) else units.text(said)]
            for commit, said in self.tried.items()
        ]
        return Table(["commit", "peak", ""], rows, "No commit moved the peak")

    def said(self) -> list[str]:
        """Which commits had no peak, and how many were rehearsed."""
        skipped = [f"no peak: {commit}: {said}" for commit, said in self.tried.items() if isinstance(said, str)]
        between = [f"or it was one of {', '.join(map(str, self.between))}"] if self.between else []
        return [*between, *skipped, f"{len(self.tried)} commits rehearsed", *(self.moved.said() if self.moved else [])]


class Copy:
    """A copy of a repository, in which one commit stands at a time.

    Args:
        folder: of the copy. top: of the user's repository. inside: where the command runs, relative to it. carried: paths, relative to it.
    """

    def __init__(self, folder: Path, top: Path, inside: Path, carried: Sequence[Path]):
        self.folder, self.top, self.inside, self.carried = folder, top, inside, carried
        objects = os.path.join(top, _git(top, "rev-parse", "--git-path", "objects").strip())
        form = _git(top, "rev-parse", "--show-object-format").strip()
        _git(top, "init", "--quiet", "--template=", f"--object-format={form}", "--", str(folder))
        (folder / ".git/objects/info").mkdir(parents=True, exist_ok=True)
        (folder / ".git/objects/info/alternates").write_text(f"{objects}\n", encoding="utf-8")

    def stand(self, commit: Commit) -> Path:
        """Check a commit out; return the folder that the command runs in."""
        _git(self.folder, "checkout", "--quiet", "--force", "--detach", commit.name)
        _git(self.folder, "clean", "-ffdxq")  # bytecode too: two commits of one second would share it
        for path in self.carried:
            to = self.folder / path
            to.parent.mkdir(parents=True, exist_ok=True)
            if (self.top / path).is_dir():
                shutil.copytree(self.top / path, to, dirs_exist_ok=True)
            else:
                shutil.copy2(self.top / path, to)
        cwd = self.folder / self.inside
        if not cwd.is_dir():
            raise ValueError(f"commit: {commit} has no folder {self.inside}; allowed: a commit that has it")
        return cwd

    def kept(self, commit: Commit, command: Sequence[str], gpu: str, **options) -> Kept:
        """The peak of a command at a commit.

        Raises:
            ValueError: where the command ends with an error there, or runs code of the user's tree in place of the commit's.
        """
        cwd = self.stand(commit)
        return self.told(rehearse_script(command, gpu, cwd=cwd, quiet=True, **options), cwd)

    def told(self, found: ScriptRehearsal, cwd: Path) -> Kept:
        """A rehearsal in this copy, as it is kept. Raises as `kept` does."""
        peaks = (device["peak"] or {} for process in found.processes for device in process["devices"])
        held = [row for peak in peaks for row in peak.get("held", ())]
        others = {line for row in held for line in (row["line"], row.get("forward"))}
        if theirs := sorted(line for line in others if line and line.startswith(f"{self.top}{os.sep}")):
            raise ValueError(f"command: {checks.shown(' '.join(found.command))} runs {theirs[0]}, and not the commit's; "
                             "allowed: one that imports what stands beside it, not a package that is installed from this folder")  # fmt: skip
        return Kept.of_script(found, self.folder, cwd)


@contextmanager
def _copy(folder, carried) -> Iterator[Copy]:
    top = Path(_git(Path(folder), "rev-parse", "--show-toplevel").strip()).resolve()
    inside = Path(folder).resolve().relative_to(top)
    paths = []
    for name in carried:
        path = (Path(folder) / name).resolve()
        if not path.is_relative_to(top) or not path.exists():
            raise ValueError(
                f"--carry: {checks.shown(name)} is not in {top}; allowed: a file or a folder there, that git does not have"
            )
        paths.append(path.relative_to(top))
    with tempfile.TemporaryDirectory(prefix="everybyte-commits-") as temporary:
        yield Copy(Path(temporary).resolve() / top.name, top, inside, paths)


def _git(folder: Path, *words: str) -> str:
    """What git says. Raise ValueError where it fails."""
    if shutil.which("git") is None:
        raise ValueError("git: it is not on this machine; allowed: install git, and say it again")
    kept = {name: value for name, value in os.environ.items() if name not in _GIT} | {"GIT_LFS_SKIP_SMUDGE": "1"}
    quiet = ("-c", f"core.hooksPath={os.devnull}", "-c", "advice.detachedHead=false")
    command = ["git", "-C", str(folder), *quiet, *words]
    done = children.run(command, environment=kept, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    said, errors = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
    if done.returncode:
        raise ValueError(
            f"git {words[0]}: {checks.printable(errors.strip() or f'exit status {done.returncode}', checks.SHOWN)}"
        )
    return said


def commit(folder: str | os.PathLike, name: str) -> Commit:
    """The commit of a name: a branch, a tag, a hash, `HEAD~3`.

    Raises:
        ValueError: where git knows none.
    """
    try:
        said = _git(Path(folder), "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}").strip()
    except ValueError:
        raise ValueError(
            f"commit: {checks.shown(name)} is none that git knows here; allowed: a branch, a tag, a hash, as HEAD~3"
        ) from None
    return Commit(said, checks.printable(_git(Path(folder), "log", "-1", "--format=%s", said).strip(), checks.SHOWN))


def diff(
    base: str, head: str, command: Sequence[str], gpu: str = "h200", *, largest: tuple[str, range] | None = None,
    carried: Sequence[str] = (), folder: str | os.PathLike = ".", **options,
) -> Moved:  # fmt: skip
    """What a command's peak differs by between two commits, line by line.

    Args:
        base, head: commits, by names that git knows. command, gpu, options: as `rehearse_script` takes them.
        largest: a name and its values, as `everybyte.answers.scripts.largest` takes them, for `{name}` in the command: the largest value
            that fits is found at both, and the peaks are those with the base's.
        carried: files and folders of the repository that git does not have, such as data, to stand in the copy too.
        folder: in the repository, where the command runs.

    Raises:
        ValueError: for a commit that is none, or at which the command ends with an error.
    """
    ends = commit(folder, base), commit(folder, head)
    with _copy(folder, carried) as copy:
        kept, fits, value = [], [], None
        for one in ends:
            try:
                if largest is None:
                    kept.append(copy.kept(one, command, gpu, **options))
                    continue
                found, value, fit = _largest(copy, one, command, gpu, largest, value, options)
                kept.append(found)
                fits.append(fit)
            except ValueError as error:
                raise ValueError(f"{error} (at {one})") from None
    return Moved(*ends, Change(*kept), {largest[0]: (fits[0], fits[1])} if largest else {})


def _largest(copy, commit, command, gpu, largest, value, options):
    """(The peak with a value, by default the largest that fits, or the first where none does; that value; the largest that fits)."""
    name, values = largest
    cwd = copy.stand(commit)
    found = scripts.largest(command, name, values, gpu, cwd=cwd, **options)
    value = value or str(values[0] if found.value is None else found.value)
    if found.last and found.last.value == value:
        return copy.told(found.last.found, cwd), value, found.value
    words, variables = scripts.filled(command, {name: value})
    options = options | {"memory": scripts.WIDE}
    ran = rehearse_script(words, gpu, cwd=cwd, quiet=True, environment=variables, **options)
    return copy.told(ran, cwd), value, found.value


def bisect(
    good: str, bad: str, command: Sequence[str], gpu: str = "h200", *, over: int = 0, carried: Sequence[str] = (),
    folder: str | os.PathLike = ".", say: Callable[[str], object] | None = None, **options,
) -> Found:  # fmt: skip
    """The commit between two that moved a command's peak by more than `over` bytes; of merges the first parent is followed.

    Args:
        good, bad: commits; the second comes after the first. over: bytes by which a peak may differ from the good one's.
        say: called with a line for each commit that was rehearsed. Others: those of `diff`.

    Raises:
        ValueError: where the second is no descendant of the first, or the command has no peak at one of them.
    """
    checks.whole("bisect", "over", over, 0, checks.ABSURD * 2**20)
    first, last = commit(folder, good), commit(folder, bad)
    names = _git(Path(folder), "rev-list", "--first-parent", "--reverse", f"{first.name}..{last.name}").split()
    before = (
        _git(Path(folder), "rev-list", "--max-count=1", "--first-parent", "--skip=1", names[0]).strip() if names else ""
    )
    if before != first.name:
        raise ValueError(
            f"bisect: {last} does not come after {first} by first parents; allowed: a commit, and a later one of its branch"
        )
    line = [first, *(commit(folder, name) for name in names)]
    known: dict[int, Kept | str] = {}  # place in the line -> the peak kept there, or why there is none
    with _copy(folder, carried) as copy:

        def at(place):
            if place not in known:
                try:
                    known[place] = copy.kept(line[place], command, gpu, **options)
                except (ValueError, reports.Lost) as error:
                    known[place] = str(error)
                if say:
                    kept = known[place]
                    say(f"{line[place]}: {kept if isinstance(kept, str) else units.exact(kept.peak)}")
            return known[place]

        low, high = _around(line, at, over)
        moved = Moved(line[low], line[high], Change(at(low), at(high))) if low < high else None
    tried = {line[place]: kept if isinstance(kept, str) else kept.peak for place, kept in sorted(known.items())}
    return Found(moved, (at(0).peak, at(len(line) - 1).peak), tried, tuple(line[low + 1 : high]))


def _around(line, at, over):
    """(the last place in a line of commits before its peak moved, the first after that); the same where it did not."""
    low, high = 0, len(line) - 1
    for end in (low, high):
        if isinstance(said := at(end), str):
            raise ValueError(f"{said} (at {line[end]})")
    good = at(low).peak
    if abs(at(high).peak - good) <= over:
        return low, low
    while True:
        places = sorted(range(low + 1, high), key=lambda place: abs(2 * place - low - high))
        middle = next((place for place in places if isinstance(at(place), Kept)), None)  # others have no peak
        if middle is None:
            return low, high
        low, high = (low, middle) if abs(at(middle).peak - good) > over else (middle, high)
