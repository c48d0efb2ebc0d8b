"""Write files atomically, and read foreign files within limits."""

import ast
import json
import os
import secrets
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO

from . import checks, terminal

#: The most nested lists and dicts in foreign JSON.
DEEP = 200
_PIECE = 4 * 2**20
#: File types that are neither regular files nor devices.
_KINDS = {stat.S_ISFIFO: "a pipe", stat.S_ISDIR: "a folder", stat.S_ISSOCK: "a socket"}


@contextmanager
def whole(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """A file to write bytes to. Once all is on the disk, it replaces the file of that name and takes its mode.

    Where that fails, or the block raises, the old file stays as it was. A pipe or a device is written directly.
    """
    try:
        path = Path(os.path.realpath(path))  # of a link the file that it names
    except ValueError:
        raise ValueError(f"file: {checks.shown(os.fspath(path))}; allowed: a name that a file can have") from None
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    # Each thread's, process's and container's own.
    part = path.with_name(f"{path.name[:40]}.{secrets.token_hex(8)}.part")
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


def kilobytes(path: str | os.PathLike) -> dict[str, int]:
    """Name -> bytes of each line `name: 5 kB` of one of Linux's files, such as /proc/meminfo; OSError where there is none."""
    pairs = (line.split() for line in Path(path).read_text(encoding="utf-8").splitlines() if line.endswith(" kB"))
    return {name.rstrip(":"): int(size) * 1024 for name, size, _ in pairs}


@contextmanager
def opened(owner: str, path: str | os.PathLike, pipes: bool = False) -> Iterator[BinaryIO]:
    """A regular file to read bytes from. pipes: whether also a shell's pipe, such as /dev/fd/63.

    Raises:
        ValueError: where there is none, it cannot be read, or reading might never end.
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
    """Open without waiting for a pipe's writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read(owner: str, path: str | os.PathLike, most: int) -> bytes:
    """The bytes of a regular file. Raise ValueError where there is none, or it has more than `most` bytes."""
    with opened(owner, path) as file:
        return some(owner, path, file, most)


def some(owner: str, path: str | os.PathLike, file: BinaryIO, most: int) -> bytes:
    """The bytes of an open file. Raise ValueError where they are more than `most`."""
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
    """Read foreign JSON by `json.loads` with its options.

    Raises:
        ValueError: where it is no JSON, or has more than `DEEP` nested lists and dicts.
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


@cache
def program(text: str) -> str:
    """A source file of Python without its imports and docstrings: what a digest of it is of."""
    lines = dict(enumerate(text.splitlines(), 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Expr):
            for number in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                lines.pop(number, None)
    return "\n".join(line for line in lines.values() if line.strip())


def text(package: str, *names: str) -> str:
    """The text of a package's own files, one after another."""
    return "\n".join(resources.files(package).joinpath(name).read_text(encoding="utf-8") for name in names)


def script(package: str, *names: str) -> str:
    """The text of a package's own scripts, after what all pages share."""
    return "\n".join([text("everybyte.common", "keeping.js"), text(package, *names)])


def literal(data: object) -> str:
    """JSON that may stand in a page's script: no text in it ends the script."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def toml(package: str, name: str) -> dict[str, Any]:
    """Read a package's own TOML file."""
    return tomllib.loads(text(package, name))


def entries(package: str, name: str) -> dict[str, dict[str, Any]]:
    """The tables of a package's own TOML file, in order. A table takes fields that it lacks from the one in its field `like`."""
    found: dict[str, dict[str, Any]] = {}
    for title, entry in toml(package, name).items():
        found[title] = (found[entry.pop("like")] if "like" in entry else {}) | entry
    return found
