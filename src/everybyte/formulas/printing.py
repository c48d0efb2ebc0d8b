"""One expression, three programs: Python for integers, numpy for arrays, JavaScript for the browser.

All three keep whole numbers whole: a quotient inside floor or ceiling is printed as a division of two
integers, never as a product with a fraction (`floor(a/49)` as `(1/49)*a` gives 0 for a = 49).
"""

import math
import re
from functools import lru_cache

import sympy
from sympy.printing.jscode import JavascriptCodePrinter
from sympy.printing.pycode import PythonCodePrinter

#: Stand-ins, which sympy does not take apart, compare or reorder: a rounded quotient stays two whole numbers, and a
#: maximum of many long sums costs nothing to rebuild.
_STAND_INS = {f: sympy.Function(f"_{f.__name__}") for f in (sympy.ceiling, sympy.floor, sympy.Max, sympy.Min)}


def _functions(**forms):
    """How each stand-in is printed: by a function's name, or by what makes text of its arguments' texts."""
    return {f"_{name}": form if isinstance(form, str) else [(lambda *_: True, form)] for name, form in forms.items()}


def _folded(function):
    """Prints calls of a function of two arguments, within one another, for many."""

    def text(first, *rest):
        for arg in rest:
            first = f"{function}({first}, {arg})"
        return first

    return text


def _cases(printer, expr, form, otherwise):
    """A piecewise expression as nested conditions."""
    text = otherwise
    for value, condition in reversed(expr.args):
        value = printer._print(value)
        text = value if condition is sympy.true else form.format(printer._print(condition), value, text)
    return text


_QUOTIENTS = {"ceiling": "(-(-({}) // ({})))".format, "floor": "(({}) // ({}))".format}


class _Python(PythonCodePrinter):
    functions = _functions(**_QUOTIENTS, Max="max", Min="min")

    def __init__(self):
        super().__init__({"fully_qualified_modules": True, "user_functions": self.functions})


class _Numpy(_Python):
    functions = _functions(**_QUOTIENTS, Max=_folded("numpy.maximum"), Min=_folded("numpy.minimum"))

    def _print_Pow(self, expr, **settings):
        """Powers of two as floats: numpy's whole numbers have no 2**-14, and 2**127 passes their 64 bits."""
        if expr.base != 2:
            return super()._print_Pow(expr, **settings)
        return f"numpy.ldexp(1.0, numpy.asarray({self._print(expr.exp)}).astype(int))"

    def _print_And(self, expr):
        return "(" + " & ".join(f"({self._print(arg)})" for arg in expr.args) + ")"

    def _print_Or(self, expr):
        return "(" + " | ".join(f"({self._print(arg)})" for arg in expr.args) + ")"

    def _print_Piecewise(self, expr):
        return _cases(self, expr, "numpy.where({}, {}, {})", "numpy.nan")


class _JavaScript(JavascriptCodePrinter):
    def __init__(self, fields):
        quotients = {"ceiling": "Math.ceil(({}) / ({}))".format, "floor": "Math.floor(({}) / ({}))".format}
        super().__init__({"user_functions": _functions(**quotients, Max="Math.max", Min="Math.min")})
        self._fields = frozenset(fields)

    def _print_Symbol(self, expr):
        name = super()._print_Symbol(expr)
        return f"v.{name}" if expr.name in self._fields else name

    def _print_Piecewise(self, expr):
        return _cases(self, expr, "(({}) ? ({}) : ({}))", "NaN")


def _program(printer, exprs, names):
    """(assignments, results) as text, common subexpressions taken out, symbols renamed to `names`."""
    shared, results = _shared(tuple(exprs), tuple(names.items()))
    return [(str(s), printer.doprint(e)) for s, e in shared], [printer.doprint(e) for e in results]


@lru_cache(maxsize=512)
def _shared(exprs, names):
    """(assignments, results) as expressions: the languages that a formula is printed in have them in common."""
    known = {s: sympy.Symbol(name) for s, name in names}
    exprs = [_inert(e, known) for e in exprs]
    return sympy.cse(exprs, symbols=sympy.numbered_symbols("t_"), optimizations=[], order="none")


def _inert(expr, known):
    """The expression with stand-ins, its symbols renamed; `known` remembers what has been rewritten."""
    if expr not in known:
        args = expr.args[0].as_numer_denom() if expr.func in (sympy.ceiling, sympy.floor) else expr.args
        known[expr] = _STAND_INS.get(expr.func, expr.func)(*(_inert(arg, known) for arg in args)) if args else expr
    return known[expr]


def compile_python(exprs, names, arrays=False):
    """A function of the names' values, by keyword, that returns the list of the expressions' values.

    Extra keywords are ignored. With `arrays` the values may be numpy arrays, which broadcast.
    """
    lines, results = _program((_Numpy if arrays else _Python)(), exprs, names)
    body = "".join(f"    {name} = {text}\n" for name, text in lines)
    given = "*, " * bool(names) + "".join(f"{name}, " for name in names.values())
    source = f"def program({given}**_):\n{body}    return [{', '.join(results)}]\n"
    modules = {name: __import__(name) for name in ("math", "numpy") if re.search(rf"\b{name}\.", source)}
    exec(source, modules)  # noqa: S102 the source is printed from the registry's expressions, nothing else
    return modules["program"]


def magnitude(expr, names, most) -> int:
    """A bound on the size of every whole number that the numpy program meets where no name's value exceeds `most`."""
    shared, (result,) = _shared((expr,), tuple(names.items()))
    known = {sympy.Symbol(name): abs(value) for name, value in most.items()}
    for name, part in shared:
        known[name] = _magnitude(part, known)
    return _magnitude(result, known)


def _magnitude(expr, known):
    if expr not in known:
        parts = [_magnitude(part, known) for part in expr.args]
        if expr.is_Number:
            size = 1 + abs(int(expr.p)) if expr.is_Rational else 1
        elif expr.is_Pow:
            size = max(1, parts[0]) ** int(expr.exp) if expr.exp.is_Integer and expr.exp > 0 else 1
        elif expr.is_Mul:
            size = math.prod(max(1, part) for part in parts)
        else:
            size = sum(parts)
        known[expr] = size
    return known[expr]


def javascript(expr, names) -> str:
    """An arrow function of one object whose fields are the names: `(v) => …`."""
    lines, (result,) = _program(_JavaScript(names.values()), [expr], names)
    return "(v) => { " + "".join(f"const {name} = {text}; " for name, text in lines) + f"return {result}; }}"
