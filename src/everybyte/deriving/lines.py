"""What a tensor's bytes are along one letter, the others fixed: a polynomial in it, or in what it is divided into.

An image of R x R pixels has floor(R / 16)^2 patches, and a convolution that halves it leaves ceil(R / 2) rows. Which
divisor and which rest, a few sizes do not tell: of all that agree with what was looked at, `Line` says the simplest, and
a size at which another one would differ, until there is none.
"""

from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import product
from math import gcd

import numpy

from ..derivation.ranges import Range
from ..step.amount import ONE, Amount, Quotient
from .solver import Basis, Factors

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
    """Several forms agree with the values seen; a size at which they differ."""


class Line:
    """Finds the forms of values along one letter.

    Args:
        letter: which. sizes: where the values are. within: what it may be.

    Attributes:
        window: the sizes that are looked through for one that tells two forms apart.
    """

    def __init__(self, letter: str, sizes: Sequence[int], within: Range):
        self.letter, self.sizes, self.within = letter, list(sizes), within
        self.known: dict[tuple, Amount] = {}
        start = max(within.low, min(sizes) - 64)
        self.window, self._quotients, self._table = _table(within, start)

    def solve(self, values: Sequence[Fraction]) -> Amount | None:
        """The simplest amount in the letter that has these values; None where there is none.

        Raises:
            Unsure: where another one does too, and differs elsewhere in the range.
        """
        if len(set(values)) == 1:
            return Amount.of({ONE: values[0]})
        scale = next((abs(v) for v in values if v), Fraction(1))
        shape = tuple(v / scale for v in values)
        if shape not in self.known:
            found = self._simple(shape) or self._padded(shape) or self._several(shape)
            if found is None:
                return None
            self.known[shape] = found
        return self.known[shape] * scale

    # One quotient.

    @cached_property
    def _bases(self):
        """For each quotient: the singular value decomposition of its powers at the sizes, and its largest value."""
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
        best, found = next(((k, found) for k, found in exact if found), (None, None))
        if not len(passed):
            return None
        factors = (right[passed].transpose(0, 2, 1) @ (under[passed] * inside[passed])[:, :, None])[:, :, 0]
        window = (self._table[passed] / most[passed])[:, :, None] ** _POWERS
        lines = (window @ factors[:, :, None])[:, :, 0]
        mine = lines[0 if found is None else list(passed).index(best)]
        self._tell(abs(lines - mine) > 1e-6 * (abs(mine) + abs(values).max()))
        if found is None:  # too few sizes on either side of where it changes to check any
            spread = self.window[:: max(1, len(self.window) // 12)]
            self._tell(numpy.isin(self.window, spread)[None, :])
        return found

    def _tell(self, differ):
        """Raise with the size at which most lines differ, if any differ at a size not yet looked at."""
        new = [i for i, n in enumerate(self.window) if n not in self.sizes]
        if new and differ[:, new].any():
            raise Unsure(self.window[max(new, key=lambda i: (differ[:, i].sum(), -i))])

    def _exact(self, shape, by, plus):
        """The polynomial of least degree in a quotient that has the values, with two more than it needs; or None."""
        q = [(n + plus) // by for n in self.sizes]
        first = dict(zip(q, shape, strict=True))
        if any(first[x] != v for x, v in zip(q, shape, strict=True)):
            return None
        xs = sorted(first)
        for degree in range(min(_DEGREE, len(xs) - 3) + 1):
            spread = [xs[i * (len(xs) - 1) // max(degree, 1)] for i in range(degree + 1)]
            factors = _powers(tuple(spread), degree).of([first[x] for x in spread])
            if all(sum((c * x**i for i, c in enumerate(factors)), Fraction()) == first[x] for x in xs):
                letter = Amount.letter(self.letter if by == 1 else Quotient(self.letter, plus, by))
                return Amount.total((letter**i, c) for i, c in enumerate(factors))
        return None

    # What is padded: a number of tokens that is itself a polynomial.

    def _padded(self, shape):
        found = []
        for tokens, by, up, times, power in product(self._tokens(), _PADS, (True, False), (False, True), (1, 2)):
            of = tuple((m, int(n)) for m, n in tokens.terms)
            padded = Amount.letter(Quotient("", (by - 1) * up, by, of)) ** power * (tokens if times else 1)
            values = [padded.value({self.letter: n}) for n in self.sizes]
            if all(values) and len({v / w for v, w in zip(shape, values, strict=True)}) == 1:
                found.append(padded * (shape[0] / values[0]))
        if not found:
            return None
        lines = numpy.array([[float(amount.value({self.letter: n})) for n in self.window] for amount in found])
        self._tell(abs(lines - lines[0]) > 1e-9 * abs(lines[0]))
        return found[0]

    def _tokens(self) -> list[Amount]:
        """The polynomials of what is known, without their common factor: numbers of tokens."""
        seen = {}
        for known in list(self.known.values()):
            if any(q.of for m, _ in known.terms for q, _ in m.quotients) or any(c <= 0 for _, c in known.terms):
                continue
            over = gcd(*(int(c * known.denominator) for _, c in known.terms))
            primitive = known * Fraction(known.denominator, over)
            if primitive.constant is None:
                seen[primitive] = None
        return list(seen)

    # A sum over several quotients, such as the levels of a pyramid.

    def _several(self, shape):
        known = sorted({q for amount in self.known.values() for m, _ in amount.terms for q, _ in m.quotients})
        basis = [Amount.of({ONE: 1}), *(Amount.letter(q) ** p for q in known for p in (1, 2))]
        points = [{self.letter: n} for n in self.sizes]
        return Basis(basis, points).solve(shape) if len(known) > 1 else None


@lru_cache(maxsize=16)
def _table(within, start):
    """(sizes of the range from `start` on; quotients to try, one of those that are equal there; their values)."""
    window = [n for n in range(start, min(within.high, start + _WINDOW) + 1) if n in within]
    by, plus = numpy.array(_TRIED).T[:, :, None]
    rows = ((numpy.array(window)[None, :] + plus) // by).astype("int32")
    seen = {}
    for i, row in enumerate(rows - rows[:, :1]):
        seen.setdefault(row.tobytes(), i)
    chosen = list(seen.values())
    return window, [_TRIED[i] for i in chosen], rows[chosen]


@lru_cache(maxsize=1024)
def _powers(xs, degree):
    """The powers of some numbers, up to a degree."""
    return Factors([[x**i for i in range(degree + 1)] for x in xs])
