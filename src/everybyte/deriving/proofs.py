"""Which instants of a step can never be its peak, by proof: for every batch and every sequence, not for those looked at.

A polynomial whose coefficients in Bernstein's basis over a rectangle of batches and sequences are all nonnegative is
nonnegative on it. A rounded quotient lies between two polynomials; a tensor that is rounded up to the allocator's blocks
lies between its bytes and its bytes and one block.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from math import comb, lcm

import numpy

from ..derivation.forms import LETTERS, ONE, Form

#: In how many parts a segment between two instants is cut, to find one of its points above a third instant.
_CUTS = 16
_SAFE = 2**62


class Order:
    """Compares sums of forms on a rectangle of batches and sequences.

    Args:
        forms: what the columns of `counts` count. counts: a row of whole numbers for each instant, in the step's order.
        batch, sequence: (the least, the most). rounding: bytes that each tensor is rounded up to a multiple of.
    """

    def __init__(self, forms: Sequence[Form], counts, batch, sequence, rounding: int = 1):
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
        self.one, self.ends = place[ONE], (batch, sequence)
        self._bounds(batch, sequence)

    def _bounds(self, batch, sequence):
        """The least and the most that each monomial can be, in Bernstein's basis."""
        pairs = [[_bound(m, up) for m in self.monomials] for up in (False, True)]
        degrees = tuple(max((p[k] for rows in pairs for row in rows for p in row), default=0) for k in (0, 1))
        degrees = tuple(0 if low == high else d for d, (low, high) in zip(degrees, (batch, sequence), strict=True))
        places = [(i, j) for i in range(degrees[0] + 1) for j in range(degrees[1] + 1)]
        pairs = [[_bernstein(row, (batch, sequence), degrees, places) for row in rows] for rows in pairs]
        under = lcm(*(c.denominator for rows in pairs for row in rows for c in row), 1)
        self.least, self.most = (
            numpy.array([[int(c * under) for c in row] for row in rows], dtype=object) for rows in pairs
        )
        ends = {(i, j) for i in (0, degrees[0]) for j in (0, degrees[1])}
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
        axes = [sorted({low, round((low * high) ** 0.5), high}) for low, high in self.ends]
        points = numpy.array([[float(m.at(b, s)) for m in self.monomials] for b in axes[0] for s in axes[1]])
        return rows[sorted(set(self.values[rows].astype(float).dot(points.T).argmax(axis=0).tolist()))].tolist()

    def _covers(self, i, k):
        high, higher = self.above([i], k)
        return bool(higher[0] or (high[0] and i < k))


def _bound(monomial, up):
    """The most (or least) that the monomial can be, as {(power of B, power of S): coefficient}."""
    found = {(monomial.b, monomial.s): Fraction(1)}
    for quotient, power in monomial.quotients:
        least = quotient.plus - quotient.by + 1
        if not up and least < 0 and power > 1:
            return {}
        factor = {
            LETTERS[quotient.letters]: Fraction(1, quotient.by),
            (0, 0): Fraction(quotient.plus if up else least, quotient.by),
        }
        for _ in range(power):
            found = _times(found, factor)
    return found


def _times(one, other):
    found = {}
    for (a, b), c in one.items():
        for (x, y), z in other.items():
            found[a + x, b + y] = found.get((a + x, b + y), 0) + c * z
    return found


def _bernstein(polynomial, ranges, degrees, places):
    """The polynomial's coefficients in Bernstein's basis of these degrees over the rectangle."""
    axes = []
    for (low, high), degree in zip(ranges, degrees, strict=True):
        most = max((max(p) for p in polynomial), default=0)
        rows = []
        for power in range(most + 1):  # x^power = (low + (high - low) t)^power, and t^k in the basis
            parts = [comb(power, k) * low ** (power - k) * (high - low) ** k for k in range(power + 1)]
            parts = parts[: degree + 1]
            rows.append(
                [sum(Fraction(c * comb(i, k), comb(degree, k)) for k, c in enumerate(parts)) for i in range(degree + 1)]
            )
        axes.append(rows)
    found = []
    for i, j in places:
        found.append(sum((c * axes[0][b][i] * axes[1][s][j] for (b, s), c in polynomial.items()), Fraction()))
    return found
