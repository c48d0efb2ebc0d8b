"""Compute the expressions of claims exactly; they are never evaluated as code.

An expression is in bytes, or bytes per second. Its names are symbols of the notation, in words; formulas; `budget.peak`, or
`heaviest.peak` for the GPU that needs the most, and others like these; `gpu.memory`. The name of one of the claim's runs may
precede each.
"""

import ast
import operator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from .. import units
from ..ask.setup import Setup
from ..catalog import Gpu, Model, gpu, model
from ..common import checks
from ..theory.budget import budget as predict
from ..theory.budget import heaviest
from .computed import FUNCTIONS

#: The longest expression, in characters; the largest number in it, in bits, so that a float can represent it.
_LONGEST, _BITS = 1000, 1000
_SETTING = ("model", "setup", "gpu", "format", "symbols", "runs")


def _power(base, exponent):
    """A whole power with at most `_BITS` bits."""
    if exponent.denominator != 1:
        raise ValueError(f"the power {exponent} is not allowed in an expression; allowed: whole ones, and sqrt")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(exponent) * bits > _BITS:
        raise ValueError(f"a power of more than {_BITS} bits is not allowed in an expression")
    return base ** int(exponent)


_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.Pow: _power,
}  # fmt: skip


class Reader:
    """Computes the expressions of one claim. changes: values in place of the claim's fields."""

    def __init__(self, claim, changes=None):
        self.claim, self.changes = claim, dict(changes or {})
        for name in self.changes:
            checks.one_of(f"claim {claim.id}", "given", name, ("value", "sample", *_SETTING))
        self.runs = {name: self._run(f".runs.{name}", run) for name, run in self.field("runs").items()}
        self.run = self._run("", {})

    def field(self, name):
        """The value in `changes`, or the claim's field."""
        return self.changes.get(name, getattr(self.claim, name))

    def computed(self) -> Fraction | str | None:
        """The value in the claim's unit, or PyTorch's message on its call; None where there is neither."""
        if self.claim.sample:
            return self.sample()
        return self.read("value") if self.claim.value or self.changes else None

    def read(self, name: str) -> Fraction:
        """The exact value of the expression in a field, in the claim's unit."""
        text = self.field(name)
        try:
            if len(text) > _LONGEST:
                raise ValueError(f"it has {len(text):,} characters; allowed: {_LONGEST} or fewer")
            found = Fraction(self._value(ast.parse(text, mode="eval").body))
            if abs(found) >= 2**_BITS:
                raise ValueError(f"it is 2**{_BITS} or more")
        except (ValueError, SyntaxError, ArithmeticError, TypeError, RecursionError, MemoryError) as error:
            shown = text if len(text) < 200 else text[:200] + "..."
            said = str(error) or "it is nested too deep"
            raise ValueError(f"claim {self.claim.id}.{name}: {shown!r}: {said}") from error
        return found / units.UNITS.get(self.claim.unit.removesuffix("/s"), 1)

    def sample(self) -> str:
        """PyTorch's message on the claim's call; "" where there is none."""
        from . import samples

        name = self.field("sample")
        checks.one_of(f"claim {self.claim.id}", "sample", name, samples.SAMPLES)
        return samples.outcome(name)

    def _run(self, where, run):
        setup, symbols = ({**getattr(self.claim, x), **self.changes.get(x, {})} for x in ("setup", "symbols"))
        try:
            asked = Setup(**{**setup, **run.get("setup", {})})
            device = run.get("gpu", self.field("gpu"))
            who, parameters = _model(run.get("model", self.field("model")))
            numbers = {**_format(self.field("format")), **symbols}
            return _Run(who, parameters, asked, gpu(device) if device else None, numbers)
        except (ValueError, TypeError) as error:
            raise ValueError(f"claim {self.claim.id}{where}: {error}") from error

    def _value(self, node):
        match node:
            case ast.Constant(value=number) if type(number) in (int, float):
                return Fraction(str(number))
            case ast.BinOp() if type(node.op) in _OPERATORS:
                return _OPERATORS[type(node.op)](self._value(node.left), self._value(node.right))
            case ast.UnaryOp(op=ast.USub()):
                return -self._value(node.operand)
            case ast.Compare(ops=[ast.Eq()], comparators=[ast.Constant(value=said)]):
                return Fraction(self._look_up(_dotted(node.left)) == said)
            case ast.Call(func=ast.Name(id=name), keywords=[]):
                checks.one_of("expression", "function", name, FUNCTIONS)
                return Fraction(FUNCTIONS[name](*map(self._argument, node.args)))
            case ast.Name() | ast.Attribute():
                return Fraction(self._look_up(_dotted(node)))
        raise ValueError(f"{ast.unparse(node)!r} is not allowed in an expression")

    def _argument(self, node):
        words = isinstance(node, ast.Constant) and isinstance(node.value, str)
        return node.value if words else self._value(node)

    def _look_up(self, name):
        first, _, rest = name.partition(".")
        return self.runs[first].look_up(rest) if first in self.runs else self.run.look_up(name)


def _dotted(node):
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    if isinstance(node, ast.Name):
        return node.id
    raise ValueError(f"{ast.unparse(node)!r} is not a name")


@dataclass(frozen=True)
class _Run:
    """The source of values for the names in an expression."""

    model: Model | None
    parameters: int | None
    setup: Setup
    gpu: Gpu | None
    symbols: dict

    def look_up(self, name):
        """The value of a name."""
        from ..formulas import SYMBOLS, bindings, registry

        first, _, rest = name.partition(".")
        if first == "gpu":
            return self._of_gpu(rest)
        if first in ("budget", "heaviest", "dry_run"):
            return self._of_witness(first, rest)
        given = self.symbols if self.parameters is None else {"parameters": self.parameters, **self.symbols}
        if name in given:
            return given[name]
        if name in registry():
            return registry()[name].at(self.model, self.setup, **given)
        checks.one_of("expression", "name", name, [*SYMBOLS, *registry(), "budget", "heaviest", "dry_run", "gpu"])
        values = bindings(self.model, self.setup, [SYMBOLS[name]])
        if name not in values:
            raise ValueError(f"no value for {name}; give a {SYMBOLS[name].needs or 'value in symbols'}")
        return values[name]

    def _of_gpu(self, name):
        if self.gpu is None:
            raise ValueError(f"no gpu for gpu.{name}")
        checks.one_of("expression", "gpu", name, ("memory", "advertised_gb", "bandwidth", "host_link"))
        return getattr(self.gpu, name)

    def _of_witness(self, witness, name):
        if self.model is None:
            raise ValueError(f"no model for {witness}.{name}")
        found = _witness(witness, self.model, self.setup)
        group, _, item = name.partition(".")
        if not item:
            simulated = ("requested", "allocated", "reserved") if witness == "dry_run" else ()
            checks.one_of("expression", witness, group, ("peak", "peak_at", *simulated))
            return getattr(found.on("h200") if group in simulated else found, group)
        amounts = getattr(found, group) if group in ("parts", "phases") else found.parts_at(group)
        checks.one_of("expression", f"{witness}.{group}", item, amounts)
        return amounts[item]


@cache
def _witness(witness, model, setup):
    if witness != "dry_run":
        return {"budget": predict, "heaviest": heaviest}[witness](model, setup)
    from ..dryrun import dry_run

    return dry_run(model, setup)


def _model(spec):
    """(model, None) from a name, dimensions, or changes to the model that `like` names; (None, count) from "7B"."""
    if not spec:
        return None, None
    if isinstance(spec, str):
        headline = spec.removesuffix("B")
        return (
            (None, int(headline) * 10**9)
            if headline.isdecimal() and headline != spec
            else (model(spec, "reference"), None)
        )
    changes = dict(spec)
    like = changes.pop("like", "")
    return (model(like, "reference").replace(**changes) if like else Model(**changes)), None


def _format(name):
    if not name:
        return {}
    from ..formulas.formats import BLOCKS, FLOATS

    checks.one_of("expression", "format", name, [*FLOATS, *BLOCKS])
    return {**FLOATS, **BLOCKS}[name]
