"""What GPUs said, kept: a line a measurement, each with a checksum, read back with distrust."""

import ast
import hashlib
import json
import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..common import files
from .measurement import Measurement

REFERENCE = Path(__file__).resolve().parents[1] / "reference"


@cache
def fingerprint(folder: Path = REFERENCE) -> str:
    """Which reference step this is: SHA-256 of what its source files do and of its text, by name, in the names' order.

    Where a name is imported from, and what docstrings say, changes no step.
    """
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.py"), *folder.glob("*.txt")]):
        text = path.read_text(encoding="utf-8")
        digest.update(f"{path.name}\n{_done(text) if path.suffix == '.py' else text}\n".encode())
    return digest.hexdigest()


def _done(source):
    """The lines of a source file but its imports and docstrings."""
    lines = dict(enumerate(source.splitlines(), 1))
    for node in ast.walk(ast.parse(source)):
        said = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.Import | ast.ImportFrom) or said:
            for number in range(node.lineno, node.end_lineno + 1):
                lines.pop(number, None)
    return "\n".join(line for line in lines.values() if line.strip())


@dataclass(frozen=True)
class Record:
    """A file of measurements.

    Attributes:
        path: the file. measurements: of its good lines, in order. faults: of the others, each in words, with its number.
    """

    path: Path
    measurements: list[Measurement]
    faults: list[str]


def read(path: str | os.PathLike) -> Record:
    """The measurements of a file; a line that is cut short, edited, or of another schema is refused, the good ones kept.

    Raises:
        ValueError: where it is no file: a folder, a pipe, a device.
    """
    _check_file(Path(path))
    good, bad = _split(Path(path))
    return Record(Path(path), [measurement for _, measurement in good], [fault for _, fault in bad])


def append(path: Path, measurement: Measurement) -> None:
    """Add a line, on the disk when this returns; where that fails, none of it."""
    said = measurement.as_dict()
    line = json.dumps(said | {"check": _checksum(said)}, allow_nan=False) + "\n"
    with _alone(path) as file:
        if size := file.seek(0, os.SEEK_END):
            file.seek(size - 1)
            line = line if file.read(1) == b"\n" else "\n" + line  # whoever wrote before was interrupted
        _add(file, line.encode())


def repair(path: Path) -> list[str]:
    """Move refused lines into a file beside, so that good ones can follow; return the faults.

    The file beside is named after the record, with `.refused` at its end; lines are added to what it holds. Who appends
    meanwhile waits.
    """
    if not path.exists():
        return []
    with _alone(path):
        good, bad = _split(path)
        if bad:
            part = path.with_name(path.name + ".part")
            with part.open("wb") as file:
                file.write(b"".join(line + b"\n" for line, _ in good))
                file.flush()
                os.fsync(file.fileno())
            with path.with_name(path.name + ".refused").open("ab", buffering=0) as file:
                _add(file, b"".join(line + b"\n" for line, _ in bad))
            os.replace(part, path)
    return [fault for _, fault in bad]


@contextmanager
def _alone(path):
    """The record, open to be added to, for nobody else meanwhile; that which bears the name, if another has put one in its place."""
    _check_file(path)
    while True:
        with path.open("a+b", buffering=0) as file:
            _lock(file)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                    yield file
                    return


def _lock(file):
    """Until the file is closed. Windows has no such lock, nor have some clusters' file systems: there, one recorder at a time."""
    try:
        import fcntl
    except ImportError:
        return
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX)


def _add(file, data):
    """Add at the end of a file all of the bytes, on the disk when this returns, or none."""
    before = os.fstat(file.fileno()).st_size
    try:
        while data:
            data = data[file.write(data) :]
        os.fsync(file.fileno())
    except BaseException:  # a full disk, Ctrl-C
        file.truncate(before)
        raise


def _check_file(path):
    if path.exists() and not path.is_file():
        raise ValueError(f"record.path: {path.name} is no file; allowed: a file, or none yet")


def _split(path):
    """The file's good lines, each with its measurement, and its bad ones, each with its fault."""
    *lines, rest = path.read_bytes().split(b"\n")
    good, bad = [], []
    for number, line in enumerate(lines, 1):
        try:
            good.append((line, _measurement(line)))
        except ValueError as error:
            bad.append((line, f"{path.name}, line {number}: {error}"))
    if rest:
        bad.append((rest, f"{path.name}, line {len(lines) + 1}: it has no end: the writing of it was interrupted"))
    return good, bad


def _measurement(line):
    said = files.parsed(line, parse_constant=_no_number)
    if not isinstance(said, dict):
        raise ValueError("it is not a JSON object")
    measurement = Measurement.from_dict({k: v for k, v in said.items() if k != "check"})
    if said.get("check") != _checksum({k: v for k, v in said.items() if k != "check"}):
        raise ValueError("its checksum is not that of its content: it was edited")
    return measurement


def _no_number(name):
    raise ValueError(f"{name} is no number of JSON's")


def _checksum(said):
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]
