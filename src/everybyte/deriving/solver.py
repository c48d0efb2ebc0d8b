"""From values at some points to the exact function that has them, in fractions."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import product

from ..step.amount import ONE, Amount, Monomial, Quotient

_STRAIGHT = [Monomial(b, s) for b, s in ((0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2))]
_SQUARES = [*_STRAIGHT, Monomial(2, 0), Monomial(2, 1), Monomial(2, 2)]
#: What kernels pad to, and other divisors that are tried, the likelier first.
_BY = [8, 16, 32, 64, 128, 256, 512, 4, 2, *(n for n in range(3, 65) if n & (n - 1))]


class Combination:
    """How much of each column of a matrix gives some values, a row each.

    Attributes:
        columns: those that the rows tell apart, by number.
    """

    def __init__(self, lines: Sequence[Sequence]):
        size = len(lines)
        work = [[*map(Fraction, line), *(Fraction(i == j) for j in range(size))] for i, line in enumerate(lines)]
        pivots: dict[int, int] = {}
        for column in range(len(lines[0]) if lines else 0):
            pivot = next((r for r in range(size) if work[r][column] and r not in pivots.values()), None)
            if pivot is None:
                continue
            pivots[column] = pivot
            work[pivot] = [a / work[pivot][column] for a in work[pivot]]
            for r in range(size):
                if r != pivot and (factor := work[r][column]):
                    work[r] = [a - factor * b for a, b in zip(work[r], work[pivot], strict=True)]
        self.columns = list(pivots)
        inverse = ([(r, a) for r, a in enumerate(work[pivot][-size:]) if a] for pivot in pivots.values())
        self._inverse = list(inverse)

    def of(self, values: Sequence) -> list[Fraction]:
        """The factor of each of `columns`; where no combination has all the values, one that has some of them."""
        return [sum((a * values[r] for r, a in line), Fraction()) for line in self._inverse]


class Solver:
    """Finds the amounts of values at some points.

    Args:
        points: sizes of B and S of each value. by: further divisors to try, such as the chunks of a loss.
    """

    def __init__(self, points: Sequence[tuple[int, int]], by: Sequence[int] = ()):
        self.points = [{"B": b, "S": s} for b, s in points]
        self._by = [*by, *_BY]
        self._bases: dict[tuple, Combination] = {}

    def solve(self, values: Sequence[int]) -> Amount | None:
        """The simplest amount that has these values; None where none is found."""
        values = [int(v) for v in values]
        if len(set(values)) == 1:
            return Amount.of({ONE: values[0]})
        for basis in (_STRAIGHT, _SQUARES):
            if (found := self._linear(tuple(basis), values)) is not None:
                return found
        return self._padded(values)

    def _linear(self, basis, values):
        """The combination of the basis; only where there are two points more than it needs."""
        if basis not in self._bases:
            self._bases[basis] = Combination([[m.at(p) for m in basis] for p in self.points])
        columns = self._bases[basis].columns
        if len(columns) + 2 > len(self.points):
            return None
        found = Amount.of(dict(zip((basis[c] for c in columns), self._bases[basis].of(values), strict=True)))
        return found if all(found.value(p) == v for p, v in zip(self.points, values, strict=True)) else None

    def _padded(self, values):
        """With one rounded quotient: a single product first, then sums."""
        tried = [
            Quotient(letters, plus, by)
            for letters, by in product(("S", "BS", "B"), self._by)
            for plus in (by - 1, 0)
        ]  # fmt: skip
        for quotient in tried:
            for b, s, power in product((0, 1), (0, 1, 2), (1, 2)):
                monomial = Monomial(b, s, ((quotient, power),))
                at = [monomial.at(p) for p in self.points]
                if all(at) and len({Fraction(v, a) for v, a in zip(values, at, strict=True)}) == 1:
                    return Amount.of({monomial: Fraction(values[0], at[0])})
        straight = [Monomial(b, s) for b, s in ((0, 0), (1, 0), (0, 1), (1, 1))]
        bases = ((*straight, *(m * Monomial.of(quotient) for m in straight)) for quotient in tried)
        return next((found for basis in bases if (found := self._linear(basis, values)) is not None), None)
