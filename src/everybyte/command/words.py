"""The parser of the command line, made from `words.toml`."""

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

from .. import __version__
from ..answers.alignment import MODELS, Rollout
from ..answers.engines import Engine
from ..answers.fit import VARY
from ..answers.headroom import EXPANDABLE, Headroom
from ..answers.serving import CACHE_TYPES, CACHES, WEIGHTS
from ..ask.choices import CHOICES, LIMITS, LOOPS, OWNED
from ..ask.lengths import COLLATORS, ORDERS
from ..ask.mesh import Mesh
from ..ask.objectives import REFERENCES
from ..ask.setup import Lora, Setup
from ..catalog.models import CODES
from ..common import checks, files, terminal
from .completion import SHELLS

#: `words.toml`: commands, groups of arguments, and the command's other texts.
SAID = files.toml(__package__, "words.toml")
#: Commands that take a script and its arguments after `--`.
SCRIPTED = ("rehearse", "diff", "bisect", "doctor")
#: Exit status -> when it is returned.
STATUSES = {int(status): said for status, said in SAID["statuses"].items()}
#: Option, or field of a setup -> its allowed words, for the help and for completion.
ALLOWED: dict[str, tuple[str, ...]] = dict(CHOICES) | {
    "method": tuple(MODELS), "vary": VARY, "reference": REFERENCES, "cache": CACHES, "cache_dtype": tuple(CACHE_TYPES),
    "weights": WEIGHTS, "answer": tuple(SAID["schemas"]), "shell": SHELLS, "collate": tuple(COLLATORS), "order": tuple(ORDERS), "code": CODES, "conf": (EXPANDABLE,),
}  # fmt: skip


@cache
def schemas() -> dict[str, dict[str, Any]]:
    """Command -> the JSON Schema of its answer, as tools/schemas.py writes them."""
    return files.parsed(files.text(__package__, "schemas.json"))


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise ValueError(f"{message}; see {self.prog} --help")

    def _print_message(self, message, file=None):
        terminal.write(message, file or sys.stdout)


def own(arguments: Sequence[str]) -> Sequence[str]:
    """The words of the command itself, without those of a script."""
    scripted = arguments[:1] and arguments[0] in SCRIPTED and "--" in arguments
    return arguments[: list(arguments).index("--")] if scripted else arguments


def read(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of the command in some words. Raise ValueError for an unknown word."""
    arguments, script = list(own(arguments)), arguments[len(own(arguments)) + 1 :]
    whole, commands = parsers()
    first = arguments[0]
    if first == "help":
        arguments = [*arguments[1:], "--help"]
    elif not first.startswith("-"):
        checks.one_of("command", "name", first, commands)
    elif not any(option.startswith(first) for option in whole._option_string_actions):
        raise ValueError(
            f"{checks.shown(first)} before the command; allowed: --help, --version; a command's own options stand after it"
        )
    options, unknown = whole.parse_known_args(arguments)
    options.given = _given(commands[options.command], arguments)
    if options.command in SCRIPTED:
        options.script = script
    if unknown:
        _refuse(commands[options.command], options.command, arguments[1:], unknown[0], script)
    return options


def _given(parser, arguments):
    """The options that are among some words, each by its own name or by the beginning that argparse took for it."""
    known, found = parser._option_string_actions, set()
    for name in (word.partition("=")[0] for word in arguments if word.startswith("--") and word != "--"):
        found |= {known[name].dest} if name in known else {a.dest for o, a in known.items() if o.startswith(name)}
    return found


def _refuse(parser, command, arguments, word, script):
    """Raise ValueError for a word that a command does not know. script: the words after `--`."""
    if command in SCRIPTED and (not word.startswith("-") or word.partition("=")[0] == "--script"):
        place = arguments.index(word)
        words = [word.removeprefix("--script").removeprefix("="), *arguments[place + 1 :], *script]
        words = list(filter(None, words)) or ["train.py"]
        python = ["python"] if words[0].endswith(".py") else []
        right = shlex.join(["everybyte", command, *arguments[:place], "--", *python, *words])
        raise ValueError(
            f"{command}: {checks.shown(word)} before the --; allowed: the script and its arguments after it, {right}"
        )
    if word.startswith("-"):
        checks.one_of(command, "option", word, [o for o in parser._option_string_actions if o.startswith("--")])
    taken = ", ".join(action.dest for action in parser._actions if not action.option_strings) or "none"
    raise ValueError(f"{command}: {checks.shown(word)} is a word too many; allowed: {taken}; see {parser.prog} --help")


def parsers() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """(The parser of the whole command, that of each command by its name)."""
    statuses = "; ".join(f"{status} {said}" for status, said in STATUSES.items())
    whole = _Parser("everybyte", description=SAID["description"], epilog=SAID["epilog"].format(statuses=statuses))
    whole.add_argument("--version", action="version", version=f"everybyte {__version__}")
    commands = whole.add_subparsers(required=True, metavar="command")
    for name, said in SAID["commands"].items():
        parser = commands.add_parser(name, help=said["help"], description=said["help"])
        parser.set_defaults(command=name)
        for group in ("json", *said["takes"]):
            for argument, row in _arguments(group).items():
                parser.add_argument(argument, **row)
    return whole, commands.choices


@cache
def _arguments(group: str) -> dict[str, dict[str, Any]]:
    """{argument: argparse's options for it}, from a group of `words.toml` or a class's fields."""
    if group == "headroom":
        return {
            f"--keep-{f.name}": {"default": f.default, "metavar": "SIZE", "help": f"kept free of tensors: {f.name}, as 500MiB"}
            for f in fields(Headroom)
        }  # fmt: skip
    if group == "setup":
        return {f"--{f.name.replace('_', '-')}": _field(f) for f in fields(Setup)}
    names = {name: ", ".join(words) for name, words in ALLOWED.items()}
    return {
        argument: {name: TYPES[value] if name == "type" else value for name, value in said.items()}
        | {"help": said["help"].format(**names)}
        for argument, said in SAID["groups"][group].items()
    }


def _field(field):
    """argparse's options for a field of Setup; a boolean is a switch."""
    if isinstance(field.default, bool):
        return {"action": "store_true", "help": "a switch, off where it is not given"}
    usual = {"optimizer_impl": "the optimizer's first", "adapters": "none"} | dict.fromkeys(
        vars(LOOPS["plain"]), "the loop's"
    )
    usual |= {name: f"the model's own, or {value}" for name, value in OWNED.items()}
    kind = type(OWNED.get(field.name, field.default)).__name__
    return {
        "type": TYPES.get(field.name) or TYPES.get(kind), "default": field.default, "metavar": "VALUE",
        "help": f"{_allowed(field.name)} (default {usual.get(field.name, field.default)})",
    }  # fmt: skip


def _allowed(field):
    """The allowed values of a field of Setup, in words."""
    if field == "adapters":
        return f"'{Lora()}' or part of it: fields of a Lora; or none"
    if field == "mesh":
        return "'pipeline=2 tensor=8': fields of a Mesh; or none"
    if field in CHOICES:
        return ", ".join(CHOICES[field])
    if field in LIMITS:
        least, most = LIMITS[field]
        return f"{least} to {most:,}" if most > least else f"{least}"
    return "0 or more, below 1"


def _made(kind, allowed=""):
    """A function that reads a command's text as `kind`, and whose error says what is allowed."""

    def made(text):
        try:
            return kind(text)
        except ValueError as error:
            said = f"{checks.shown(text)}; allowed: {allowed}" if allowed else str(error)
            raise argparse.ArgumentTypeError(said) from error

    return made


#: Type, or field of Setup with fields of its own -> function that makes it from text.
TYPES: dict[str, Any] = {
    "int": _made(int, "a whole number, such as 1024"), "float": _made(float, "a number, such as 0.1"),
    "adapters": _made(lambda text: None if text == "none" else Lora.read(text)),
    "mesh": _made(lambda text: Mesh() if text == "none" else Mesh.read(text)),
    "engine": _made(Engine.read),
    "rollout": _made(lambda text: None if text == "none" else Rollout.read(text)),
}  # fmt: skip
