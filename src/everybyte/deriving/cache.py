"""Derivations on disk, in the user's cache: found by what they were made from, and by the code that made them."""

import hashlib
import json
import os
import sys
import warnings
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from ..ask.setup import Setup
from ..catalog import Model
from ..common import files
from ..derivation import Derivation

#: Where they are kept, and "off" for nowhere.
VARIABLE = "EVERYBYTE_CACHE"
#: System -> the variable that says where a user's caches are, if it has one, and where they are else.
_CACHES = {"win32": ("LOCALAPPDATA", "AppData/Local"), "darwin": ("", "Library/Caches")}
#: Whose code a dry run may run.
_LIBRARIES = ("torch", "transformers", "peft", "bitsandbytes", "lion-pytorch")
#: Bytes of what is kept, at most.
MOST = 2 * 10**8


def folder() -> Path | None:
    """The folder; None where nothing is kept."""
    if said := os.environ.get(VARIABLE, ""):
        return None if said == "off" else Path(said)
    variable, usual = _CACHES.get(sys.platform, ("XDG_CACHE_HOME", ".cache"))
    try:
        base = Path(os.environ.get(variable) or Path.home() / usual)
    except RuntimeError:  # nobody's home, as in a container
        return None
    return base / "everybyte" / "derivations" if base.is_absolute() else None


@cache
def _code() -> str:
    """What the code is that counts and derives, and on which versions."""
    found = hashlib.sha256()
    for name in _LIBRARIES:
        with suppress(PackageNotFoundError):
            found.update(f"{name} {version(name)}\n".encode())
    for file in sorted(Path(__file__).resolve().parents[1].rglob("*.py")):
        found.update(file.read_bytes())
    return found.hexdigest()


def _state(value) -> str:
    """All that a configuration holds, private settings too, as text.

    Raises:
        TypeError: for a value whose text does not say all of it, and for a class that is not of transformers' own code.
    """
    if value is None or isinstance(value, bool | int | float | str | torch.dtype):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__} ({', '.join(map(_state, value))})"
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{_state(k)}: {_state(v)}' for k, v in value.items()))}}}"
    if hasattr(value, "to_diff_dict") and _of_transformers(value):
        return f"{type(value).__name__} {_state(vars(value))}"
    raise TypeError(f"a {type(value).__name__}")


def _of_transformers(config) -> bool:
    """Whether a configuration's class, and that of the model which is made of it, are transformers' own."""
    from transformers.models.auto import modeling_auto as auto

    made = (m.get(type(config), None) for m in (auto.MODEL_FOR_MASKED_LM_MAPPING, auto.MODEL_FOR_CAUSAL_LM_MAPPING))
    return all(c.__module__.startswith("transformers.") for c in (type(config), *filter(None, made)))


def place(model, setup: Setup, batch, rank: int = 0) -> tuple | None:
    """(file, model) of a derivation; None where it cannot be kept: no name tells what code of one's own does."""
    where = folder()
    if where is None or batch is not None:
        return None
    if isinstance(model, Model):
        said = repr(model)
    else:
        try:
            said = _state(model)
        except TypeError:
            return None
    letters = setup.as_dict() | {"batch": None, "sequence": None}
    key = _hash("\n".join([_code(), said, json.dumps(letters, sort_keys=True), f"rank {rank}"]))
    return where / f"{key}.json", model if isinstance(model, Model) else None


def read(kept) -> Derivation | None:
    """The derivation that is kept there; None where there is none. Of a damaged one it is said that it is derived again."""
    path, model = kept
    if not path.is_file():
        return None
    try:
        said = files.parsed(files.read("derive.cache", path, MOST))
        if said["sum"] != _sum(said["derivation"]):
            raise ValueError("its checksum differs")
        found = Derivation.from_dict(said["derivation"])
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        warnings.warn(f"derive: what was kept in {path.name} is damaged ({error}); it is derived again", stacklevel=3)
        return None
    same = model is not None and (model.name, int(model.parameters)) == (found.name, found.parameters)
    return replace(found, model=model) if same else found


def write(kept, derivation: Derivation) -> None:
    """Keep it; where the disk takes nothing, it is not kept."""
    path, _ = kept
    body = derivation.as_dict()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.whole(path) as file:
            file.write(json.dumps({"sum": _sum(body), "derivation": body}).encode())


def _sum(body):
    return _hash(json.dumps(body, sort_keys=True))


def _hash(text):
    return hashlib.sha256(text.encode()).hexdigest()
