"""One expression, two programs: Python, and JavaScript for the browser.

Both keep whole numbers whole: a quotient inside floor or ceiling is printed as a division of two integers, never as a
product with a fraction (`floor(a/49)` as `(1/49)*a` gives 0 for a = 49).
"""

import math
from functools import lru_cache
from typing import Any

import sympy
from sympy.printing.jscode import JavascriptCodePrinter
from sympy.printing.pycode import PythonCodePrinter

#: Stand-ins that sympy neither simplifies nor reorders: a rounded quotient keeps its two whole numbers, and a maximum of
#: many long sums is not compared again.
_STAND_INS = {f: sympy.Function(f"_{f.__name__}") for f in (sympy.ceiling, sympy.floor, sympy.Max, sympy.Min)}


def _functions(**forms):
    """How sympy's printer writes each stand-in: a function's name, or a function of the arguments' texts."""
    return {f"_{name}": form if isinstance(form, str) else [(lambda *_: True, form)] for name, form in forms.items()}


class _Python(PythonCodePrinter):
    def __init__(self):
        quotients = {"ceiling": "(-(-({}) // ({})))".format, "floor": "(({}) // ({}))".format}
        functions = _functions(**quotients, Max="max", Min="min")
        super().__init__({"fully_qualified_modules": True, "user_functions": functions})


class _JavaScript(JavascriptCodePrinter):
    def __init__(self, fields):
        quotients = {"ceiling": "Math.ceil(({}) / ({}))".format, "floor": "Math.floor(({}) / ({}))".format}
        super().__init__({"user_functions": _functions(**quotients, Max="Math.max", Min="Math.min")})
        self._fields = frozenset(fields)

    def _print_Symbol(self, expr):
        name = super()._print_Symbol(expr)
        return f"v.{name}" if expr.name in self._fields else name

    def _print_Piecewise(self, expr):
        text = "NaN"
        for value, condition in reversed(expr.args):
            value = self._print(value)
            text = value if condition is sympy.true else f"(({self._print(condition)}) ? ({value}) : ({text}))"
        return text


def _program(printer, expr, names):
    """(assignments, result) as text: common subexpressions are computed once, symbols renamed to `names`."""
    shared, result = _shared(expr, tuple(names.items()))
    return [(str(s), printer.doprint(e)) for s, e in shared], printer.doprint(result)


@lru_cache(maxsize=512)
def _shared(expr, names):
    """(assignments, result) as expressions, the same for both languages."""
    inert = _inert(expr, {s: sympy.Symbol(name) for s, name in names})
    shared, (result,) = sympy.cse([inert], symbols=sympy.numbered_symbols("t_"), optimizations=[], order="none")
    return shared, result


def _inert(expr, known):
    """The expression with stand-ins in place of functions, its symbols renamed. `known`: what is rewritten already."""
    if expr not in known:
        args = expr.args[0].as_numer_denom() if expr.func in (sympy.ceiling, sympy.floor) else expr.args
        known[expr] = _STAND_INS.get(expr.func, expr.func)(*(_inert(arg, known) for arg in args)) if args else expr
    return known[expr]


def compile_python(expr, names):
    """A function of the names' values, by keyword, that returns the expression's value. Other keywords are ignored."""
    lines, result = _program(_Python(), expr, names)
    given = "*, " * bool(names) + "".join(f"{name}, " for name in names.values())
    body = "".join(f"    {name} = {text}\n" for name, text in lines)
    found: dict[str, Any] = {"math": math}
    source = f"def program({given}**_):\n{body}    return {result}\n"
    exec(source, found)  # noqa: S102 the source is printed from the registry's expressions, nothing else
    return found["program"]


def javascript(expr, names) -> str:
    """An arrow function of one object whose fields are the names: `(v) => …`."""
    lines, result = _program(_JavaScript(names.values()), expr, names)
    return "(v) => { " + "".join(f"const {name} = {text}; " for name, text in lines) + f"return {result}; }}"
