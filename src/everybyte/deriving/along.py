"""The bytes of each tensor in letters of the reader's own: in batch and sequence first, then along each further letter.

With the other letters fixed, a tensor's bytes are a sum of monomials, and along a further letter each monomial's factor is
a function of that letter alone. One line of dry runs tells it where there is one monomial, or all have the same factor;
several lines, at other batches and sequences, where there are more.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..step.amount import Amount
from .lines import Line, Unsure
from .solver import Factors

#: Sizes that are looked at first, of those that a range has.
_START = (224, 225, 64, 97, 128, 150, 191, 256, 310, 48)
_COUNT = 10
#: So many sizes, and so many lines, are looked at along one letter.
_SIZES, _LINES = 60, 5


class _Few(Exception):
    """More lines are needed along a letter."""


@dataclass
class _Axis:
    letter: str
    within: Any
    sizes: list[int]
    bases: list[tuple]


class Along:
    """Solves the bytes of a patch's tensors: in batch and sequence, then along its further letters.

    Args:
        solving: what looks. patch: whose points are those of batch and sequence. plane: their solver. letters: the further
            ones that are more than one size.
    """

    def __init__(self, solving, patch, plane, letters):
        self._solving, self._patch, self._plane = solving, patch, plane
        self._points = list(patch.points)
        self._place = {letter: i for i, letter in enumerate(solving.letters)}
        self._axes = []
        for letter in letters:
            within = patch.ranges[self._place[letter]]
            usual = self._points[0][self._place[letter]]
            members = [n for n in range(within.low, min(within.high, within.low + 512) + 1) if n in within]
            spread = members[:: max(1, len(members) // _COUNT)] + members[-1:]
            sizes = within.some([usual, *(n for n in (*_START, *spread) if n in within)], _COUNT)
            self._axes.append(_Axis(letter, within, sorted(sizes[:_COUNT]), [self._points[0]]))

    def forms(self) -> list[Amount]:
        """The form of each of the step's tensors; the points that were looked at are the patch's then.

        Raises:
            ValueError: where a tensor's bytes have none, naming it.
        """
        while True:
            self._look()
            try:
                return self._solved()
            except _Few as error:
                axis = error.args[0]
                axis.bases.append(self._base(axis, len(axis.bases)))
            except Unsure as error:
                axis, size = error.args
                axis.sizes = sorted({*axis.sizes, size})

    def _look(self):
        """Look at all points of all lines, and at some where every letter is another."""
        points = dict.fromkeys(self._points)
        for axis in self._axes:
            points |= dict.fromkeys(self._at(axis, base, size) for base in axis.bases for size in axis.sizes)
        for base in self._points[1:3]:
            for k, axis in enumerate(self._axes):
                base = self._at(axis, base, axis.sizes[(len(axis.sizes) // 3 + 5 * k) % len(axis.sizes)])
            points[base] = None
        self._patch.points = list(points)
        self._solving._same(self._patch)
        looks = [self._solving._look(*p) for p in self._patch.points]
        self._tensors = list(zip(*(look.bytes for look in looks), strict=True))
        self._number = {p: i for i, p in enumerate(self._patch.points)}

    def _at(self, axis, base, size):
        place = self._place[axis.letter]
        return (*base[:place], size, *base[place + 1 :])

    def _base(self, axis, count):
        """A further line: at another batch and sequence, and other sizes of the letters before."""
        base = self._points[count % len(self._points)]
        for k, other in enumerate(self._axes[: self._axes.index(axis)]):
            base = self._at(other, base, other.sizes[(2 * count + k) % len(other.sizes)])
        if count >= _LINES or base in axis.bases:
            raise ValueError(
                f"derive: the bytes of some tensors grow along {axis.letter} each in another way; allowed: a fixed size for one of "
                "the letters, or eb.dry_run"
            )
        return base

    def _solved(self):
        lines = {axis.letter: Line(axis.letter, axis.sizes, axis.within) for axis in self._axes}
        # a range in which a quotient has few values takes the forms of one where it has many
        known: dict[tuple, Amount | None] = {}
        for form in self._solving.forms:
            first = known.setdefault(tuple(self._solving._of(form, p) for p in self._patch.points), form)
            if first is not form:
                self._tell(first, form, lines)
        for _ in range(2):  # what is padded is found once what is padded is known
            for row in dict.fromkeys(self._tensors):
                if known.get(row) is None:
                    known[row] = self._form(row, lines)
        points, of = self._patch.points, self._solving._of
        fits = {r: known[r] and all(of(known[r], p) == v for p, v in zip(points, r, strict=True)) for r in known}
        for number, row in enumerate(self._tensors):
            if not fits[row]:
                raise ValueError(self._solving._no_form(number, points, row))
        return [known[row] for row in self._tensors]

    def _tell(self, one, other, lines):
        """Raise where two forms that agree at all points differ along a line, with the size."""
        for axis in self._axes:
            for n in lines[axis.letter].window:
                point = self._at(axis, axis.bases[0], n)
                if self._solving._of(one, point) != self._solving._of(other, point) and len(axis.sizes) < _SIZES:
                    raise Unsure(axis, n)

    def _form(self, row, lines):
        """A tensor's amount from its bytes at all points; None where it has none."""
        found = self._plane.solve([row[self._number[p]] for p in self._points])
        for axis in self._axes:
            if found is None:
                return None
            try:
                found = self._along(axis, found, row, lines[axis.letter])
            except Unsure as error:
                if len(axis.sizes) >= _SIZES:
                    return None
                raise Unsure(axis, error.args[0]) from None
        return found

    def _along(self, axis, amount, row, line):
        """The amount with the factor of each of its monomials along a letter; None where one has none."""
        found = []
        for (monomial, _), values in zip(amount.terms, self._factors(axis, amount, row), strict=True):
            if (factor := line.solve(values)) is None:
                return None
            found += [(monomial * m, c) for m, c in factor.terms]
        return Amount.of(found)

    def _factors(self, axis, amount, row):
        """The coefficients along a letter of each of an amount's monomials, at each of the sizes looked at."""
        values = [[Fraction(row[self._number[self._at(axis, base, n)]]) for n in axis.sizes] for base in axis.bases]
        usual = [row[self._number[base]] for base in axis.bases]
        ratios = [[v / u for v in line] for line, u in zip(values, usual, strict=True) if u]
        if not ratios:
            return [[Fraction()] * len(axis.sizes) for _ in amount.terms]
        same = all(line == ratios[0] for line in ratios)
        if same and (len(amount.terms) == 1 or len(ratios) > 1 or set(ratios[0]) == {1}):
            return [[c * r for r in ratios[0]] for _, c in amount.terms]
        bases = [dict(zip(self._place, base, strict=True)) for base in axis.bases]
        factors = Factors([[m.at(base) for m, _ in amount.terms] for base in bases])
        if len(factors.columns) < len(amount.terms):
            raise _Few(axis)
        return zip(*(factors.of(at) for at in zip(*values, strict=True)), strict=True)
