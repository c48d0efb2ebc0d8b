"""Which instants of a step can never be its peak, by proof: for every batch and every sequence, not for those looked at.

A polynomial whose coefficients in Bernstein's basis over a box of sizes are all nonnegative is nonnegative on it. A rounded
quotient lies between two polynomials; a tensor that is rounded up to the allocator's blocks lies between its bytes and its
bytes and one block. Where a letter comes in quotients alone, such as the rows of patches of an image, the quotient that
comes most is the variable, and the letter and its other quotients lie between two polynomials in that.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import combinations, product
from math import comb, lcm, prod

import numpy

from ..derivation.forms import ONE, Form, Quotient

#: In how many parts a segment between two instants is cut, to find one of its points above a third instant.
_CUTS = 16
_SAFE = 2**62


class Order:
    """Compares sums of forms on a box of batches, sequences and sizes of further letters.

    Args:
        forms: what the columns of `counts` count. counts: a row of whole numbers for each instant, in the step's order.
        batch, sequence: (the least, the most). rounding: bytes that each tensor is rounded up to a multiple of.
        further: the same of further letters.
    """

    def __init__(
        self,
        forms: Sequence[Form],
        counts,
        batch,
        sequence,
        rounding: int = 1,
        further: Mapping[str, tuple] | None = None,
    ):
        self.monomials = sorted({m for f in forms for m, _ in f.terms} | {ONE})
        place = {m: i for i, m in enumerate(self.monomials)}
        scale = lcm(*(c.denominator for f in forms for _, c in f.terms), 1)
        by_form = [[0] * len(self.monomials) for _ in forms]
        self.slack = [0] * len(forms)
        for row, form, k in zip(by_form, forms, range(len(forms)), strict=True):
            for m, c in form.terms:
                row[place[m]] = int(c * scale)
            if rounding > 1:
                if form.constant is not None:
                    row[place[ONE]] = -(-form.constant // rounding) * rounding * scale
                elif any(m.quotients or c % rounding for m, c in form.terms):
                    self.slack[k] = (rounding - 1) * scale
        counts = numpy.asarray(counts, dtype=object).reshape(-1, len(forms))
        self.values = counts.dot(numpy.array(by_form, dtype=object).reshape(len(forms), -1))
        self.counts = counts
        self.one = place[ONE]
        self._ends = {"B": tuple(batch), "S": tuple(sequence), **(further or {})}
        self._bounds(_Box(self._ends, self.monomials))

    def _bounds(self, box):
        """The least and the most that each monomial can be, in Bernstein's basis."""
        pairs = [[box.bound(m, up) for m in self.monomials] for up in (False, True)]
        letters = range(len(box.ends))
        degrees = tuple(max((p[k] for rows in pairs for row in rows for p in row), default=0) for k in letters)
        degrees = tuple(0 if low == high else d for d, (low, high) in zip(degrees, box.ends, strict=True))
        places = list(product(*(range(d + 1) for d in degrees)))
        pairs = [[_bernstein(row, box.ends, degrees, places) for row in rows] for rows in pairs]
        under = lcm(*(c.denominator for rows in pairs for row in rows for c in row), 1)
        self.least, self.most = (
            numpy.array([[int(c * under) for c in row] for row in rows], dtype=object) for rows in pairs
        )
        ends = set(product(*({0, d} for d in degrees)))
        self.corners = [n for n, place in enumerate(places) if place in ends]

    def above(self, rows, i: int):
        """Of the instants `rows`, which are at least as high as `i` everywhere, and which are higher everywhere."""
        return self._sign(self.values[rows] - self.values[i], self.counts[rows] - self.counts[i])

    def between(self, i: int, j: int, k: int) -> bool:
        """Whether some point of the segment from i to j is above k everywhere: then one of the two always is."""
        parts = numpy.arange(1, _CUTS).astype(object)[:, None]
        values = parts * (self.values[i] - self.values[k]) + (_CUTS - parts) * (self.values[j] - self.values[k])
        counts = parts * (self.counts[i] - self.counts[k]) + (_CUTS - parts) * (self.counts[j] - self.counts[k])
        return bool(self._sign(values, counts)[1].any())

    def _sign(self, values, counts):
        if any(self.slack):
            values = values.copy()
            values[:, self.one] -= numpy.maximum(-counts, 0).dot(numpy.array(self.slack, dtype=object))
        most = int(abs(values).max(initial=0)) * max(
            int(abs(self.least).max(initial=0)), int(abs(self.most).max(initial=0))
        )
        dtype = "int64" if most * len(self.monomials) * 2 < _SAFE else object
        values, least, most = (x.astype(dtype) for x in (values, self.least, self.most))
        found = numpy.maximum(values, 0).dot(least) + numpy.minimum(values, 0).dot(most)
        whole = (found >= 0).all(axis=1)
        return whole, whole & (found[:, self.corners] > 0).all(axis=1)

    def highest(self) -> list[int]:
        """The instants of which one is the first that is the highest, whatever batch and sequence; in the step's order."""
        first = {}
        for i, row in enumerate(self.counts if any(self.slack) else self.values):
            first.setdefault(tuple(row), i)
        left = numpy.array(list(first.values()))
        for i in self._champions(left):  # most instants are below one of a few
            high, higher = self._sign(self.values[i] - self.values[left], self.counts[i] - self.counts[left])
            left = left[~(higher | (high & (i < left)))]
        likely = sorted(left.tolist(), key=lambda i: tuple(-v for v in self.values[i][::-1]))
        kept = []
        for i in likely:
            if kept:
                high, higher = self.above(kept, i)
                if any(h or (w and k < i) for k, w, h in zip(kept, high, higher, strict=True)):
                    continue
                kept = [k for k in kept if not self._covers(i, k)]
            kept.append(i)
        kept = sorted(kept)
        if len(kept) <= 40:
            for k in list(kept):
                others = [i for i in kept if i != k]
                if any(self.between(i, j, k) for i, j in combinations(others, 2)):
                    kept.remove(k)
        return kept

    def _champions(self, rows):
        """Those of the instants that are the highest at some points."""
        axes = [sorted({low, round((low * high) ** 0.5), high}) for low, high in self._ends.values()]
        sizes = [dict(zip(self._ends, point, strict=True)) for point in product(*axes)]
        named = [(at.pop("B"), at.pop("S"), at) for at in sizes]
        points = numpy.array([[float(m.at(b, s, **at)) for m in self.monomials] for b, s, at in named])
        return rows[sorted(set(self.values[rows].astype(float).dot(points.T).argmax(axis=0).tolist()))].tolist()

    def _covers(self, i, k):
        high, higher = self.above([i], k)
        return bool(higher[0] or (high[0] and i < k))


class _Box:
    """The variables of the proof, and what lies between polynomials in them: {powers of the variables: coefficient}.

    Attributes:
        ends: (the least, the most) of each variable.
    """

    def __init__(self, ends, monomials):
        self._letters = list(ends)
        self._base = dict.fromkeys(ends)
        own = Counter(
            q
            for m in monomials
            for q, _ in m.quotients
            for q in _inner(q)
            if q.letters in ends and q.letters not in "BS"
        )
        for quotient, _ in own.most_common():
            if self._base[quotient.letters] is None:
                self._base[quotient.letters] = quotient
        self._least = {letter: low for letter, (low, _) in ends.items()}
        self.ends = [
            (low, high) if base is None else ((low + base.plus) // base.by, (high + base.plus) // base.by)
            for (low, high), base in zip(ends.values(), self._base.values(), strict=True)
        ]

    def bound(self, monomial, up):
        """The most (or least) that the monomial can be."""
        found = {self._none: Fraction(1)}
        for letter, power in monomial.powers:
            found = _times(found, *[self._letter(letter, up)] * power)
        for quotient, power in monomial.quotients:
            factor = self._quotient(quotient, up)
            if not up and self._at_least(factor) < 0 and (power > 1 or len(monomial.quotients) > 1):
                return {}
            found = _times(found, *[factor] * power)
        return found

    @property
    def _none(self):
        return (0,) * len(self._letters)

    def _one(self, letter):
        return tuple(int(letter == other) for other in self._letters)

    def _letter(self, letter, up):
        """A letter itself: between `by` times its quotient and `by` - 1 more."""
        base = self._base[letter]
        if base is None:
            return {self._one(letter): Fraction(1)}
        return _sum({self._one(letter): Fraction(base.by)}, {self._none: Fraction(up * (base.by - 1) - base.plus)})

    def _quotient(self, q: Quotient, up):
        """A rounded quotient, or what its inside says of it."""
        if q == self._base.get(q.letters):
            return {self._one(q.letters): Fraction(1)}
        if q.of:
            inside = _sum(*({k: c * n for k, c in self.bound(m, up).items()} for m, n in q.of))
        else:
            inside = _times({self._none: Fraction(1)}, *(self._letter(letter, up) for letter in q.letters))
        over = {self._none: Fraction(q.plus if up else q.plus - q.by + 1)}
        return {k: c / q.by for k, c in _sum(inside, over).items()}

    def _at_least(self, factor):
        """No more than a polynomial is, where it grows with all variables; else less than nothing."""
        if any(c < 0 for k, c in factor.items() if any(k)):
            return -1
        lows = [low for low, _ in self.ends]
        return sum(c * prod(low**p for low, p in zip(lows, k, strict=True)) for k, c in factor.items())


def _inner(q):
    """A quotient, and those that are in its inside."""
    return [q, *(inner for m, _ in q.of for x, _ in m.quotients for inner in _inner(x))]


def _sum(*several):
    found = {}
    for one in several:
        for k, c in one.items():
            found[k] = found.get(k, 0) + c
    return found


def _times(*several):
    one, *others = several
    for other in others:
        found = {}
        for a, c in one.items():
            for b, z in other.items():
                key = tuple(x + y for x, y in zip(a, b, strict=True))
                found[key] = found.get(key, 0) + c * z
        one = found
    return one


def _bernstein(polynomial, ranges, degrees, places):
    """The polynomial's coefficients in Bernstein's basis of these degrees over the box."""
    axes = []
    for n, ((low, high), degree) in enumerate(zip(ranges, degrees, strict=True)):
        most = max((powers[n] for powers in polynomial), default=0)
        rows = []
        for power in range(most + 1):  # x^power = (low + (high - low) t)^power, and t^k in the basis
            parts = [comb(power, k) * low ** (power - k) * (high - low) ** k for k in range(power + 1)]
            parts = parts[: degree + 1]
            rows.append(
                [sum(Fraction(c * comb(i, k), comb(degree, k)) for k, c in enumerate(parts)) for i in range(degree + 1)]
            )
        axes.append(rows)
    return [
        sum(
            (
                c * prod(axis[p][i] for axis, p, i in zip(axes, powers, place, strict=True))
                for powers, c in polynomial.items()
            ),
            Fraction(),
        )
        for place in places
    ]
