"""From values at some points to the exact function that has them, in fractions."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import product

from ..step.amount import ONE, Amount, Monomial, Quotient


def _powers(*powers):
    """Powers of B and S."""
    return tuple(Amount.of({Monomial(b, s): 1}) for b, s in powers)


_SUMS = _powers((0, 0), (1, 0), (0, 1), (1, 1))
_STRAIGHT = _SUMS + _powers((0, 2), (1, 2))
_SQUARES = _STRAIGHT + _powers((2, 0), (2, 1), (2, 2))
#: What stands for each pair of chunks of a sequence, as a state space model's decays do.
_CHUNKS = _powers((0, 0), (1, 0))
#: What kernels pad to, and other divisors that are tried, the likelier first.
_BY = [8, 16, 32, 64, 128, 256, 512, 4, 2, *(n for n in range(3, 65) if n & (n - 1))]


class Basis:
    """Combinations of some amounts, told apart by some points.

    Args:
        amounts: those that the points do not tell apart from earlier ones are left out. points: sizes of the letters.
    """

    def __init__(self, amounts: Sequence[Amount], points: Sequence[Mapping[str, int]]):
        self.points = points
        self._factors = Factors([[amount.value(p) for amount in amounts] for p in points])
        self._amounts = [amounts[c] for c in self._factors.columns]

    def solve(self, values: Sequence) -> Amount | None:
        """The combination that has these values; None where there is none, or not two points more than it needs."""
        if len(self._amounts) + 2 > len(self.points):
            return None
        found = Amount.total(zip(self._amounts, self._factors.of(values), strict=True))
        return found if all(found.value(p) == v for p, v in zip(self.points, values, strict=True)) else None


class Factors:
    """Solves for the factors of a matrix's columns, by Gauss and Jordan's elimination in fractions.

    Attributes:
        columns: numbers of the independent ones.
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
        self._inverse = [[(r, a) for r, a in enumerate(work[p][-size:]) if a] for p in pivots.values()]

    def of(self, values: Sequence) -> list[Fraction]:
        """The factor of each of `columns` from a value for each row; they are exact if any combination is."""
        return [sum((a * values[r] for r, a in line), Fraction()) for line in self._inverse]


class Solver:
    """Finds the amounts of values at some points.

    Args:
        points: sizes of B and S of each value. by: further divisors to try, such as the chunks of a loss.
    """

    def __init__(self, points: Sequence[tuple[int, int]], by: Sequence[int] = ()):
        self.points = [{"B": b, "S": s} for b, s in points]
        tried = product(("S", "BS", "B"), [*by, *_BY])
        self._quotients = [Quotient(letters, plus, by) for letters, by in tried for plus in (by - 1, 0)]
        self._bases: dict[tuple, Basis] = {}

    def solve(self, values: Sequence[int]) -> Amount | None:
        """The simplest amount that has these values, a sum, or one with a rounded quotient; or None."""
        values = [int(v) for v in values]
        if len(set(values)) == 1:
            return Amount.of({ONE: values[0]})
        found = self._sum((_STRAIGHT, _SQUARES), values) or self._product(values)
        return (
            found
            or self._sum(self._padded(_SUMS, (0, 1)), values)
            or self._sum(self._padded(_CHUNKS, (0, 1, 2)), values)
        )

    def _padded(self, amounts, powers):
        """Bases: the amounts times powers of a rounded quotient."""
        return (tuple(x * Amount.letter(q) ** n for n in powers for x in amounts) for q in self._quotients)

    def _sum(self, bases, values):
        """The first combination that has these values, of some bases."""
        for basis in bases:
            if basis not in self._bases:
                self._bases[basis] = Basis(basis, self.points)
            if found := self._bases[basis].solve(values):
                return found
        return None

    def _product(self, values):
        """With one rounded quotient."""
        for quotient, b, s, power in product(self._quotients, (0, 1), (0, 1, 2), (1, 2)):
            monomial = Monomial(b, s, ((quotient, power),))
            at = [monomial.at(p) for p in self.points]
            if all(at) and len({Fraction(v, a) for v, a in zip(values, at, strict=True)}) == 1:
                return Amount.of({monomial: Fraction(values[0], at[0])})
        return None
