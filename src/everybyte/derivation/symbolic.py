"""A derivation in sympy, and its conditions in words."""

from functools import lru_cache

import sympy

from ..step.amount import NAMES, USUAL, Amount, Quotient


@lru_cache(maxsize=4096)
def symbol(atom: str | Quotient):
    """A letter, as the book's notation has B and S; or a rounded quotient of letters."""
    if not isinstance(atom, Quotient):
        return sympy.Symbol(atom, integer=True, positive=True)
    inside, by = expression(atom.inside), atom.by
    return sympy.ceiling(inside / by) if atom.plus == by - 1 else sympy.floor((inside + atom.plus) / by)


@lru_cache(maxsize=4096)
def expression(amount: Amount):
    """An amount in sympy."""
    products = (
        sympy.Mul(sympy.Rational(c.numerator, c.denominator), *(symbol(atom) ** power for atom, power in m.atoms))
        for m, c in amount.terms
    )
    return sympy.Add(*products)


def maximum(expressions):
    """The largest of some expressions."""
    expressions = list(dict.fromkeys(expressions))
    return expressions[0] if len(expressions) == 1 else sympy.Max(*expressions, evaluate=False)


def by_highest(pairs):
    """From pairs (live bytes, value): the value that belongs to the most bytes, as a sympy expression."""
    if len({said for _, said in pairs}) == 1:
        return pairs[0][1]
    pieces = []
    for i, (mine, said) in enumerate(pairs[:-1]):
        others = (sympy.Ge(mine, other, evaluate=False) for j, (other, _) in enumerate(pairs) if j != i)
        pieces.append((said, sympy.And(*others)))
    return sympy.Piecewise(*pieces, (pairs[-1][1], True), evaluate=False)


def _condition(r, letter):
    x = symbol(letter)
    parts = [sympy.Eq(x, r.low)] if r.single else [sympy.Ge(x, r.low), sympy.Le(x, r.high)]
    if r.by > 1:
        test = sympy.Eq if r.multiples else sympy.Ne
        parts.append(test(sympy.Mod(x, r.by), 0))
    return sympy.And(*parts)


def _differ(case, one, other):
    """Whether two expressions differ where a case holds."""
    at = {symbol(letter): r.low for letter, r in case.ranges.items() if r.single}
    return one != other and one.subs(at) != other.subs(at)


def cases(derivation, expression):
    """The expression of each case, by pieces where they differ; the last piece's condition is left to `conditions`."""
    main = expression(derivation.main)
    pieces = []
    for case in derivation.cases:
        mine = main if case is derivation.main else expression(case)
        # pieces are not put in: sympy would compare them all again, for minutes
        compared = not (mine.has(sympy.Piecewise) or main.has(sympy.Piecewise))
        if _differ(case, mine, main) if compared else mine != main:
            held = (_condition(r, x) for x, r in case.ranges.items() if x in derivation.letters)
            pieces.append((mine, sympy.And(*held)))
    return sympy.Piecewise(*pieces, (main, True), evaluate=False) if pieces else main


def unlike(derivation) -> list:
    """The cases whose peak is not the main one's formula."""

    def peak(case):
        return maximum(map(derivation.expression, case.peak))

    main = peak(derivation.main)
    return [case for case in derivation.cases if _differ(case, peak(case), main)]


def conditions(derivation):
    """(in words, as a sympy condition, or None) of each condition."""
    said = []
    for letter in derivation.letters:
        name, x = NAMES.get(letter, letter), symbol(letter)
        low, high = derivation.range(name)
        words = f"{'a ' if letter in USUAL else ''}{name} from {low:,} to {high:,}"
        held = (x >= low) & (x <= high)
        ranges = {case.ranges[letter] for case in derivation.cases}
        if len({r.by for r in ranges}) == 1 and all(r.by > 1 and r.multiples for r in ranges):
            (by,) = {r.by for r in ranges}
            words, held = f"{words}, a multiple of {by}", held & sympy.Eq(sympy.Mod(x, by), 0)
        said.append((words, held))
    return said + [(f"not {place(derivation, ranges)} ({why})", None) for ranges, why in derivation.refused]


def place(derivation, ranges) -> str:
    """Where a case holds, in words."""
    said = []
    for letter, r in zip(derivation.every, ranges, strict=True):
        name = NAMES.get(letter, letter)
        low, high = derivation.range(name) if letter in derivation.letters else (r.low, r.high)
        if r.by == 1 and r.low <= low and high <= r.high:
            continue  # all that there is
        if r.single:
            said.append(f"{name} {r.low:,}")
        else:
            multiples = "" if r.by == 1 else f", {'multiples' if r.multiples else 'no multiples'} of {r.by}"
            said.append(f"{name} {r.low:,} to {r.high:,}{multiples}")
    return ", ".join(said) or "anywhere"
