"""The exercises of each chapter: what is said of them in `cNN.toml`, what is computed in `ANSWERS` of `cNN.py`.

An exercise has the same id in both. A mistake has one name in both, a sentence there and a wrong answer here. What the
files of answers need stands here once: `run` and `Run` ask about a step, `answers` and `program` say what is right and wrong.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from importlib import import_module
from inspect import signature
from typing import Any

from ...ask.setup import Setup
from ...catalog import gpu, model
from ...common import checks
from ...formulas import formula
from .. import texts
from ..asking import Run, run
from ..exercise import Exercise
from ..program import Case, Program, close, named_shapes, small_gpts, small_llamas, small_models

#: What an exercise has from Python; all else it has from TOML.
_COMPUTED = ("id", "answer", "cases", "agree")


@dataclass(frozen=True)
class Answers:
    """What is computed: the right answer, the wrong ones by name, and of a `Program` its cases and what agrees."""

    right: Callable[[], object]
    wrong: Mapping[str, object]
    more: Mapping[str, Callable] = field(default_factory=dict)


def answers(right: Any, /, **wrong: Any) -> Answers:
    """An amount's or an expression's: a value, or a function that computes it when it is asked for.

    A wrong one is a value or a function too. Where the right one is a function with an argument of that name, it is what the
    function gives with the argument changed; a dict changes several.
    """
    if not callable(right):
        return Answers(_giving(right), wrong)
    known = signature(right).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())

    def other(name, how):
        if isinstance(how, dict):
            return partial(right, **how)
        return partial(right, **{name: how}) if not callable(how) and (takes_any or name in known) else how

    return Answers(right, {name: other(name, how) for name, how in wrong.items()})


def program(
    right: Callable, cases: Callable[[], Iterable[Case]], agree: Callable | None = None, /, **wrong: Any
) -> Answers:
    """A function's: a wrong one is the right one with the argument of its name changed, or a function of its own."""
    made: dict[str, Callable] = {
        name: how if callable(how) else partial(right, **{name: how}) for name, how in wrong.items()
    }
    more = {"cases": cases} | ({"agree": agree} if agree else {})
    return Answers(_giving(right), {name: _giving(function) for name, function in made.items()}, more)


def _giving(value):
    return lambda: value


def read(chapter: str) -> dict[str, Exercise]:
    """A chapter's by id, in the order of its TOML.

    Raises:
        ValueError: naming the file, the exercise and the field, where text and answers do not belong together.
    """
    said = texts.read(__name__, f"c{chapter}.toml")
    return joined(chapter, said, import_module(f".c{chapter}", __name__).ANSWERS)


def joined(chapter: str, said: dict[str, dict], computed: dict[str, Answers]) -> dict[str, Exercise]:
    """A chapter's exercises, from its file's tables and what is computed for each."""
    file = f"c{chapter}.toml"
    _same(file, "exercise", said, computed)
    found = {id: _exercise(f"{file}: {id}", id, entry, computed[id]) for id, entry in said.items()}
    for id, exercise in found.items():
        if exercise.chapter != chapter:
            raise ValueError(f"{file}: {id} is not of chapter {chapter}")
    return found


def _exercise(owner, id, entry, computed):
    kind = Program if computed.more else Exercise
    known = [f for f in fields(kind) if f.name not in (*_COMPUTED, *["accepts"] * bool(computed.more))]
    needed = [f.name for f in known if f.default is f.default_factory is MISSING]
    texts.check(owner, entry, needed, [f.name for f in known])
    entry = {"mistakes": {}, "factors": {}} | entry
    for name, wanted in (("hints", list), ("mistakes", dict), ("factors", dict)):
        checks.kind(owner, name, entry[name], wanted)
    sentences = entry["mistakes"]
    _same(owner, "mistakes", sentences, computed.wrong)
    for name, sentence in sentences.items():
        texts.some(owner, f"mistakes.{name}", sentence)
    mistakes = {sentence: computed.wrong[name] for name, sentence in sentences.items()}
    if len(mistakes) < len(sentences):
        raise ValueError(f"{owner}.mistakes: one sentence under two names; allowed: one each")
    try:
        said = entry | {"hints": tuple(entry["hints"]), "mistakes": mistakes}
        return kind(id=id, answer=computed.right, **computed.more, **said)
    except ValueError as error:
        raise ValueError(f"{owner}: {error}") from None


def _same(owner, what, said, computed):
    """Raise unless both have the same names."""
    for names, where in ((said.keys() - computed.keys(), "Python"), (computed.keys() - said.keys(), "TOML")):
        if names:
            raise ValueError(f"{owner}.{what}: {', '.join(sorted(names))} missing in {where}")
