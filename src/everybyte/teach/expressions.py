"""Read and compare the reader's sympy expressions. Equal forms are one answer; an unproved one is not accepted.

Values for the letters can only refute an expression. It is right where sympy proves that its difference from the answer is zero.
"""

import math
import re
from fractions import Fraction
from random import Random

import sympy

from ..formulas.symbols import BY_SYMBOL, SYMBOLS

_POINTS = 24
_MOST_BITS = 20_000
_MOST_TERMS = 3_000
_MOST_NODES = 300
_LONGEST_NUMBER = 1_000  # bits


def _plain_name(name):
    return re.sub(r"\\text|[{}\\\[\]\s]", "", name)


def constant(expr) -> Fraction:
    """The value of an expression without letters.

    Raises:
        ValueError: a sentence for the reader, where it has letters or no value.
    """
    if not isinstance(expr, sympy.Expr):
        raise ValueError(f"this is of type {type(expr).__name__}, not a number")
    letters = sorted(map(str, expr.free_symbols))
    if letters:
        raise ValueError(f"this still has letters: put numbers in for {', '.join(letters)}")
    _check_size(expr)
    try:
        return Fraction(_value(expr, {}))
    except OverflowError as error:
        raise ValueError("this number is too large to be an answer") from error


def read(answer: object) -> sympy.Expr:
    """The reader's expression, with its letters replaced by the book's symbols of the same name.

    Raises:
        ValueError: a sentence for the reader, where it is not an expression in the book's notation.
    """
    if isinstance(answer, str):
        raise ValueError("give the expression itself, made of sympy symbols, not text")
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        answer = sympy.Integer(answer) if isinstance(answer, int) else sympy.Float(answer)
    if not isinstance(answer, sympy.Expr):
        raise ValueError(f"this is of type {type(answer).__name__}, not a sympy expression")
    _check_size(answer)
    known = {name: entry.symbol for name, entry in SYMBOLS.items()}
    known |= {_plain_name(str(entry.symbol)): entry.symbol for entry in SYMBOLS.values()}
    swap = {letter: known.get(_plain_name(str(letter))) for letter in answer.free_symbols}
    if unknown := sorted(str(letter) for letter, symbol in swap.items() if symbol is None):
        raise ValueError(f"not in the book's notation: {', '.join(unknown)}")
    return answer.xreplace(swap)


def equal(one: sympy.Expr, other: sympy.Expr) -> bool | None:
    """Whether two expressions are equal; None where they agree at all points tried, without a proof.

    Raises:
        ValueError: where no number can be computed from them.
    """
    if one == other:
        return True
    letters = sorted(one.free_symbols | other.free_symbols, key=str)
    random, trouble = Random(0), []
    for _ in range(_POINTS):
        point = {letter: Fraction(random.randint(2, 40)) for letter in letters}
        try:
            if not _agree(_value(one, point), _value(other, point)):
                return False
        except (ValueError, ArithmeticError) as error:
            trouble.append(error)
    if len(trouble) == _POINTS:
        raise ValueError(str(trouble[0]))
    if _terms(one) + _terms(other) > _MOST_TERMS:
        return None
    difference = sympy.expand(one - other)
    return True if difference == 0 or sympy.simplify(difference) == 0 else None


def describe(right: sympy.Expr, given: sympy.Expr) -> str:
    """How a wrong expression differs from the right one, in words that do not reveal the answer."""
    extra = given.free_symbols - right.free_symbols
    absent = right.free_symbols - given.free_symbols
    if _terms(right) > _MOST_TERMS or _terms(given) > _MOST_TERMS:
        return "The two differ when numbers are put in."
    if given == 0:
        return "It is zero."
    ratio = sympy.cancel(given / right)
    if ratio.is_Number:
        return f"It is the right expression times {ratio}."
    for letter in sorted(given.free_symbols | right.free_symbols, key=str):
        if ratio == letter:
            return f"The factor {letter} ({_meaning(letter)}) does not belong."
        if ratio == 1 / letter:
            return f"The factor {letter} ({_meaning(letter)}) is missing."
    words = [f"does not depend on {s} ({_meaning(s)}), and should" for s in sorted(absent, key=str)]
    words += [f"depends on {s} ({_meaning(s)}), and should not" for s in sorted(extra, key=str)]
    if words:
        return f"It {'; it '.join(words)}."
    have, want = (dict(sympy.expand(e).as_coefficients_dict()) for e in (given, right))
    differ = sorted((m for m in have.keys() | want.keys() if have.get(m) != want.get(m)), key=str)
    if len(differ) > 1:
        strange, absent = len(have.keys() - want.keys()), len(want.keys() - have.keys())
        counts = {"missing": absent, "not in the answer": strange}
        counts["with another factor"] = len(differ) - strange - absent
        return f"Terms {', '.join(f'{what}: {count}' for what, count in counts.items() if count)}."
    what = "The constant term" if differ[0] == 1 else f"The term in {differ[0]}"
    return f"{what} is missing." if differ[0] not in have else f"{what} differs; the others are right."


def _meaning(symbol):
    return BY_SYMBOL[symbol].meaning


def _agree(a, b):
    exact = isinstance(a, Fraction) and isinstance(b, Fraction)
    return a == b if exact else math.isclose(a, b, rel_tol=1e-9)


def _check_size(expr):
    """Raise where a comparison would take long: too many nodes, or numbers of hundreds of digits."""
    if sum(1 for _ in sympy.preorder_traversal(expr)) > _MOST_NODES:
        raise ValueError("this expression is too long to compare")
    if any(max(abs(n.p), n.q).bit_length() > _LONGEST_NUMBER for n in expr.atoms(sympy.Rational)):
        raise ValueError("a number in it is too large to be in an answer")


_FUNCTIONS = {
    sympy.Add: lambda *args: sum(args),
    sympy.Mul: lambda *args: math.prod(args),
    sympy.floor: lambda a: Fraction(math.floor(a)),
    sympy.ceiling: lambda a: Fraction(math.ceil(a)),
    sympy.Abs: abs,
    sympy.Max: max,
    sympy.Min: min,
    sympy.log: lambda a: math.log(a),
}


def _value(expr, point):
    """The value at `point`, a Fraction where possible, in bounded time for any expression.

    Raises:
        ValueError: where there is no value, it is too large, or a function is not used in the book.
    """
    if expr in point:
        return point[expr]
    if expr.is_Rational:
        return Fraction(int(expr.p), int(expr.q))
    if expr.is_Float or (expr.is_NumberSymbol and expr.is_real):
        return float(expr)
    try:
        args = [_value(arg, point) for arg in expr.args]
        if expr.is_Pow:
            return _power(*args)
        if expr.func in _FUNCTIONS and args:
            return _FUNCTIONS[expr.func](*args)
    except (ArithmeticError, TypeError) as error:
        raise ValueError("this has no value that could be computed") from error
    raise ValueError(f"this uses {expr.func.__name__}, which no answer needs")


def _power(base, exponent):
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if abs(exponent) * bits > _MOST_BITS:
            raise ValueError("this number is too large to be an answer")
        return base ** int(exponent)
    result = float(base) ** float(exponent)
    if isinstance(result, complex):
        raise ValueError("this is not a real number")
    return result


def _terms(expr):
    """An upper bound on the number of terms of `expr` when expanded."""
    if expr.is_Add:
        return min(sum(map(_terms, expr.args)), _MOST_TERMS + 1)
    if expr.is_Mul:
        return min(math.prod(map(_terms, expr.args)), _MOST_TERMS + 1)
    if expr.is_Pow and expr.exp.is_Integer and _terms(expr.base) > 1:
        return min(_terms(expr.base) ** min(abs(int(expr.exp)), 20), _MOST_TERMS + 1)
    return max(map(_terms, expr.args), default=1)
