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

from ..step.amount import ONE, USUAL, Amount, Quotient

#: In how many parts a segment between two instants is cut, to find one of its points above a third instant.
_CUTS = 16
_SAFE = 2**62


class Order:
    """Compares sums of amounts on a box of sizes of letters.

    Args:
        forms: what the columns of `counts` count. counts: a row of whole numbers for each instant, in the step's order.
        ends: letter -> (the least, the most). rounding: bytes that each tensor is rounded up to a multiple of.
    """

    def __init__(self, forms: Sequence[Amount], counts, ends: Mapping[str, tuple[int, int]], rounding: int = 1):
        self.monomials = sorted({m for f in forms for m, _ in f.terms} | {ONE})
        place = {m: i for i, m in enumerate(self.monomials)}
        scale = lcm(*(f.denominator for f in forms))
        by_form = [[0] * len(self.monomials) for _ in forms]
        self.slack = [0] * len(forms)
        for k, (row, form) in enumerate(zip(by_form, forms, strict=True)):
            rounded = form.rounded(rounding)
            self.slack[k] = (rounding - 1) * scale if rounded is None else 0
            for m, c in (rounded or form).terms:
                row[place[m]] = int(c * scale)
        counts = numpy.asarray(counts, dtype=object).reshape(-1, len(forms))
        self.values = counts.dot(numpy.array(by_form, dtype=object).reshape(len(forms), -1))
        self.counts = counts
        self.one = place[ONE]
        self._ends = ends
        self._bounds(_Box(ends, self.monomials))

    def _bounds(self, box):
        """The least and the most that each monomial can be, in Bernstein's basis."""
        pairs = [[box.bound(m, up) for m in self.monomials] for up in (False, True)]
        terms = [m for rows in pairs for amount in rows for m, _ in amount.terms]
        most = {x: max((dict(m.powers).get(x, 0) for m in terms), default=0) for x in box.ends}
        degrees = [0 if low == high else most[x] for x, (low, high) in box.ends.items()]
        places = list(product(*(range(d + 1) for d in degrees)))
        pairs = [[_bernstein(amount, box.ends, degrees, places) for amount in rows] for rows in pairs]
        under = lcm(*(c.denominator for rows in pairs for row in rows for c in row), 1)
        self.least, self.most = (
            numpy.array([[int(c * under) for c in row] for row in rows], dtype=object) for rows in pairs
        )
        ends = set(product(*({0, d} for d in degrees)))
        self.corners = [n for n, place in enumerate(places) if place in ends]

    def _beats(self, rows, others):
        """Which rows are higher than the others everywhere, or as high and earlier; one side is a single row."""
        rows, others = numpy.asarray(rows), numpy.asarray(others)
        high, higher = self._sign(self.values[rows] - self.values[others], self.counts[rows] - self.counts[others])
        return higher | (high & (rows < others))

    def _between(self, i: int, j: int, k: int) -> bool:
        """Whether some point of the segment from i to j is above k everywhere: then one of the two always is."""
        parts = numpy.arange(1, _CUTS).astype(object)[:, None]
        values = parts * (self.values[i] - self.values[k]) + (_CUTS - parts) * (self.values[j] - self.values[k])
        counts = parts * (self.counts[i] - self.counts[k]) + (_CUTS - parts) * (self.counts[j] - self.counts[k])
        return bool(self._sign(values, counts)[1].any())

    def _sign(self, values, counts):
        if any(self.slack):
            values = values.copy()
            values[:, self.one] -= numpy.maximum(-counts, 0).dot(numpy.array(self.slack, dtype=object))
        bound = max(int(abs(x).max(initial=0)) for x in (self.least, self.most))
        most = max(int(abs(values).max(initial=0)), 1) * bound
        dtype = "int64" if most * len(self.monomials) * 2 < _SAFE else object
        values, least, most = (x.astype(dtype) for x in (values, self.least, self.most))
        found = numpy.maximum(values, 0).dot(least) + numpy.minimum(values, 0).dot(most)
        whole = (found >= 0).all(axis=1)
        return whole, whole & (found[:, self.corners] > 0).all(axis=1)

    def highest(self) -> list[int]:
        """The instants that can be the first with the most bytes, at some sizes; in the order of the step."""
        first = {}
        for i, row in enumerate(self.counts if any(self.slack) else self.values):
            first.setdefault(tuple(row), i)
        left = numpy.array(list(first.values()))
        for i in self._champions(left):  # most instants are below one of a few
            left = left[~self._beats(i, left)]
        kept = left[:0]
        for i in sorted(left.tolist(), key=lambda i: tuple(-v for v in self.values[i][::-1])):
            if not self._beats(kept, i).any():
                kept = numpy.append(kept[~self._beats(i, kept)], i)
        kept = sorted(kept.tolist())
        if len(kept) <= 40:
            for k in list(kept):
                others = [i for i in kept if i != k]
                if any(self._between(i, j, k) for i, j in combinations(others, 2)):
                    kept.remove(k)
        return kept

    def _champions(self, rows):
        """The instants that are the highest at the corners and the middle of the box."""
        axes = [sorted({low, round((low * high) ** 0.5), high}) for low, high in self._ends.values()]
        sizes = [dict(zip(self._ends, point, strict=True)) for point in product(*axes)]
        points = numpy.array([[float(m.at(at)) for m in self.monomials] for at in sizes])
        return rows[sorted(set(self.values[rows].astype(float).dot(points.T).argmax(axis=0).tolist()))].tolist()


class _Box:
    """Bounds of monomials by polynomials; a letter that comes in quotients stands for the most frequent of these.

    Attributes:
        ends: letter -> (the least, the most) of what it stands for.
    """

    def __init__(self, ends, monomials):
        own = Counter(q for m in monomials for q in _quotients(m) if q.letters in ends and q.letters not in USUAL)
        self._base: dict[str, Quotient] = {}
        for quotient, _ in own.most_common():
            self._base.setdefault(quotient.letters, quotient)
        bases = {x: self._base.get(x, Quotient(x, 0, 1)) for x in ends}
        self.ends = {x: tuple(bases[x].at({x: end}) for end in pair) for x, pair in ends.items()}

    def bound(self, monomial, up) -> Amount:
        """The most (or least) that the monomial can be."""
        found = Amount.of({ONE: 1})
        for letter, power in monomial.powers:
            found *= self._letter(letter, up) ** power
        for quotient, power in monomial.quotients:
            factor = self._quotient(quotient, up)
            if not up and self._at_least(factor) < 0 and (power > 1 or len(monomial.quotients) > 1):
                return Amount.of({})
            found *= factor**power
        return found

    def _letter(self, letter, up):
        """A letter itself: between `by` times its quotient and `by` - 1 more."""
        base, found = self._base.get(letter), Amount.letter(letter)
        return found if base is None else found * base.by + (up * (base.by - 1) - base.plus)

    def _quotient(self, q, up):
        """A rounded quotient, or what its inside says of it."""
        if q == self._base.get(q.letters):
            return Amount.letter(q.letters)
        inside = Amount.total((self.bound(m, up), n) for m, n in q.inside.terms)
        return (inside + (q.plus if up else q.plus - q.by + 1)) * Fraction(1, q.by)

    def _at_least(self, amount):
        """A lower bound of an amount that grows with all variables; negative for any other."""
        if any(c < 0 and m != ONE for m, c in amount.terms):
            return -1
        return amount.value({x: low for x, (low, _) in self.ends.items()})


def _quotients(monomial):
    """The quotients of a monomial, and those that are in their insides."""
    for q, _ in monomial.quotients:
        yield from (q, *(inner for m, _ in q.of for inner in _quotients(m)))


def _bernstein(amount, ends, degrees, places):
    """The amount's coefficients in Bernstein's basis of these degrees over the box."""

    def moved(letter):
        """low + (high - low) t."""
        low, high = ends[letter]
        return Amount.letter(letter) * (high - low) + low

    terms = [([dict(m.powers).get(x, 0) for x in ends], c) for m, c in amount.moved(moved).terms]

    def share(place, powers):
        """The coefficient of t^powers at a place of the basis."""
        return prod(Fraction(comb(i, k), comb(d, k)) for i, k, d in zip(place, powers, degrees, strict=True))

    return [sum((c * share(place, powers) for powers, c in terms), Fraction()) for place in places]
