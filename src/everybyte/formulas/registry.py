"""The registry: every formula of the book, by name."""

import math
import reprlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Number
from types import FunctionType

import sympy

from ..ask.mesh import OF
from ..ask.setup import Setup
from ..catalog import Model
from ..common import checks, files
from ..rules import Rule
from ..rules import formulas as rows
from .printing import compile_python, javascript
from .symbols import BY_SYMBOL, SYMBOLS

_SAID = files.entries(__package__, "formulas.toml")
_NOTES = _SAID.pop("notes")
_REGISTRY: dict[str, "Formula"] = {}


def bindings(model: Model | None, setup: Setup | None, symbols=None) -> dict[str, int]:
    """{name in code: value} of the `symbols`, by default all, that the model or the setup determines."""
    source = {"model": model, "setup": setup, "": None}
    entries = SYMBOLS.values() if symbols is None else symbols
    return {s.name: s.value(source[s.needs]) for s in entries if s.value and source[s.needs] is not None}


class Amount(int):
    """A whole number with its formula and the numbers put in. A notebook shows both."""

    def __new__(cls, value, formula, model, setup, values):
        self = super().__new__(cls, value)
        self.formula, self.model, self.setup, self.values = formula, model, setup, values
        return self

    def _repr_latex_(self):
        formula, model, setup = self.formula, self.model, self.setup
        named = set(self.values) - set(bindings(model, setup, formula.symbols))
        expr = formula.expr if model is None or named else formula.for_model(model, setup)
        entries = [BY_SYMBOL[s] for s in expr.free_symbols]
        values = bindings(model, setup, entries) | self.values
        gone = {e.symbol: values[e.name] for e in entries if values[e.name] == 0 or e.unit == "0 or 1"}
        digits = {e.symbol: _digits(values[e.name]) for e in entries}
        numbers = sympy.latex(expr.subs(gone), symbol_names=digits, mul_symbol="times", order="none")
        unit = rf"\ \text{{{formula.unit}}}" if formula.unit else ""
        return f"$\\displaystyle {numbers} = {_digits(self)}{unit}$"


def _digits(value: int) -> str:
    return f"{value:,}".replace(",", "{,}")


@dataclass(frozen=True, eq=False)
class Formula:
    """A named formula.

    Attributes:
        name: `topic.item`. title: in words. made: the expression, or a function that makes it when it is first needed.
        unit: `parameters`, `B`, `bit`, or empty for a pure number.
        source: paper and equation, or the code that it describes. chapter: the notebook that derives it.
        assumptions: under which it holds. rounded: as `made`, with each tensor rounded up; None where there is none.
        refuses: rules that name the models and setups for which it does not hold.
        when: of a kernel's own memory, the operation during which it lives.
    """

    name: str
    title: str
    made: sympy.Expr | Callable
    unit: str
    source: str
    chapter: str
    assumptions: tuple[str, ...] = ()
    rounded: sympy.Expr | Callable | None = None
    refuses: tuple[Rule, ...] = ()
    when: str = ""

    @cached_property
    def expr(self) -> sympy.Expr:
        """The expression."""
        return sympy.sympify(self.made() if isinstance(self.made, FunctionType) else self.made)

    def rounded_up(self) -> "Formula":
        """The same formula with each tensor rounded up to a multiple of the symbol `rounding`."""
        return self if self.rounded is None else replace(self, made=self.rounded, rounded=None)

    @cached_property
    def symbols(self):
        """The entries of the notation that it uses, in the notation's order."""
        used = self.expr.free_symbols
        if unknown := used - BY_SYMBOL.keys():
            raise ValueError(f"formula {self.name}: {unknown} is not in the notation")
        return [entry for entry in SYMBOLS.values() if entry.symbol in used]

    @cached_property
    def _names(self):
        return {entry.symbol: entry.name for entry in self.symbols}

    @cached_property
    def _python(self):
        return compile_python(self.expr, self._names)

    @cached_property
    def javascript(self) -> str:
        """The expression as a JavaScript arrow function of one object with the symbols' names as fields."""
        return javascript(self.expr, self._names)

    def __call__(self, **values):
        """The value, a plain Python number, from the symbols' values by name in code. Extra names are ignored.

        Raises:
            ValueError: where a symbol has no value, or several.
        """
        self._need(values)
        return self._python(**{e.name: self._one(e.name, values[e.name]) for e in self.symbols})

    def _one(self, name, value):
        """The value as a Python number: a product of numpy's 64-bit whole numbers would overflow silently."""
        if getattr(value, "shape", None):
            raise ValueError(
                f"formula {self.name}: {name} is an array; allowed: one number; formula.arrays takes arrays"
            )
        value = value.item() if hasattr(value, "dtype") else value
        if not isinstance(value, Number | sympy.Basic):  # text times a whole number is long text
            raise ValueError(f"formula {self.name}: {name} is {value!r}; allowed: a number")
        return value

    def arrays(self, **values):
        """The values over numpy arrays, which broadcast. Whole numbers are exact at any size: from 2**63 on Python's own."""
        import numpy

        self._need(values)
        given = [self._array(e.name, values[e.name]) for e in self.symbols]
        if not given:
            return self()
        points = zip(*(array.ravel().tolist() for array in numpy.broadcast_arrays(*given)), strict=True)
        found = [self._or_infinite(dict(zip(self._names.values(), point, strict=True))) for point in points]
        whole = all(isinstance(value, int) for value in found)
        kind = float if not whole else "int64" if max(map(abs, found), default=0) < 2**63 else object
        return numpy.array(found, kind).reshape(numpy.broadcast_shapes(*(array.shape for array in given)))

    def _or_infinite(self, values):
        try:
            return self._python(**values)
        except OverflowError:  # more than a float holds
            return math.inf

    def _array(self, name, value):
        import numpy

        try:
            array = numpy.asarray(value)
        except ValueError:
            said = f"formula {self.name}.{name}: {reprlib.repr(value)} is ragged"
            raise ValueError(f"{said}; allowed: numbers in rows of one length") from None
        return array if array.dtype.kind == "f" else checks.whole_numbers(f"formula {self.name}", name, array)

    def at(self, model: Model | None = None, setup: Setup | None = None, **values):
        """The value for a model and a setup; `values` replace or add symbols by name in code.

        Returns:
            An `Amount` where the value is whole, else a number.

        Raises:
            ValueError: where a symbol has no value, a name is not in the notation, or the formula does not hold for the
                model or the setup: the message names the field.
        """
        self.check(model, setup)
        for name in values:
            checks.one_of("formula", "symbol", name, SYMBOLS)
        values = bindings(model, setup, self.symbols) | values
        result = self(**values)
        return Amount(result, self, model, setup, values) if result == int(result) else result

    def check(self, model: Model | None, setup: Setup | None) -> None:
        """Raise ValueError where the formula was not derived for the model or the setup."""
        ruled = {entry.name for entry in self.symbols if entry.needs == "setup"}
        held: tuple[Rule, ...] = rows.UNADAPTED if ruled and "adapter_rank" not in ruled else ()
        if ruled and not self.name.startswith("workspace."):  # a kernel's, whatever runs around it
            held += rows.SPOKEN
        if ruled and {"parameters", "router_bias"} & {entry.name for entry in self.symbols}:
            held += rows.COUNTED
        if why := rows.refused(held, model, setup):
            raise ValueError(f"formula {self.name}: {why}")
        spoken = ruled | {OF.get(name) for name in ruled} | {self.name.partition(".")[0]}
        if setup is not None and ruled and (unknown := [name for name in setup.mesh.divided if name not in spoken]):
            raise ValueError(
                f"formula {self.name}: Setup.mesh: {setup.mesh}; allowed: none, or one without "
                f"{' and '.join(unknown)}, of which the formula does not speak; eb.budget answers"
            )
        if why := rows.refused(self.refuses, model, setup):
            raise ValueError(f"formula {self.name}: {why}")

    def given(self, **values):
        """The expression with some symbols, by name in code, replaced by numbers or expressions."""
        for name in values:
            checks.one_of("formula", "symbol", name, SYMBOLS)
        return self.expr.subs({SYMBOLS[name].symbol: value for name, value in values.items()})

    def for_model(self, model: Model, setup: Setup | None = None):
        """The expression for a model's architecture and a setup's switches and data types; dimensions stay letters.

        Conditions and absent parts are put in. `Min(B - 1, 1)` and the like, which tell a trivial dimension from
        others, become 1 where the model and the setup make them so. Raises as `at`.
        """
        self.check(model, setup)
        entries = [e for e in self.symbols if e.name != "parameters"]
        values = bindings(model, setup, entries)
        numbers = {e.name for e in entries if e.unit in ("0 or 1", "B") and e.needs} | {"block_norms", "states"}
        put = {name: value for name, value in values.items() if name in numbers or value == 0}
        width, heads = SYMBOLS["width"].symbol, SYMBOLS["heads"].symbol
        same = {
            "embedding_width": (model.embedding_width == model.width, width),
            "kv_heads": (model.kv_heads == model.heads, heads),
            "ffn_width": (model.ffn_width == 4 * model.width, 4 * width),
            "head_width": (model.head_width * model.heads == model.width, width / heads),
        }
        put |= {name: letter for name, (holds, letter) in same.items() if holds}
        trivial = {SYMBOLS[n].symbol for n in ("batch", "sequence", "heads") if values.get(n, 2) > 1}
        expr = self.expr.xreplace({sympy.Min(s - 1, 1): 1 for s in trivial})
        # All at once: `subs` puts in one after the other, and compares the sides of every Max again after each.
        return sympy.expand(expr.xreplace({SYMBOLS[name].symbol: sympy.sympify(value) for name, value in put.items()}))

    def _repr_latex_(self):
        return f"$\\displaystyle {sympy.latex(self.expr)}$"

    def __repr__(self):
        return f"Formula({self.name!r}: {self.expr})"

    def _need(self, values):
        missing = [e for e in self.symbols if e.name not in values]
        if missing:
            who = sorted({e.needs or "value" for e in missing})
            names = ", ".join(f"{e.name} ({e.meaning})" for e in missing)
            raise ValueError(f"formula {self.name}: no value for {names}; give a {' and a '.join(who)}, or name it")


def register(name: str, made, rounded=None, said: str = "", of: str = "", refuses: tuple[Rule, ...] = ()) -> Formula:
    """Add a formula to the registry. A name is given once.

    Args:
        said: the name of its entry in `formulas.toml`; by default its own. of: replaces {} in the entry's title.
        refuses: rules for which it does not hold, where the entry names none.
    """
    if name in _REGISTRY:
        raise ValueError(f"formula.name: {name!r} is registered already")
    entry = {"unit": "B", "assumptions": [], **_SAID[said or name]}
    entry["title"] = entry["title"].format(of)
    entry["assumptions"] = tuple(_NOTES.get(text, text) for text in entry["assumptions"])
    entry["refuses"] = getattr(rows, entry["refuses"]) if "refuses" in entry else refuses
    _REGISTRY[name] = Formula(name=name, made=made, rounded=rounded, **entry)
    return _REGISTRY[name]


def registry() -> dict[str, Formula]:
    """Every formula, by name, in the book's order."""
    return dict(_REGISTRY)


def formula(name: str) -> Formula:
    """The formula of that name.

    Raises:
        ValueError: where there is none; the message names near matches.
    """
    checks.one_of("formula", "name", name, _REGISTRY)
    return _REGISTRY[name]
