"""What a tensor's bytes are along one letter, the others fixed: a polynomial in it, or in what it is divided into.

An image of R x R pixels has floor(R / 16)^2 patches, and a convolution that halves it leaves ceil(R / 2) rows. Which
divisor and which rest, a few sizes do not tell: of all that agree with what was looked at, `Line` says the simplest, and
a size at which another one would differ, until there is none.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import cached_property, lru_cache
from math import gcd, lcm

import numpy

from ..derivation.forms import ONE, Monomial, Quotient, independent, inverse
from ..derivation.ranges import Range

#: Divisors that are tried, with every rest, the likelier first: (divisor, what is added before).
_TRIED = sorted(
    ((by, plus) for by in (*range(1, 65), 128, 256) for plus in range(by)),
    key=lambda t: (t[0] > 1, t[1] not in (0, t[0] - 1), t[0] & (t[0] - 1) > 0, t),
)
#: What kernels pad a number of tokens to.
_PADS = (8, 16, 32, 64, 128, 4, 2)
_DEGREE = 4
_POWERS = numpy.arange(_DEGREE + 1)
#: So far from its start a range is looked through for a size that tells two divisors apart.
_WINDOW = 700
_CLOSE = 1e-8


class Unsure(Exception):
    """More than one form agrees with what was looked at; a size at which they differ."""


class Line:
    """Finds the forms of values along one letter.

    Args:
        letter: which. sizes: where the values are. within: what it may be.

    Attributes:
        window: the sizes that are looked through for one that tells two forms apart.
    """

    def __init__(self, letter: str, sizes: Sequence[int], within: Range):
        self.letter, self.sizes, self.within = letter, list(sizes), within
        self.known: dict[tuple, dict[Monomial, Fraction]] = {}
        start = max(within.low, min(sizes) - 64)
        self.window, self._quotients, self._table = _table(within, start)

    def solve(self, values: Sequence[Fraction]) -> dict[Monomial, Fraction] | None:
        """The simplest sum of monomials in the letter that has these values; None where there is none.

        Raises:
            Unsure: where another one does too, and differs elsewhere in the range.
        """
        if len(set(values)) == 1:
            return {ONE: values[0]} if values[0] else {}
        scale = next((abs(v) for v in values if v), Fraction(1))
        shape = tuple(v / scale for v in values)
        if shape not in self.known:
            found = self._simple(shape) or self._padded(shape) or self._several(shape)
            if found is None:
                return None
            self.known[shape] = found
        return {m: c * scale for m, c in self.known[shape].items()}

    # One quotient.

    @property
    def _spread(self):
        """Sizes all over the window."""
        return self.window[:: max(1, len(self.window) // 12)]

    @cached_property
    def _bases(self):
        """Of each quotient: the powers of it at the sizes as u s v, and the largest it is there."""
        by, plus = numpy.array(self._quotients).T[:, :, None]
        at = ((numpy.array(self.sizes)[None, :] + plus) // by).astype(float)
        most = numpy.maximum(at.max(axis=1, keepdims=True), 1)
        left, size, right = numpy.linalg.svd((at / most)[:, :, None] ** _POWERS, full_matrices=False)
        kept = size > 1e-9 * size[:, :1]
        return left * kept[:, None, :], numpy.where(kept, 1 / numpy.where(kept, size, 1), 0), right, most

    def _simple(self, shape):
        left, under, right, most = self._bases
        values = numpy.array([float(v) for v in shape])
        inside = (left.transpose(0, 2, 1) @ values[:, None])[:, :, 0]
        off = abs((left @ inside[:, :, None])[:, :, 0] - values).max(axis=1)
        passed = numpy.flatnonzero(off <= _CLOSE * abs(values).max())
        exact = ((k, self._exact(shape, *self._quotients[k])) for k in passed)  # the likelier first
        best, terms = next(((k, terms) for k, terms in exact if terms), (None, None))
        if not len(passed):
            return None
        factors = (right[passed].transpose(0, 2, 1) @ (under[passed] * inside[passed])[:, :, None])[:, :, 0]
        window = (self._table[passed] / most[passed])[:, :, None] ** _POWERS
        lines = (window @ factors[:, :, None])[:, :, 0]
        mine = lines[0 if terms is None else list(passed).index(best)]
        self._tell(abs(lines - mine) > 1e-6 * (abs(mine) + abs(values).max()))
        if terms is None:  # too few sizes on either side of where it changes to check any
            self._tell(numpy.isin(self.window, self._spread)[None, :])
        return terms

    def _tell(self, differ):
        """Raise with the size at which the most of the lines differ, if any does at one not looked at."""
        new = [i for i, n in enumerate(self.window) if n not in self.sizes]
        if new and differ[:, new].any():
            raise Unsure(self.window[max(new, key=lambda i: (differ[:, i].sum(), -i))])

    def _exact(self, shape, by, plus):
        """The polynomial of the least degree in a quotient that has the values; None where two values are not left to check it."""
        q = [(n + plus) // by for n in self.sizes]
        first = dict(zip(q, shape, strict=True))
        if any(first[x] != v for x, v in zip(q, shape, strict=True)):
            return None
        xs = sorted(first)
        for degree in range(min(_DEGREE, len(xs) - 3) + 1):
            spread = [xs[i * (len(xs) - 1) // max(degree, 1)] for i in range(degree + 1)]
            factors = [
                sum((a * first[x] for a, x in zip(row, spread, strict=True)), Fraction())
                for row in _vandermonde(tuple(spread))
            ]
            if all(sum((c * x**i for i, c in enumerate(factors)), Fraction()) == first[x] for x in xs):
                return {self._power(by, plus, i): c for i, c in enumerate(factors) if c}
        return None

    def _power(self, by, plus, power):
        if not power:
            return ONE
        if by == 1:
            return Monomial(further=((self.letter, power),))
        return Monomial(quotients=((Quotient(self.letter, plus, by), power),))

    # What is padded: a number of tokens that is itself a polynomial.

    def _padded(self, shape):
        found = []
        for tokens in self._tokens():
            at = [_value(tokens, self.letter, n) for n in self.sizes]
            for by in _PADS:
                for plus in (by - 1, 0):
                    quotient = Quotient("", plus, by, tuple(sorted(tokens.items())))
                    q = [(t + plus) // by for t in at]
                    for times in (False, True):
                        for power in (1, 2):
                            weights = [x**power * (t if times else 1) for x, t in zip(q, at, strict=True)]
                            if all(weights) and len({v / w for v, w in zip(shape, weights, strict=True)}) == 1:
                                found.append((quotient, power, tokens if times else {ONE: 1}, shape[0] / weights[0]))
        if not found:
            return None
        terms = [
            {Monomial(quotients=((q, p),)) * m: c * n for m, n in times.items()} for q, p, times, c in found
        ]  # fmt: skip
        lines = numpy.array([[float(_value(t, self.letter, n)) for n in self.window] for t in terms])
        self._tell(abs(lines - lines[0]) > 1e-9 * abs(lines[0]))
        return terms[0]

    def _tokens(self) -> Iterable[dict[Monomial, int]]:
        """The polynomials of what is known, without their common factor: numbers of tokens."""
        seen = {}
        for terms in list(self.known.values()):
            if any(q.of for m in terms for q, _ in m.quotients) or any(c <= 0 for c in terms.values()):
                continue
            under = lcm(*(c.denominator for c in terms.values()))
            whole = {m: int(c * under) for m, c in terms.items()}
            over = gcd(*whole.values())
            primitive = {m: c // over for m, c in whole.items()}
            if set(primitive) != {ONE}:
                seen[tuple(sorted(primitive.items()))] = primitive
        return list(seen.values())

    # A sum over several quotients, such as the levels of a pyramid.

    def _several(self, shape):
        known = sorted({q for terms in self.known.values() for m in terms for q, _ in m.quotients})
        basis = [ONE, *(Monomial(quotients=((q, p),)) for q in known for p in (1, 2))]
        lines = [[Fraction(_value({m: 1}, self.letter, n)) for m in basis] for n in self.sizes]
        rows, columns = independent(lines)
        if len(known) < 2 or len(columns) + 2 > len(self.sizes):
            return None
        matrix = inverse([[lines[r][c] for c in columns] for r in rows])
        factors = [sum((a * shape[r] for a, r in zip(line, rows, strict=True)), Fraction()) for line in matrix]
        terms = {basis[c]: f for c, f in zip(columns, factors, strict=True) if f}
        exact = all(_value(terms, self.letter, n) == v for n, v in zip(self.sizes, shape, strict=True))
        return terms if exact else None


@lru_cache(maxsize=16)
def _table(within, start):
    """(sizes of the range from `start` on; each quotient that is tried, one of those that say the same of all of them; what it
    is there, a row each)."""
    window = [n for n in range(start, min(within.high, start + _WINDOW) + 1) if n in within]
    by, plus = numpy.array(_TRIED).T[:, :, None]
    rows = ((numpy.array(window)[None, :] + plus) // by).astype("int32")
    seen = {}
    for i, row in enumerate(rows - rows[:, :1]):
        seen.setdefault(row.tobytes(), i)
    chosen = list(seen.values())
    return window, [_TRIED[i] for i in chosen], rows[chosen]


def _value(terms, letter, size):
    return sum(c * m.at(1, 1, **{letter: size}) for m, c in terms.items())


_INVERSES: dict[tuple, list] = {}


def _vandermonde(xs):
    if xs not in _INVERSES:
        _INVERSES[xs] = inverse([[Fraction(x) ** i for i in range(len(xs))] for x in xs])
    return _INVERSES[xs]
