"""Read an untrusted pickle of dicts, lists, tuples, numbers and text, and nothing else.

A pickle is a program. It can name any class or function, and `pickle.load` calls it. A snapshot of PyTorch's
needs none, so here the first name ends the reading.
"""

import io
import os
import pickle
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NoReturn

from ..common import checks, files, terminal

#: The largest file that is read, in bytes; and how many bytes of memory its objects may take for each of its own.
MOST, FACTOR = 500 * 10**6, 60
#: Memory that reading may take beside that.
_ROOM = 256 * 2**20
#: What a file that is no pickle may be, by its first two bytes.
_LOOKS = {
    b"PK": ", but a zip archive, as torch.save writes checkpoints",
    b"\x1f\x8b": ", but packed by gzip",
    b'{"': ", but JSON",
}


def is_pickle(data: bytes) -> bool:
    """Whether a file begins as pickles do, since protocol 2, and no text does."""
    return data[:1] == b"\x80"


class Refused(ValueError):
    """The error for a file that is not read; the message says why."""


def refuse(what: str, allowed: str = "what PyTorch writes") -> NoReturn:
    """Raise `Refused` for a snapshot's content."""
    raise Refused(f"snapshot: {what}; allowed: {allowed}")


class _Plain(pickle.Unpickler):
    """An unpickler that raises `Refused` instead of loading a class."""

    def find_class(self, module, name):
        raise Refused(
            f"it names {module}.{name}, and a snapshot names nothing; allowed: dicts, lists, numbers and text"
        )

    def persistent_load(self, pid):
        raise Refused("it refers to something outside of it; allowed: dicts, lists, numbers and text")


class _Slow(pickle._Unpickler):
    """The same in Python, for systems where memory cannot be limited: its list of names cannot be made to grow by one number."""

    find_class, persistent_load = _Plain.find_class, _Plain.persistent_load


class _Counted(io.BufferedIOBase):
    """A file that reads no further than its size, and updates a progress bar. short: what was read beyond its end, in words."""

    def __init__(self, file, size, bar):
        self._file, self._left, self._bar, self.short = file, size, bar, ""

    def _passed(self, count):
        self._left -= count
        if self._bar is not None:
            self._bar.update(count)

    def _lacks(self, wanted):
        if wanted > self._left:
            self.short = f"it says that {wanted:,} bytes follow, and {self._left:,} do; it is cut short, or made up"
        return self.short

    def read(self, count=-1):
        if self._lacks(count):
            raise Refused(self.short)
        data = self._file.read(count)
        self._passed(len(data))
        return data

    def readinto(self, buffer):
        if self._lacks(len(buffer)):  # an error here would hold the buffer, which the unpickler throws away
            return 0
        count = self._file.readinto(buffer)
        self._passed(count)
        return count

    def readline(self, limit=-1):
        data = self._file.readline(limit)
        self._passed(len(data))
        return data


def read(source: str | os.PathLike | bytes, progress: bool | None = False) -> tuple[object, int]:
    """(the object in a pickle, the pickle's bytes).

    Args:
        source: a file's path, or its bytes. progress: whether a bar shows how far it is; None: after two seconds, where somebody looks.

    Raises:
        Refused: where it is no pickle, is cut short, names a class or a function, takes more memory than its size allows, or is
            larger than 500 MB. Nothing of it has run then.
    """
    where = "the bytes given" if isinstance(source, bytes) else checks.printable(Path(source).name, checks.SHOWN)
    with _opened(source) as (file, size):
        if size > MOST:
            refuse(f"{where} has {size:,} bytes", f"{MOST:,} or fewer")
        start = file.read(2)
        if len(start) < 2 or start[0] != pickle.PROTO[0] or not 2 <= start[1] <= pickle.HIGHEST_PROTOCOL:
            refuse(f"{where} is no pickle{_LOOKS.get(start, '')}", "what torch.cuda.memory._dump_snapshot wrote")
        file.seek(0)
        bar = nullcontext()
        if progress is not False:
            bar = terminal.bar(total=size, unit="B", unit_scale=True, desc="snapshot", always=progress)
        with bar as shown, _limited(FACTOR * size + _ROOM) as limited:
            counted = _Counted(file, size, shown)
            try:
                found = (_Plain if limited else _Slow)(counted).load()
                why = counted.short
            except MemoryError:
                why = f"its objects would take more memory than {size:,} bytes allow"
            except Exception as error:
                why = counted.short or str(error) or type(error).__name__
        if why:
            raise Refused(f"snapshot: {where} was refused: {checks.printable(why, 2 * checks.SHOWN)}")
        return found, size


@contextmanager
def _opened(source):
    """The file and its size."""
    if isinstance(source, bytes):
        yield io.BytesIO(source), len(source)
        return
    try:
        with files.opened("snapshot", source) as file:
            yield file, os.fstat(file.fileno()).st_size
    except Refused:
        raise
    except ValueError as error:
        raise Refused(str(error)) from None


@contextmanager
def _limited(more):
    """A context that limits how many more bytes of addresses this process may take. It yields whether the system can."""
    try:
        import resource

        used = files.kilobytes("/proc/self/status")["VmSize"]
        before = soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        wanted = used + more if soft == resource.RLIM_INFINITY else min(used + more, soft)
        resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
    except (ImportError, OSError, ValueError, KeyError):
        yield sys.platform == "emscripten"  # Python in a page: its memory has an end by itself
        return
    try:
        yield True
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
