"""The file of a reader's progress: small, only on this machine, outside the book's folder.

Its place: the absolute path in the environment variable EVERYBYTE_PROGRESS; with `off`, none; unset,
`progress.json` in the user's state directory (XDG_STATE_HOME/everybyte, or the platform's), and none where CI is set. The
tools and tests that run the notebooks set `off`, so that what is stored in them is a new reader's on every machine.
It comes with the notebooks' packages: without them nothing is kept.
"""

import json
import os
from contextlib import suppress
from itertools import count
from pathlib import Path

from ..common import files

VARIABLE = "EVERYBYTE_PROGRESS"
OFF = "off"
#: The kinds of ids in the file. No id is ever removed.
SOLVED, TRIED, PREDICTED = "solved", "tried", "predicted"
_MOST = 2**24  # bytes: ten thousand times the book's ids
_PATIENCE = 5  # seconds to wait for another notebook


def load() -> tuple[dict[str, list[str]], Path | None, str]:
    """(the kept ids, the file, a sentence on what is wrong with it or ""). Never raises."""
    path = None
    try:
        path = place()
        kept, trouble = _read(path) if path else ({}, "")
        return kept, path, trouble
    except (OSError, ValueError) as error:
        return {}, path, f"The file of answers could not be read: {error}."


def keep(what: str, id: str) -> str:
    """Add an id to the file; return a sentence on what went wrong, or "". Never raises."""
    try:
        path = place()
        if path is None:
            return ""
        kept, trouble = _read(path)
        if id not in kept.get(what, ()):
            path.parent.mkdir(parents=True, exist_ok=True)
            with _alone(path):
                kept = _load(path)  # again: another notebook may have been faster
                kept[what] = sorted({*kept.get(what, ()), id})
                with files.whole(path) as file:
                    file.write((json.dumps(kept, indent=1) + "\n").encode())
        return trouble
    except (OSError, ValueError) as error:
        return f"This was not kept in the file of answers: {error}."


def place() -> Path | None:
    """The file; None where nothing is kept.

    Raises:
        ValueError: where EVERYBYTE_PROGRESS is neither `off` nor a whole path of a file, or there is no home folder to keep one in.
    """
    try:
        from filelock import FileLock  # noqa: F401
        from platformdirs import user_state_path
    except ImportError:
        return None
    said = os.environ.get(VARIABLE, "").strip()
    if said.lower() == OFF or not said and os.environ.get("CI"):
        return None
    try:
        path = Path(said).expanduser() if said else user_state_path("everybyte", appauthor=False) / "progress.json"
    except RuntimeError as error:  # nobody's home
        raise ValueError(f"{VARIABLE}: {said!r}: {error}; allowed: a whole path, or {OFF!r}") from None
    if not path.is_absolute():
        raise ValueError(f"{VARIABLE}: {said or str(path)!r} is no whole path; allowed: one, or {OFF!r}")
    if path.exists() and not path.is_file():
        raise ValueError(f"{VARIABLE}: {str(path)!r} is no file; allowed: a file, or none yet, or {OFF!r}")
    return path


def _read(path):
    """(the file's ids, a sentence where it was damaged and is set aside)."""
    with suppress(ValueError):
        return _load(path), ""
    with _alone(path):
        with suppress(ValueError):
            return _load(path), ""  # another notebook has set it aside
        aside = next(p for n in count(1) if not (p := path.with_name(f"{path.name}.damaged-{n}")).exists())
        os.replace(path, aside)
    return {}, f"The file of answers was damaged: it is kept as {aside.name}, and a new one begins."


def _load(path):
    """The file's ids by kind. Raise ValueError where it is damaged."""
    try:
        if path.stat().st_size > _MOST:
            raise ValueError("too large")
        kept = files.parsed(path.read_bytes())
    except FileNotFoundError:
        return {}
    if not isinstance(kept, dict) or not all(map(_is_ids, kept.values())):
        raise ValueError("not lists of ids by name")
    return kept


def _is_ids(ids):
    return isinstance(ids, list) and all(isinstance(id, str) for id in ids)


def _alone(path):
    from filelock import FileLock

    return FileLock(f"{path}.lock", timeout=_PATIENCE)
