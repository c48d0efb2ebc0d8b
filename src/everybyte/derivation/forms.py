"""How many bytes one tensor has, as an exact function of batch and sequence: a polynomial, with what pads in it.

A form is a sum of monomials in B, S and rounded quotients such as floor((S + 15) / 16). It is solved in fractions from
the bytes at a few points, and accepted only where it gives the bytes at all others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import product
from math import gcd, prod

#: The letters of batch and sequence. A reader's own letters are other capital ones.
USUAL = "BS"
LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")


@dataclass(frozen=True, order=True)
class Quotient:
    """floor((X + `plus`) / `by`), X the product of the `letters`; or the sum `of` monomials, (monomial, times) each."""

    letters: str
    plus: int
    by: int
    of: "tuple[tuple[Monomial, int], ...]" = ()

    def at(self, batch: int, sequence: int, **further: int) -> int:
        """Its value; `further`: of the reader's own letters."""
        return (self.inside(batch, sequence, **further) + self.plus) // self.by

    def inside(self, batch, sequence, **further):
        """X."""
        if self.of:
            return sum(times * m.at(batch, sequence, **further) for m, times in self.of)
        return prod(({"B": batch, "S": sequence} | further)[letter] for letter in self.letters)


@dataclass(frozen=True, order=True)
class Monomial:
    """B^`b` S^`s`, times powers of quotients, (quotient, power) each, and of `further` letters, (letter, power) each."""

    b: int = 0
    s: int = 0
    quotients: tuple[tuple[Quotient, int], ...] = ()
    further: tuple[tuple[str, int], ...] = ()

    def at(self, batch: int, sequence: int, **further: int) -> int:
        """Its value; `further`: of the reader's own letters."""
        value = batch**self.b * sequence**self.s
        for letter, power in self.further:
            value *= further[letter] ** power
        for quotient, power in self.quotients:
            value *= quotient.at(batch, sequence, **further) ** power
        return value

    @property
    def powers(self) -> list[tuple[str, int]]:
        """(letter, power) of each letter that is not inside a quotient."""
        return [(letter, power) for letter, power in (("B", self.b), ("S", self.s), *self.further) if power]

    @property
    def degree(self) -> int:
        """The sum of all powers of letters."""
        return self.b + self.s + sum(power for _, power in self.further)

    def __mul__(self, other: "Monomial") -> "Monomial":
        quotients = _joined(self.quotients, other.quotients)
        return Monomial(self.b + other.b, self.s + other.s, quotients, _joined(self.further, other.further))


def _joined(one, other):
    """Powers of a product."""
    powers = dict(one)
    for base, power in other:
        powers[base] = powers.get(base, 0) + power
    return tuple(sorted(powers.items()))


ONE = Monomial()


@dataclass(frozen=True)
class Form:
    """A sum of monomials, each with its coefficient."""

    terms: tuple[tuple[Monomial, Fraction], ...]

    @classmethod
    def of(cls, terms: dict) -> "Form":
        return cls(tuple(sorted((m, Fraction(c)) for m, c in terms.items() if c)))

    def at(self, batch: int, sequence: int, **further: int) -> int:
        """Whole bytes; ValueError where it gives a fraction, which no tensor has."""
        value = sum((c * m.at(batch, sequence, **further) for m, c in self.terms), Fraction())
        if value.denominator != 1:
            raise ValueError(f"derive: {self.text()} is no whole number at batch {batch}, sequence {sequence}")
        return int(value)

    @cached_property
    def constant(self) -> int | None:
        """Its value where it depends on neither batch nor sequence; else None."""
        if not self.terms:
            return 0
        return int(self.terms[0][1]) if len(self.terms) == 1 and self.terms[0][0] == ONE else None

    def text(self, whole: str = "") -> str:
        """In Python; `whole`: how else a quotient that is rounded down is said, as "whole({0}, {1})"."""
        return sum_text(dict(self.terms), whole)

    def as_list(self) -> list:
        """As JSON holds it."""
        return [[c.numerator, c.denominator, *_listed(m)] for m, c in self.terms]

    @classmethod
    def read(cls, said: list) -> "Form":
        """The other way; ValueError, TypeError or KeyError where it is none."""
        return cls.of({_read(rest): Fraction(_whole(over), _whole(under)) for over, under, *rest in said})


def _listed(m):
    quotients = [
        [q.letters, q.plus, q.by, p, *([[[times, *_listed(inner)] for inner, times in q.of]] if q.of else [])]
        for q, p in m.quotients
    ]
    return [m.b, m.s, quotients, *([[list(pair) for pair in m.further]] if m.further else [])]


def _read(said):
    b, s, quotients, *further = said
    inside = []
    for letters, plus, by, power, *of in quotients:
        sums = tuple((_read(rest), _whole(times)) for times, *rest in (of[0] if of else ()))
        if not sums and (not letters or not set(letters) <= LETTERS):
            raise ValueError(f"derive: {letters!r} are no letters")
        inside.append((Quotient(str(letters), _whole(plus), _whole(by), sums), _whole(power)))
    powers = tuple((letter, _whole(power)) for letter, power in (further[0] if further else ()))
    if not {letter for letter, _ in powers} <= LETTERS - set(USUAL):
        raise ValueError("derive: letters of no reader's own")
    return Monomial(_whole(b), _whole(s), tuple(inside), powers)


def _whole(value):
    if type(value) is not int:
        raise ValueError(f"derive: {value!r} is no whole number")
    return value


def sum_text(terms: dict, whole: str = "") -> str:
    """A sum of monomials as a Python expression in B and S; whole numbers stay whole."""
    whole = whole or "(({0}) // {1})"
    if not terms:
        return "0"
    under = _common(terms.values())
    parts = [_product_text(m, int(c * under), whole) for m, c in terms.items()]
    text = " + ".join(parts)
    return text if under == 1 else whole.format(text, under)


def _product_text(monomial, coefficient, whole):
    factors = [str(coefficient)] if coefficient != 1 or monomial == ONE else []
    for letter, power in monomial.powers:
        factors += [letter] * power
    for q, power in monomial.quotients:
        inside = " + ".join(_product_text(m, times, whole) for m, times in q.of) if q.of else "*".join(q.letters)
        factors += [whole.format(f"{inside} + {q.plus}", q.by)] * power
    return "*".join(factors)


def _common(fractions):
    under = 1
    for f in fractions:
        under = under * f.denominator // gcd(under, f.denominator)
    return under


_STRAIGHT = [Monomial(b, s) for b, s in ((0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2))]
_SQUARES = [*_STRAIGHT, Monomial(2, 0), Monomial(2, 1), Monomial(2, 2)]
#: What kernels pad to, and other divisors that are tried, the likelier first.
_BY = [8, 16, 32, 64, 128, 256, 512, 4, 2, *(n for n in range(3, 65) if n & (n - 1))]


class Solver:
    """Finds the forms of values at some points.

    Args:
        points: (batch, sequence) of each value. by: further divisors to try, such as the chunks of a loss.
    """

    def __init__(self, points: Sequence[tuple[int, int]], by: Sequence[int] = ()):
        self.points = list(points)
        self._by = [*by, *_BY]
        self._bases = {}

    def solve(self, values: Sequence[int]) -> Form | None:
        """The simplest form that has these values; None where none is found."""
        values = [int(v) for v in values]
        if len(set(values)) == 1:
            return Form.of({ONE: values[0]})
        for basis in (_STRAIGHT, _SQUARES):
            if (found := self._linear(tuple(basis), values)) is not None:
                return found
        return self._padded(values)

    def _linear(self, basis, values):
        """The combination of the basis; only where there are two points more than it needs."""
        columns, rows, inverse = self._basis(basis)
        if len(columns) + 2 > len(self.points):
            return None
        coefficients = [sum((a * values[r] for a, r in zip(line, rows, strict=True)), Fraction()) for line in inverse]
        form = Form.of(dict(zip(columns, coefficients, strict=True)))
        return form if self._holds(form, values) else None

    def _holds(self, form, values):
        return all(
            sum((c * m.at(*p) for m, c in form.terms), Fraction()) == v
            for p, v in zip(self.points, values, strict=True)
        )

    def _basis(self, basis):
        """The monomials that the points tell apart, the points that do, and the inverse of their matrix."""
        if basis not in self._bases:
            lines = [[Fraction(m.at(*p)) for m in basis] for p in self.points]
            rows, columns = independent(lines)
            matrix = [[lines[r][c] for c in columns] for r in rows]
            self._bases[basis] = [basis[c] for c in columns], rows, inverse(matrix)
        return self._bases[basis]

    def _padded(self, values):
        """With one rounded quotient: a single product first, then sums."""
        shapes = list(product((0, 1), (0, 1, 2), (1, 2)))
        for letters, by in product(("S", "BS", "B"), self._by):
            for plus in (by - 1, 0):
                quotient = Quotient(letters, plus, by)
                for b, s, power in shapes:
                    monomial = Monomial(b, s, ((quotient, power),))
                    at = [monomial.at(*p) for p in self.points]
                    if all(at) and len({Fraction(v, a) for v, a in zip(values, at, strict=True)}) == 1:
                        return Form.of({monomial: Fraction(values[0], at[0])})
        for letters, by in product(("S", "BS", "B"), self._by):
            for plus in (by - 1, 0):
                quotient = Quotient(letters, plus, by)
                padded = [Monomial(b, s, ((quotient, 1),)) for b, s in ((0, 0), (1, 0), (0, 1), (1, 1))]
                straight = [Monomial(), Monomial(1, 0), Monomial(0, 1), Monomial(1, 1)]
                if (found := self._linear((*straight, *padded), values)) is not None:
                    return found
        return None


def independent(lines):
    """(rows, columns) of a largest square part that can be inverted."""
    work = [list(line) for line in lines]
    rows, columns, left = [], [], list(range(len(lines)))
    for column in range(len(lines[0]) if lines else 0):
        pivot = next((r for r in left if work[r][column]), None)
        if pivot is None:
            continue
        rows.append(pivot)
        columns.append(column)
        left.remove(pivot)
        for r in left:
            if factor := work[r][column] / work[pivot][column]:
                work[r] = [a - factor * b for a, b in zip(work[r], work[pivot], strict=True)]
    return rows, columns


def inverse(matrix):
    size = len(matrix)
    work = [[*line, *(Fraction(int(i == j)) for j in range(size))] for i, line in enumerate(matrix)]
    for column in range(size):
        pivot = next(r for r in range(column, size) if work[r][column])
        work[column], work[pivot] = work[pivot], work[column]
        work[column] = [a / work[column][column] for a in work[column]]
        for r in range(size):
            if r != column and (factor := work[r][column]):
                work[r] = [a - factor * b for a, b in zip(work[r], work[column], strict=True)]
    return [line[size:] for line in work]


def combine(counts: dict[Form, int]) -> dict[Monomial, Fraction]:
    """The sum of forms, each by its count, as coefficients of monomials."""
    total = {}
    for form, count in counts.items():
        for monomial, coefficient in form.terms:
            total[monomial] = total.get(monomial, 0) + count * coefficient
    return {m: c for m, c in sorted(total.items()) if c}
