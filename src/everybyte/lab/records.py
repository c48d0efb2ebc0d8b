"""Files of measurements: one line each, with a checksum, checked when read."""

import hashlib
import json
import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from ..ask.setup import Setup
from ..catalog import Model
from ..common import files
from .devices import REHEARSED
from .measurement import Measurement

REFERENCE = Path(__file__).resolve().parents[1] / "reference"


@cache
def fingerprint(folder: Path = REFERENCE) -> str:
    """SHA-256 of the reference step: its source files without imports and docstrings, and its text."""
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.py"), *folder.glob("*.txt")]):
        text = path.read_text(encoding="utf-8")
        digest.update(f"{path.name}\n{files.program(text) if path.suffix == '.py' else text}\n".encode())
    return digest.hexdigest()


def unmeasured(status: str, reason: str, model: Model, setup: Setup, device: dict, rounding: int = 512) -> Measurement:
    """A measurement that was not made, with the reason why."""
    witness = "rehearse" if device["name"].startswith(REHEARSED) else "measure"
    return Measurement(
        model=model, setup=setup, status=status, reason=reason, device=device, rounding=rounding, witness=witness,
        fingerprint=fingerprint(), date=datetime.now(UTC).isoformat(timespec="seconds"),
    )  # fmt: skip


@dataclass(frozen=True)
class Record:
    """A file of measurements."""

    path: Path
    measurements: list[Measurement]  # of its good lines, in order
    faults: list[str]  # what is wrong with the others, each with its number


def read(path: str | os.PathLike) -> Record:
    """The measurements of a file. Lines that are cut short, edited or of another schema are reported as faults.

    Raises:
        ValueError: where it is a folder, a pipe or a device.
    """
    path = Path(path)
    _check_file(path)
    good, bad = _split(path)
    return Record(path, [measurement for _, measurement in good], [fault for _, fault in bad])


def append(path: Path, measurement: Measurement) -> None:
    """Add a line. It is on the disk when this returns; where that fails, nothing is added."""
    said = measurement.as_dict()
    line = json.dumps(said | {"check": _checksum(said)}, allow_nan=False).encode() + b"\n"
    with _alone(path) as file:
        if size := file.seek(0, os.SEEK_END):
            file.seek(size - 1)
            line = line if file.read(1) == b"\n" else b"\n" + line  # whoever wrote before was interrupted
        _add(file, line)


def repair(path: Path) -> list[str]:
    """Move faulty lines to the end of the file with `.refused` after its name; return the faults.

    Another process that appends meanwhile waits.
    """
    if not path.exists():
        return []
    with _alone(path):
        good, bad = _split(path)
        if bad:
            with files.whole(path) as file:
                file.write(b"".join(line + b"\n" for line, _ in good))
                with path.with_name(path.name + ".refused").open("ab", buffering=0) as refused:
                    _add(refused, b"".join(line + b"\n" for line, _ in bad))
    return [fault for _, fault in bad]


@contextmanager
def _alone(path):
    """A context with the record, open for adding and locked; opened again where the file was replaced meanwhile."""
    _check_file(path)
    while True:
        with path.open("a+b", buffering=0) as file:
            _lock(file)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                    yield file
                    return


def _lock(file):
    """Lock a file until it is closed. Windows and some cluster file systems cannot: run one recording at a time there."""
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)


def _add(file, data):
    """Add all of the bytes at the end of a file, and wait for the disk; or add none."""
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
    """([(valid line, its measurement)], [(invalid line, its fault)]) of a file."""
    *lines, rest = path.read_bytes().split(b"\n")
    good, bad = [], []
    for number, line in enumerate(lines, 1):
        try:
            good.append((line, measurement(line)))
        except ValueError as error:
            bad.append((line, f"{path.name}, line {number}: {error}"))
    if rest:
        bad.append((rest, f"{path.name}, line {len(lines) + 1}: it has no end: the writing of it was interrupted"))
    return good, bad


def measurement(line: str | bytes) -> Measurement:
    """The measurement in a record's line.

    Raises:
        ValueError: where it is no JSON, no measurement, or not as it was written.
    """
    said = files.parsed(line, parse_constant=_no_number)
    if not isinstance(said, dict):
        raise ValueError("it is not a JSON object")
    check = said.pop("check", None)
    found = Measurement.from_dict(said)
    if check != _checksum(said):
        raise ValueError("its checksum is not that of its content: it was edited")
    return found


def _no_number(name):
    raise ValueError(f"{name} is no number of JSON's")


def _checksum(said):
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]
