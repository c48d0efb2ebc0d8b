"""Models of one's own, as a command is given them: a configuration's file, a function in a file, inputs in words."""

import importlib.util
import inspect
import sys
from pathlib import Path

import torch

from ..common import checks, files
from ..step.amount import LETTERS

#: A config.json has so many bytes at most; and of somebody else's error so many characters are repeated.
MOST, WHY, LABELS = 10**7, 1000, 10**6


def config(path: str):
    """The Hugging Face configuration in a config.json. Nothing is downloaded.

    Raises:
        ValueError: where there is no such file, it is no configuration, or transformers is not there.
    """
    name, text = checks.printable(str(path), checks.SHOWN), files.read("--hf", path, MOST)
    try:
        said = files.parsed(text)
    except ValueError as error:
        raise ValueError(f"--hf: {name}: {error}; allowed: a model's config.json") from error
    try:
        import transformers
        import transformers.masking_utils  # as a model would
    except ImportError as error:
        raise ValueError(f"--hf: {error}; it needs transformers: pip install 'everybyte[models]'") from error
    kind = said.pop("model_type", None) if isinstance(said, dict) else None
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        known = f"one that transformers {transformers.__version__} knows"
        raise ValueError(f"--hf: {name} has model_type {checks.shown(kind)}; allowed: {known}")
    labels = said.get("num_labels")
    if isinstance(labels, int) and labels > LABELS:  # transformers gives each a name
        raise ValueError(f"--hf: {name}: num_labels {labels:,}; allowed: {LABELS:,} at most")
    try:
        return transformers.CONFIG_MAPPING[kind].from_dict(said)
    except Exception as error:  # what a class checks, and how it complains, is its own
        why = checks.printable(" ".join(str(error).split()), WHY)
        raise ValueError(f"--hf: {name}: {why}; allowed: what transformers' {kind} takes") from error


def function(text: str):
    """The function of a file, from "file.py:name". The file is run.

    Raises:
        ValueError: where there is no such file or no such function.
    """
    path, _, name = text.rpartition(":")
    if not path or not name.isidentifier():
        raise ValueError(f"--module: {checks.shown(text)}; allowed: file.py:function, which makes a torch.nn.Module")
    with files.opened("--module", path):
        where = checks.printable(path, checks.SHOWN)
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"--module: {where}: no Python; allowed: a file of Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(spec.name, module)
    folder = str(Path(path).resolve().parent)
    sys.path.insert(0, folder)  # what the file imports from beside it
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        why = f"{type(error).__name__}: {checks.printable(str(error), WHY)}"
        raise ValueError(
            f"--module: {where}, when it is run: {why}; allowed: a file that makes functions and classes"
        ) from error
    finally:
        sys.path.remove(folder)
    found = getattr(module, name, None)
    if not callable(found):
        raise ValueError(f"--module: {where} has no function {name!r}; allowed: one that makes a torch.nn.Module")
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise ValueError(f"--module: {name}: {error}; allowed: a function that needs no argument") from None
    except ValueError:  # a builtin, which tells nobody what it takes
        pass
    return found


def inputs(words: list[str] | None) -> dict | None:
    """The arguments of a forward from words such as "tokens=B,S:int64": a name, a shape with letters, a data type.

    Raises:
        ValueError: for a word that is none.
    """
    found = {}
    for name, said in checks.pairs("--inputs", words or ()).items():
        shape, _, dtype = said.partition(":")
        kind = getattr(torch, dtype or "int64", None)
        sizes = [size if checks.natural(size) is None else int(size) for size in shape.split(",")] if shape else []
        strange = [s for s in sizes if s not in LETTERS and not isinstance(s, int)]
        if not name.isidentifier() or not shape or strange or not isinstance(kind, torch.dtype):
            raise ValueError(
                f"--inputs: {checks.shown(f'{name}={said}')}; allowed: name=shape:type, such as tokens=B,S:int64 or "
                "image=B,3,R,R:float32, a dimension that is no number a capital letter"
            )
        found[name] = tuple(sizes), kind
    return found or None
