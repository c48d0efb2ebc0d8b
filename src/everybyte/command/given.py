"""Make the library's arguments of a command's options: models, setups, GPUs, sizes, files."""

import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from .. import Gpu, Model, from_config, model, units
from ..answers.headroom import Headroom
from ..ask.setup import Setup
from ..catalog.configs import precision
from ..catalog.models import CODE_NAMES
from ..common import checks, files, interrupts


@contextmanager
def torch(command: str) -> Iterator[None]:
    """A context for imports that need PyTorch. Raise ValueError where it is not installed."""
    try:
        with interrupts.importing():
            yield
    except ImportError as error:
        raise ValueError(f"{command}: {error}; it needs PyTorch: pip install 'everybyte[dryrun]'") from error


def setup(options: Namespace) -> Setup:
    """The setup. What it does not say of precision is as the configuration says that stands in a model's place."""
    said = {f.name: getattr(options, f.name) for f in fields(Setup)}
    if said["precision"] is None and _is_file(getattr(options, "model", None)):
        said["precision"] = precision(options.model)
    return Setup(**said)


def named(said: str) -> Model:
    """The model of a name of the catalog, or of the path of a config.json."""
    return from_config(said) if _is_file(said) else model(said)


def _is_file(said):
    return said is not None and said.endswith(".json")


def is_configuration(said: str) -> bool:
    """Whether a file is a Hugging Face model's config.json, and not one of ours; what cannot be read is none."""
    try:
        found = files.parsed(Path(said).read_bytes()) if _is_file(said) else None
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and "model_type" in found and "witness" not in found


def configuration(options: Namespace) -> tuple:
    """(Model of the catalog, setup). A command that is not told whose code runs the model runs the book's, and its answer says so."""
    found = named(options.model)
    code = getattr(options, "code", "reference") or found.code
    if code != found.code:
        found = found.replace(code=code, name=f"{found.name}, {CODE_NAMES[code]}")
    return found, setup(options)


def subject(options: Namespace) -> tuple:
    """(Model, setup, the arguments of its forward with letters) of a command that takes your own models."""
    said = [name for name in ("model", "hf", "module") if getattr(options, name) is not None]
    if len(said) != 1:
        many = f"{len(said) or 'no'} model{'s' * (len(said) > 1)}"
        raise ValueError(f"{options.command}: {many}; allowed: one, by a name from `everybyte models`, --hf, --module")
    if options.code and said != ["model"]:
        raise ValueError(
            f"--code: {options.code!r} with --{said[0]}, which says its own code; allowed: with a name from `everybyte models`"
        )
    if said == ["model"]:
        if options.inputs:
            word = f"{checks.shown(options.inputs[0])} with {options.model}, whose inputs are tokens"
            raise ValueError(f"--inputs: {word}; allowed: with --module or --hf")
        return (*configuration(options), None)
    asked = setup(options)
    with torch(options.command):
        from ..deriving import given
    found = given.config(options.hf) if said == ["hf"] else given.function(options.module)
    if said == ["module"] and not options.inputs:
        allowed = "the arguments of its forward, such as tokens=B,S:int64"
        raise ValueError(f"--inputs: none with --module; allowed: {allowed}")
    return found, asked, given.inputs(options.inputs)


def served(options: Namespace) -> Any:
    """The model of `serve`: of the catalog, or a Hugging Face config."""
    if (options.model is None) == (options.hf is None):
        many = "no model" if options.model is None else "2 models"
        raise ValueError(f"serve: {many}; allowed: one, by a name from `everybyte models` or --hf")
    if options.model is not None:
        return named(options.model)
    with torch(options.command):
        from ..deriving import given
    return given.config(options.hf)


def sizes(options: Namespace) -> dict[str, int]:
    """{letter: size} of the option for your own letters."""
    if options.sizes and not options.inputs:
        raise ValueError(f"--sizes: {checks.shown(options.sizes[0])}; allowed: with --inputs, sizes of its letters")
    found = {}
    for letter, said in checks.pairs("--sizes", options.sizes).items():
        size = checks.natural(said)
        if len(letter) != 1 or not letter.isupper() or letter in "BS" or size is None:
            allowed = "a capital letter other than B and S, and its size, such as R=224"
            raise ValueError(f"--sizes: {checks.shown(f'{letter}={said}')}; allowed: {allowed}")
        found[letter] = size
    return found


def inputs(batch: Any, setup: Setup, sizes: dict[str, int]) -> Any:
    """Arguments of a forward, with the setup's numbers for the book's letters, and `sizes` for your own."""
    if batch is None:
        return None
    from ..deriving import looks

    try:
        return looks.inputs(batch, setup.batch, setup.sequence, **sizes)
    except ValueError as error:
        raise ValueError(f"--sizes: {error}, such as R=224") from None


def size(option: str, said: Any) -> int:
    """Bytes of a size in words; None stays None."""
    try:
        return round(units.parse(said)) if isinstance(said, str) else said
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None


def headroom(options: Namespace) -> Headroom:
    """What is kept free of a GPU."""
    return Headroom(**{f.name: size(f"--keep-{f.name}", getattr(options, f"keep_{f.name}")) for f in fields(Headroom)})


def span(option: str, said: str) -> tuple[str, range]:
    """(name, numbers) of NAME=A:B or NAME=A:B:STEP, both ends among them."""
    name, _, ends = said.partition("=")
    numbers = [number for number in map(checks.natural, ends.split(":")) if number is not None]
    right = len(numbers) == ends.count(":") + 1 in (2, 3) and numbers[0] <= numbers[1] and 0 not in numbers[2:]
    if not name.isidentifier() or not right:
        raise ValueError(f"{option}: {checks.shown(said)}; allowed: NAME=A:B or NAME=A:B:STEP, as batch=1:64")
    first, last, *step = numbers
    return name, range(first, last + 1, *step)


def card(options: Namespace) -> tuple[Gpu | str, Headroom]:
    """(GPU, its headroom) of a command that needs a GPU."""
    kept = headroom(options)
    if (options.gpu is None) == (options.memory is None):
        allowed = "one of them, a name from `everybyte gpus` or a size as 24GiB"
        raise ValueError(f"{options.command}: --gpu and --memory; allowed: {allowed}")
    return options.gpu or Gpu(memory=size("--memory", options.memory)), kept


def asked(options: Namespace, *names: str) -> dict[str, Any]:
    """{name: value} of the given options."""
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def told(options: Namespace, file: Path) -> Path:
    """A file that says its own setup. Raise ValueError for an option of a setup beside it."""
    changed = [f.name for f in fields(Setup) if getattr(options, f.name) != f.default]
    if changed or options.code:
        option = f"--{(changed or ['code'])[0].replace('_', '-')}"
        raise ValueError(
            f"explain: {option} beside a file, which says its own; allowed: after a name from `everybyte models`, or a config.json"
        )
    return file


def evidence(name: str, owner: str = "doctor.file") -> bytes:
    """The bytes of a file, or of standard input."""
    from ..evidence import pickles

    if name != "-":
        with files.opened(owner, name, pipes=True) as file:
            return files.some(owner, name, file, pickles.MOST)
    stdin = getattr(sys.stdin, "buffer", None)
    if stdin is None:
        raise ValueError(f"{owner}: - with a closed standard input; allowed: a file, or text on standard input")
    return files.some(owner, name, stdin, pickles.MOST)
