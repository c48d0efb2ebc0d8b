"""Files that are there whole, or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """A file to write bytes to, beside the one of that name, which it replaces once all is on the disk.

    Where that fails, or the block raises, what stood there stands, and nothing lies beside it. What is no file, as a pipe, is written to.
    """
    path = Path(os.path.realpath(path))  # of a link the file that it names
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        if error.filename == str(part):  # nobody has asked for that one
            error.filename = str(path)
        raise
    finally:
        part.unlink(missing_ok=True)
