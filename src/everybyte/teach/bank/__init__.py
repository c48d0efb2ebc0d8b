"""The exercises of each chapter: their texts in `cNN.toml`, their answers in `ANSWERS` of `cNN.py`.

An exercise has the same id in both. A mistake has one name in both, a sentence there and a wrong answer here: often the
right function with the argument of that name changed. For the files of answers: `run` and `Run` ask about a step, and `answers`,
`each` and `program` collect right and wrong answers.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from inspect import signature
from typing import Any

from ...ask.mesh import Mesh
from ...ask.setup import Lora, Setup
from ...catalog import gpu, model
from ...common import checks
from ...formulas import formula
from .. import texts
from ..asking import Run, run
from ..exercise import Exercise
from ..program import Case, Program, alike, close, equal, named_shapes, small_gpts, small_llamas, small_models

MIB, GIB = 2**20, 2**30


@dataclass(frozen=True)
class Answers:
    """The right answer, the wrong ones by name, and for a `Program` its cases and its comparison."""

    right: Callable[[], object]
    wrong: Mapping[str, object]
    more: Mapping[str, Callable] = field(default_factory=dict)


def answers(right: Any, /, **wrong: Any) -> Answers:
    """The answers of an exercise on an amount or an expression. right: a value, or a function that computes it later.

    A wrong answer is a value or a function too. Where `right` is a function with an argument of its name, the wrong answer is the
    function's value with that argument changed; a dict changes several arguments.
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


def each(function: Callable, /, **arguments: Any) -> dict[str, Any]:
    """{name: the function's value for its arguments}: a tuple of them, a dict, or one."""

    def given(some):
        return function(**some) if isinstance(some, dict) else function(*some if isinstance(some, tuple) else (some,))

    return {name: given(some) for name, some in arguments.items()}


def program(right: Callable, cases: Callable[[], Iterable[Case]], agree: Callable = equal, /, **wrong: Any) -> Answers:
    """The answers of a `Program`. The wrong ones are functions too, or `right` with the argument of their name changed."""
    wrong = {name: _giving(function) for name, function in answers(right, **wrong).wrong.items()}
    return Answers(_giving(right), wrong, {"cases": cases, "agree": agree})


def _giving(value):
    return lambda: value


def joined(chapter: str, said: dict[str, dict], computed: dict[str, Answers]) -> dict[str, Exercise]:
    """A chapter's exercises, from its file's tables and their answers.

    Raises:
        ValueError: naming the file, the exercise and the field, where text and answers do not match.
    """
    file = f"c{chapter}.toml"
    _same(file, "exercise", said, computed)
    for id in said:
        if not id.startswith(f"{chapter}."):
            raise ValueError(f"{file}: {id} is not of chapter {chapter}")
    return {id: _exercise(f"{file}: {id}", id, entry, computed[id]) for id, entry in said.items()}


def _exercise(owner, id, entry, computed):
    kind = Program if computed.more else Exercise
    known = {f.name: f for f in fields(kind) if f.name not in ("id", "answer", *computed.more)}
    if computed.more:
        del known["accepts"]
    checks.table(owner, entry, [n for n, f in known.items() if f.default is f.default_factory is MISSING], known)
    entry = {"mistakes": {}, "factors": {}} | entry
    for name, wanted in (("hints", list), ("mistakes", dict), ("factors", dict)):
        checks.kind(owner, name, entry[name], wanted)
    _same(owner, "mistakes", entry["mistakes"], computed.wrong)
    mistakes = {}
    for name, sentence in entry["mistakes"].items():
        texts.some(owner, f"mistakes.{name}", sentence)
        if sentence in mistakes:
            raise ValueError(f"{owner}.mistakes: one sentence under two names; allowed: one each")
        mistakes[sentence] = computed.wrong[name]
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
