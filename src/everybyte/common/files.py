"""Files that are there whole or not at all, and files from outside, read within bounds."""

import json
import os
import secrets
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO

from . import checks, terminal

#: How deep lists and dicts may be nested in JSON from outside.
DEEP = 200
_PIECE = 4 * 2**20
#: What is no regular file; all others are devices.
_KINDS = {stat.S_ISFIFO: "a pipe", stat.S_ISDIR: "a folder", stat.S_ISSOCK: "a socket"}


@contextmanager
def whole(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """A file to write bytes to; it replaces the one of that name, and takes its mode, once all is on the disk.

    Where that fails, or the block raises, the old file stays, alone. A pipe or a device is written to.
    """
    try:
        path = Path(os.path.realpath(path))  # of a link the file that it names
    except ValueError:
        raise ValueError(f"file: {checks.shown(os.fspath(path))}; allowed: a name that a file can have") from None
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    part = path.with_name(
        f"{path.name[:40]}.{secrets.token_hex(8)}.part"
    )  # each thread's, process's and container's own
    try:
        with part.open("xb") as file:
            if path.exists():
                os.chmod(part, path.stat().st_mode & 0o777)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        if error.filename == str(part):  # which nobody has asked for
            error.filename = str(path)
        raise
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def opened(owner: str, path: str | os.PathLike, pipes: bool = False) -> Iterator[BinaryIO]:
    """A regular file to read bytes from; `pipes`: or what a shell hands over by number, as /dev/fd/63.

    Raises:
        ValueError: where there is none, it cannot be read, or reading might wait for ever.
    """
    name = checks.printable(os.fspath(path), checks.SHOWN)
    handed = pipes and os.fspath(path).startswith(("/dev/fd/", "/dev/stdin", "/proc/self/fd/"))
    try:
        file = open(path, "rb", opener=None if handed else _at_once)
    except OSError as error:
        raise ValueError(f"{owner}: {name}: {error.strerror}; allowed: a file that can be read") from None
    except ValueError:  # a NUL, or half a surrogate
        raise ValueError(f"{owner}: {name}: no file can have that name; allowed: a file that can be read") from None
    with file:
        mode = os.fstat(file.fileno()).st_mode
        if not (stat.S_ISREG(mode) or handed and stat.S_ISFIFO(mode)):
            what = next((words for of, words in _KINDS.items() if of(mode)), "a device")
            raise ValueError(f"{owner}: {name}: {what}; allowed: a regular file{', or - for standard input' * pipes}")
        yield file


def _at_once(path, flags):
    """Open without waiting for whoever writes into a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read(owner: str, path: str | os.PathLike, most: int) -> bytes:
    """What a regular file holds. Raise ValueError where there is none, or it has more than `most` bytes."""
    with opened(owner, path) as file:
        return some(owner, path, file, most)


def some(owner: str, path: str | os.PathLike, file: BinaryIO, most: int) -> bytes:
    """All that an open file holds. Raise ValueError where that is more than `most` bytes."""
    found = bytearray()
    with terminal.bar(desc="reading", unit="B", unit_scale=True) as bar:
        while len(found) <= most and (data := file.read(min(_PIECE, most + 1 - len(found)))):
            found += data
            bar.update(len(data))
    if len(found) > most:
        name = checks.printable(os.fspath(path), checks.SHOWN)
        raise ValueError(f"{owner}: {name}: more than {most:,} bytes; allowed: as many")
    return bytes(found)


def parsed(text: str | bytes, **said) -> Any:
    """What JSON from outside says, read by `json.loads` with its options.

    Raises:
        ValueError: where it is no JSON, or has more than `DEEP` lists and dicts within one another.
    """
    deep = ValueError(f"more than {DEEP} lists and dicts within one another")
    try:
        found = json.loads(text, **said)
    except RecursionError:
        raise deep from None
    except ValueError as error:
        raise ValueError(f"no JSON, {error}") from None
    level = [found]
    for _ in range(DEEP + 1):
        inside = (at.values() if isinstance(at, dict) else at for at in level if isinstance(at, dict | list))
        level = [value for values in inside for value in values]
    if level:
        raise deep
    return found


def toml(package: str, name: str) -> dict[str, Any]:
    """What a package's own TOML file says."""
    return tomllib.loads(resources.files(package).joinpath(name).read_text(encoding="utf-8"))


def entries(package: str, name: str) -> dict[str, dict[str, Any]]:
    """The tables of a package's own TOML file, in its order; one that names another by `like` has all that it does not state from there."""
    found: dict[str, dict[str, Any]] = {}
    for title, entry in toml(package, name).items():
        found[title] = (found[entry.pop("like")] if "like" in entry else {}) | entry
    return found
