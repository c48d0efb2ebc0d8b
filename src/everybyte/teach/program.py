"""Exercises whose answer is a function: the reader's and the library's run on the same small cases."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from random import Random
from textwrap import shorten
from typing import Any, ClassVar

from ..catalog import Model
from ..catalog.weights import weights
from . import texts
from .callout import Callout
from .exercise import Exercise
from .quantities import missing
from .texts import sentence

_FAILED = object()


@dataclass(frozen=True)
class Case:
    """One call: its name for the reader, the arguments, the library's result, and a context around the call."""

    name: str
    arguments: tuple
    right: object
    within: Callable[[], AbstractContextManager] = nullcontext


def equal(given: Any, right: Any) -> bool:
    """Whether two numbers, or tuples of numbers, are equal. True and False are not numbers."""
    return not isinstance(given, bool) and bool(given == right)


def alike(given: Any, right: Any) -> bool:
    """Whether two results are equal, with any types of sequences and dicts."""
    if isinstance(right, list | tuple):
        return all(alike(a, b) for a, b in zip(given, right, strict=True))
    return bool((dict(given) if isinstance(right, dict) else given) == right)


@dataclass(frozen=True, kw_only=True)
class Program(Exercise):
    """An exercise that takes a function.

    Attributes:
        call: its call, such as "count(model)".
        cases: a function that returns the cases, the same each time.
        agree: compares the function's result with the library's; by default equality of numbers.
        answer, mistakes: functions that return a right program, and wrong ones by their sentences.

    A call gets copies of the arguments. The reader must interrupt a function that never ends.
    """

    ACCEPTED: ClassVar[tuple[str, ...]] = ("function",)

    call: str
    cases: Callable[[], Iterable[Case]]
    agree: Callable[[Any, Any], bool] = equal
    accepts: str = "function"

    def __post_init__(self):
        texts.some("Program", "call", self.call)
        super().__post_init__()

    @property
    def wanted(self) -> str:
        """The call of the accepted function."""
        return self.call

    def right(self) -> Any:
        """A right function."""
        return self.answer()

    def judge(self, answer: object) -> Callout:
        """Judge a function as right, wrong at its first wrong case, not attempted or unreadable. The reader's errors are caught."""
        nothing = self.said("not attempted yet", f"In JupyterLab: write {self.call} and run the cell again.")
        if missing(answer):
            return nothing
        if not callable(answer):
            kind = shorten(type(answer).__name__, 40)
            return self.said("could not be read", f"This is of type {kind}, and it takes a function, {self.wanted}.")
        cases, given = list(self.cases()), []
        for case in cases:
            value, fault = self._run(answer, case)
            if not given and not fault and missing(value):
                return nothing
            given.append(value)
            if fault or not self._agrees(value, case.right):
                said = fault or f"yours gives {_shown(value)}, the library {_shown(case.right)}."
                return self.said("not yet", f"{case.name}: {said}{self._named(cases, given)}")
        return self.said("right", f"Equal to the library in all {len(cases)} cases.")

    def _run(self, function, case):
        """(the function's result, a sentence on what went wrong or "")."""
        arguments = deepcopy(case.arguments)
        try:
            with case.within():
                return function(*arguments), ""
        except (Exception, SystemExit) as error:
            return _FAILED, f"yours raises {shorten(type(error).__name__, 40)}: {_said(error)}."

    def _agrees(self, given, right):
        try:
            return given is not _FAILED and bool(self.agree(given, right))
        except Exception:
            return False

    def _named(self, cases, given):
        """The known mistake with the same results, or the same failure, in all cases so far; None where there is none."""
        for message, wrong in self.mistakes.items():
            function = wrong()
            theirs = [self._run(function, case)[0] for case in cases[: len(given)]]
            if all(b is _FAILED if a is _FAILED else self._agrees(a, b) for a, b in zip(given, theirs, strict=True)):
                return f" {sentence(message)}"
        return ""


def _shown(value):
    try:
        text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else repr(value)
    except Exception:
        return f"something of type {shorten(type(value).__name__, 40)}"
    return shorten(text, 60, placeholder=" …") if len(text) <= 2000 else f"{text[:50]} …"


def _said(error):
    try:
        return shorten(str(error), 120) or "no message"
    except Exception:
        return "no message"


def close(given: Iterable[Any], right: Iterable[Any]) -> bool:
    """Whether gradients are right: the same number of tensors, equal up to the rounding of doubles summed in another order."""
    pairs = zip(given, right, strict=True)
    return all(a.shape == b.shape and float((a - b).abs().max()) < 1e-9 for a, b in pairs)


def named_shapes(model: Model) -> list[tuple[str, tuple[int, ...]]]:
    """(name, shape) of each weight, in the order of `named_parameters()`."""
    blocks = [(f"blocks.{i}.", ("block", "dense")) for i in range(model.layers)]
    places = [("", ("embeddings",)), *blocks, ("", ("last",))]
    kept = [w for w in weights(model) if w.count]
    return [(f"{place}{w.name}", tuple(w.shape)) for place, groups in places for w in kept if w.group in groups]


def small_gpts(seed: int, number: int) -> list[Model]:
    """Some small models of GPT-2's architecture, the same for the same seed."""
    draw = Random(seed)
    return [
        Model(name=f"small GPT {i}", layers=draw.randint(1, 4), vocabulary=draw.randint(50, 400), positions=64,
              heads=(heads := draw.choice((1, 2, 4))), width=heads * 8 * draw.randint(1, 4), tied=draw.random() < 0.5)
        for i in range(1, number + 1)
    ]  # fmt: skip


def small_llamas(seed: int, number: int) -> list[Model]:
    """Some small models of Llama's architecture with grouped heads, the same for the same seed."""
    draw = Random(seed)
    return [
        Model(name=f"small Llama {i}", layers=draw.randint(1, 4), vocabulary=draw.randint(50, 400), positions=64, learned_positions=0,
              kv_heads=(groups := draw.choice((1, 2))), heads=(heads := groups * draw.choice((1, 2, 4))),
              width=heads * 8 * draw.randint(1, 3), ffn_width=8 * draw.randint(4, 30), gated=True, fused=False,
              tied=draw.random() < 0.5, qkv_bias=False, out_bias=False, ffn_bias=False, norm="rmsnorm")
        for i in range(1, number + 1)
    ]  # fmt: skip


def small_models(seed: int, number: int) -> list[Model]:
    """`number` small models of each of the two architectures."""
    return small_gpts(seed, number) + small_llamas(seed, number)
