"""What GPUs said, kept: a line a measurement, each with a checksum, read back with distrust."""

import hashlib
import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .measurement import Measurement

REFERENCE = Path(__file__).resolve().parents[1] / "reference"


@cache
def fingerprint(folder: Path = REFERENCE) -> str:
    """Which reference step this is: SHA-256 of its source files and of its text, by name, in the names' order."""
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.py"), *folder.glob("*.txt")]):
        digest.update(f"{path.name}\n{path.read_text(encoding='utf-8')}\n".encode())
    return digest.hexdigest()


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
    """The measurements of a file; a line that is cut short, edited, or of another schema is refused, the good ones kept."""
    good, bad = _split(Path(path))
    return Record(Path(path), [measurement for _, measurement in good], [fault for _, fault in bad])


def append(path: Path, measurement: Measurement) -> None:
    """Add a line, on the disk when this returns."""
    said = measurement.as_dict()
    line = json.dumps(said | {"check": _checksum(said)}, allow_nan=False) + "\n"
    with path.open("ab") as file:
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())


def repair(path: Path) -> list[str]:
    """Move refused lines into a file beside, so that good ones can follow; return the faults.

    The file beside is named after the record, with `.refused` at its end; lines are added to what it holds.
    """
    if not path.exists():
        return []
    good, bad = _split(path)
    if bad:
        with path.with_name(path.name + ".refused").open("ab") as file:
            file.writelines(line + b"\n" for line, _ in bad)
            file.flush()
            os.fsync(file.fileno())
        part = path.with_name(path.name + ".part")
        part.write_bytes(b"".join(line + b"\n" for line, _ in good))
        os.replace(part, path)
    return [fault for _, fault in bad]


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
    try:
        said = json.loads(line)
    except ValueError as error:
        raise ValueError(f"it is not JSON ({error})") from error
    if not isinstance(said, dict):
        raise ValueError("it is not a JSON object")
    measurement = Measurement.from_dict({k: v for k, v in said.items() if k != "check"})
    if said.get("check") != _checksum({k: v for k, v in said.items() if k != "check"}):
        raise ValueError("its checksum is not that of its content: it was edited")
    return measurement


def _checksum(said):
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]
