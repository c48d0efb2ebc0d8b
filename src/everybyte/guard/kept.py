"""A peak as it is kept: what lived then, line by line, to the byte; and the difference of two."""

import json
import linecache
import os
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from .. import units
from ..common import checks, files
from ..common.tables import Shown, Table
from ..rehearsal import ScriptRehearsal, history

#: What stands in the place of a line for tensors that no line of Python made.
BACKWARD = "backward"
#: The most bytes of a file of a kept peak.
MOST = 2**24
#: The most characters of a line's code that are kept.
_CODE = 120


@dataclass(frozen=True)
class Line:
    """What one line had made of what lived at a peak.

    Attributes:
        where: `train.py:31`, relative to the folder of the project; or a part of memory, of a budget.
        code: the line's text; it finds the line again where others were written above it. inner: the line of a library that it called, and
            the node of backward where one made the tensors: then the line is that of forward.
        tensors, bytes: how many live, and what they take.
    """

    where: str
    code: str = ""
    inner: str = ""
    tensors: int = 0
    bytes: int = 0

    def __str__(self):
        return f"{self.where}, in {self.inner}" if self.inner else self.where

    @property
    def file(self) -> str:
        """Its file, without the number."""
        return self.where.rpartition(":")[0]


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A peak, as a test keeps it beside itself.

    Attributes:
        of: the command, or the model and its setup. witness: who said it. gpu: its name; empty where there is none.
        versions: package -> version. peak: bytes of tensors; the lines sum to it. reserved: bytes of the allocator's segments; 0 where
            there is none. at: the part of the step. lines: what lived then, the largest first.
    """

    of: str
    witness: str
    gpu: str = ""
    versions: dict[str, str]
    peak: int
    reserved: int = 0
    at: str = ""
    lines: tuple[Line, ...]

    @classmethod
    def of_script(
        cls, found: ScriptRehearsal, root: str | os.PathLike | None = None, cwd: str | os.PathLike = ""
    ) -> "Kept":
        """A script's rehearsal, its worst device. root: the folder that lines are relative to, where it has the one
        that the script ran in, `cwd`; by default that one.

        Raises:
            ValueError: where the script ended with an error: its peak is not that of a step.
        """
        if found.status or found.short:
            said = f"{checks.shown(' '.join(found.command))}: {found.died or found.failure}"
            raise ValueError(f"rehearse.command: {said}; allowed: a command that ends without an error")
        process, device = found._worst
        peak, cwd = device["peak"] or {}, os.path.abspath(cwd)
        root = os.path.abspath(root or cwd)
        root = root if _inside(cwd, root) else cwd
        lines = [_line(row, root, cwd) for row in peak.get("held", ())]
        known = sum(line.bytes for line in lines)
        if known != device["requested"]:  # older than the history
            lines.append(Line("before the history", bytes=device["requested"] - known))
        return cls(
            of=" ".join(found.command), witness="rehearse", gpu=found.gpu.name, versions={"torch": process["torch"]} | process.get("packages", {}),
            peak=device["requested"], reserved=found.reserved[1], at=peak.get("at") or "", lines=tuple(lines),
        )  # fmt: skip

    @classmethod
    def of_witness(cls, found: Any) -> "Kept":
        """A budget or a dry run, by its parts."""
        said = found.as_dict()
        parts = sorted(said["parts"].items(), key=lambda part: -part[1])
        lines = (Line(name, bytes=size) for name, size in parts if size)
        asked = [f"{name}={value}" for name, value in found.setup.changed().items()]
        return cls(
            of=" ".join([said["model"]["name"], *asked]), witness=said["witness"], versions={}, peak=said["peak"],
            at=said["peak_at"] or "", lines=tuple(lines),
        )  # fmt: skip

    def as_dict(self) -> dict:
        """As JSON."""
        return asdict(self) | {"lines": [asdict(line) for line in self.lines]}

    def write(self, path: str | os.PathLike) -> None:
        """Write it, a line of the file for each line of the script, for git to compare."""
        said = self.as_dict()
        lines = ",\n".join(f"  {json.dumps(line, ensure_ascii=False)}" for line in said.pop("lines"))
        head = "".join(
            f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)},\n" for name, value in said.items()
        )
        with files.whole(path) as file:
            file.write(f'{{{head}"lines": [\n{lines}\n]}}\n'.encode())

    @classmethod
    def read(cls, path: str | os.PathLike) -> "Kept":
        """What `write` has written.

        Raises:
            ValueError: where there is no such file, or it is another.
        """
        owner, name = "baseline", os.fspath(path)
        try:
            said = files.parsed(files.read(owner, path, MOST))
            _check(owner, said, cls)
            for line in said["lines"]:
                _check(f"{owner}.lines", line, Line)
                checks.whole(f"{owner}.lines", "bytes", line["bytes"], -checks.ABSURD * 2**20, checks.ABSURD * 2**20)
            kept = cls(**said | {"lines": tuple(Line(**line) for line in said["lines"])})
        except (ValueError, TypeError) as error:
            raise ValueError(f"{error}; in {name}; allowed: what `pytest --memory-update` writes") from None
        if sum(line.bytes for line in kept.lines) != kept.peak:
            raise ValueError(
                f"baseline.peak: {kept.peak!r} is not the sum of its lines; in {name}; allowed: what `pytest --memory-update` writes"
            )
        return kept

    def table(self, rows: int = 12) -> Table:
        """What lived at the peak, the largest lines first."""
        shown = [[line.bytes, str(line), line.code] for line in self.lines[:rows]]
        if rest := self.lines[rows:]:
            shown.append([sum(line.bytes for line in rest), f"{len(rest)} more", ""])
        return Table(["bytes", "where", ""], shown)


#: Field of a kept peak, or of a line, that is no text -> its type.
_TYPES = {"versions": dict, "lines": list} | dict.fromkeys(("peak", "reserved", "tensors", "bytes"), int)


def _check(owner, said, kind):
    """Raise ValueError unless an object of JSON has the fields of a class, each of its type."""
    checks.table(owner, said, [field.name for field in fields(kind)])
    for name, value in said.items():
        checks.kind(owner, name, value, _TYPES.get(name, str))


def _inside(path, folder):
    return path == folder or path.startswith(folder + os.sep)


def _line(row, root, cwd):
    """A line of a report, relative to the project's folder, with its text."""
    said, node = row["line"] or row.get("forward"), row.get("node")
    inner = ", ".join(filter(None, (row["inner"], f"{node} in backward" if node else "")))
    if said is None or said == history.REST:
        return Line(said or (inner and "a library" or BACKWARD), "", inner, row["tensors"], row["bytes"])
    file, _, number = said.rpartition(":")
    file = os.path.join(cwd, file)
    linecache.checkcache(file)
    code = linecache.getline(file, int(number)).strip()[:_CODE]
    where = Path(os.path.relpath(file, root)).as_posix() if _inside(file, root) else "/".join(Path(file).parts[-2:])
    return Line(f"{where}:{number}", code, inner, row["tensors"], row["bytes"])


@dataclass(frozen=True, eq=False, repr=False)
class Change(Shown):
    """From one peak to another. The rows sum to the difference of the peaks."""

    before: Kept
    after: Kept

    @property
    def bytes(self) -> int:
        """How many more there are after."""
        return self.after.peak - self.before.peak

    @property
    def rows(self) -> list[tuple[int, Line]]:
        """(bytes more, the line) of each line that takes another number of bytes, the largest difference first.

        A line is found again by its file, its text and the library's line that it called, wherever it has moved; what then remains, by
        its number.
        """
        pairs = _pairs(self.before.lines, self.after.lines)
        moved = [((now.bytes if now else 0) - (was.bytes if was else 0), now or was) for was, now in pairs]
        return sorted(((size, line) for size, line in moved if size), key=lambda row: (-abs(row[0]), str(row[1])))

    @property
    def headline(self) -> str:
        """The change in one line, `peak +412.00 MiB in attention.py:88`: a line of the script's own, where one moved that way."""
        if not self.bytes:
            return "peak unchanged, to the byte"
        rows = [row for row in self.rows if (row[0] > 0) == (self.bytes > 0)]
        size, line = max(rows, key=lambda row: (bool(row[1].code), abs(row[0])), default=(0, None))
        said = f"peak {signed(self.bytes)}"
        if line is None or size == self.bytes:
            return f"{said} in {line}" if line else said
        return f"{said}{', of it' if abs(size) < abs(self.bytes) else ';'} {signed(size)} in {line}"

    @property
    def differs(self) -> list[str]:
        """What else is not the same, in words: the command, the GPU, versions."""
        return [
            f"{name}: {was or 'none'} before, {now or 'none'} now" for name, was, now in self._facts() if was != now
        ]

    def _facts(self):
        before, after = self.before, self.after
        names = {"of": "what ran", "witness": "the witness", "gpu": "the GPU"}
        yield from ((said, getattr(before, name), getattr(after, name)) for name, said in names.items())
        for name in {**before.versions, **after.versions}:
            yield name, before.versions.get(name), after.versions.get(name)

    def as_dict(self) -> dict:
        """As JSON."""
        rows = [{"bytes": n, "where": line.where, "code": line.code, "inner": line.inner} for n, line in self.rows]
        sides = {
            side: {"peak": kept.peak, "reserved": kept.reserved, "at": kept.at}
            for side, kept in (("before", self.before), ("after", self.after))
        }
        return {"headline": self.headline, "bytes": self.bytes, **sides, "lines": rows, "differs": self.differs}

    def table(self, rows: int = 12) -> Table:
        """Both peaks, and the lines that moved."""
        found = self.rows
        shown: list[Sequence] = [[signed(size), f"{size:+,}", str(line), line.code] for size, line in found[:rows]]
        if rest := found[rows:]:
            size = sum(size for size, _ in rest)
            shown.append([signed(size), f"{size:+,}", f"{len(rest)} more", ""])
        was, now = self.before, self.after
        at = (
            f"at the peak, in {now.at}"
            if was.at == now.at
            else f"at the peak, which was in {was.at}, and is in {now.at}"
        )
        shown.append([signed(self.bytes), f"{self.bytes:+,}", f"{was.peak:,} to {now.peak:,}", at])
        return Table(["moved", "bytes", "where", ""], shown, self.headline)

    def said(self) -> list[str]:
        """What else differs."""
        return [f"Not the same: {text}" for text in self.differs]


#: By what a line is found again, the surest first.
_SAME = (
    lambda line: (line.where, line.code, line.inner),
    lambda line: (line.file if line.code else line.where, line.code, line.inner),
    lambda line: (line.file if line.code else line.where, line.code, _unnumbered(line.inner)),
    lambda line: (line.where, _unnumbered(line.inner)),
)


def _pairs(before, after):
    """(line before, line after) of each line; None where there is none."""
    left, right = (sorted(lines, key=lambda line: (line.file, _number(line), line.inner)) for lines in (before, after))
    found = []
    for key in _SAME:
        waiting, rest = defaultdict(list), []
        for line in left:
            waiting[key(line)].append(line)
        for line in right:
            if there := waiting[key(line)]:
                found.append((there.pop(0), line))
            else:
                rest.append(line)
        left, right = [line for lines in waiting.values() for line in lines], rest
    for line in [*right]:  # its text was edited
        near = max(
            (other for other in left if other.file == line.file), key=lambda other: _alike(other, line), default=None
        )
        if near and _alike(near, line) > 0.5:
            found.append((near, line))
            left.remove(near)
            right.remove(line)
    return found + [(line, None) for line in left] + [(None, line) for line in right]


def _alike(one, other):
    """How much of two lines' texts is the same, from 0 to 1; 0 where either has none."""
    return SequenceMatcher(None, one.code, other.code).ratio() if one.code and other.code else 0


def _number(line):
    return checks.natural(line.where.rpartition(":")[2]) or 0


def _unnumbered(inner):
    """A library's line without its number, which another version changes."""
    return re.sub(r":\d+ ", " ", inner)


def signed(size: int) -> str:
    """Bytes with their sign: `+412.00 MiB`."""
    return f"{'+' if size > 0 else '-' if size < 0 else ''}{units.text(abs(size))}"
