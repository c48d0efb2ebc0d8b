"""Derivations on disk, in the user's cache: found by what they were made from, and by the code that made them."""

import hashlib
import json
import os
import sys
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

from .. import files
from ..catalog import Model
from ..derivation import Derivation
from ..derivation.keeping import as_dict
from ..derivation.keeping import read as read_dict
from ..setup import Setup
from ..witness import Counted

#: Where they are kept, and "off" for nowhere.
VARIABLE = "EVERYBYTE_CACHE"
_PARTS = ("adapters.py", "catalog", "derivation", "deriving", "dryrun", "reference", "setup.py")


def folder() -> Path | None:
    """The folder; None where nothing is kept."""
    said = os.environ.get(VARIABLE, "")
    if said == "off":
        return None
    if said:
        return Path(said)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "everybyte" / "derivations"


@cache
def _code() -> str:
    """What the code is that counts and derives, and on which versions."""
    found = hashlib.sha256(torch.__version__.encode())
    package = Path(__file__).resolve().parents[1]
    for part in _PARTS:
        path = package / part
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            found.update(file.read_bytes())
    return found.hexdigest()


def place(model, setup: Setup, batch, rank: int = 0) -> tuple | None:
    """(file, model) of a derivation; None where it cannot be kept: a module of one's own has no name for its code."""
    where = folder()
    if where is None or batch is not None:
        return None
    if isinstance(model, Model):
        said = repr(model)
    elif hasattr(model, "to_diff_dict"):
        transformers = sys.modules["transformers"]
        said = f"{transformers.__version__} {type(model).__name__} {json.dumps(model.to_dict(), sort_keys=True, default=str)}"
    else:
        return None
    letters = setup.as_dict() | {"batch": None, "sequence": None}
    key = hashlib.sha256(
        "\n".join([_code(), said, json.dumps(letters, sort_keys=True), f"rank {rank}"]).encode()
    ).hexdigest()
    return where / f"{key}.json", model if isinstance(model, Model) else None


def read(kept) -> Derivation | None:
    """The derivation that is kept there; None where there is none. Of a damaged one it is said that it is derived again."""
    path, model = kept
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return None
    try:
        said = json.loads(text)
        body = said["derivation"]
        if said["sum"] != _sum(body):
            raise ValueError("its checksum differs")
        counted = Counted(str(body["model"]["name"]), int(body["model"]["parameters"]))
        same = model is not None and (model.name, int(model.parameters)) == (counted.name, counted.parameters)
        return read_dict(body, model if same else counted)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        warnings.warn(f"derive: what was kept in {path.name} is damaged ({error}); it is derived again", stacklevel=3)
        return None


def write(kept, derivation: Derivation) -> None:
    """Keep it; where the disk takes nothing, it is not kept."""
    path, _ = kept
    body = as_dict(derivation)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.whole(path) as file:
            file.write(json.dumps({"sum": _sum(body), "derivation": body}).encode())


def _sum(body):
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
