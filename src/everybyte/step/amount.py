"""How many bytes something has, as an exact function of letters: a sum of products of letters and of rounded quotients.

`Amount` is the algebra, in fractions: it is evaluated on whole numbers and arrays, added, multiplied, read and printed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import lcm, prod
from typing import Any

#: The letters of batch and sequence. A reader's own letters are other capital ones.
USUAL = "BS"
#: What a setup calls them.
NAMES = {"B": "batch", "S": "sequence"}
LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
#: The highest power of a letter or a quotient that is read.
_HIGHEST = 16
_RAISED = {1: "", 2: "²", 3: "³", 4: "⁴"}


@dataclass(frozen=True, order=True)
class Quotient:
    """floor((X + `plus`) / `by`), X the product of the `letters`; or the sum `of` monomials, (monomial, times) each."""

    letters: str
    plus: int
    by: int
    of: "tuple[tuple[Monomial, int], ...]" = ()

    @cached_property
    def inside(self) -> "Amount":
        """X."""
        return Amount.of(self.of or {prod((Monomial.of(x) for x in self.letters), start=ONE): 1})

    def at(self, sizes: Mapping[str, Any]):
        """Its value at sizes of the letters: whole numbers, or arrays of them."""
        x = sum(n * m.at(sizes) for m, n in self.of) if self.of else prod(sizes[x] for x in self.letters)
        return (x + self.plus) // self.by

    @property
    def used(self) -> set[str]:
        """The letters in it."""
        return set().union(*(m.used for m, _ in self.inside.terms))

    def fixed(self, sizes: Mapping[str, int]) -> "Amount":
        """With numbers for some letters."""
        inside = self.inside.fixed(sizes)
        if (constant := inside.constant) is not None:
            return Amount.of({ONE: (constant + self.plus) // self.by})
        of = tuple((m, int(n)) for m, n in inside.terms)
        same = inside == self.inside
        return Amount.of({Monomial.of(self if same else Quotient("", self.plus, self.by, of)): 1})

    def readable(self) -> str:
        """For people."""
        inside = self.inside.readable() if self.of else " ".join(self.letters)
        if self.plus == self.by - 1:
            return f"⌈{f'({inside})' if len(self.of) > 1 else inside}/{self.by}⌉"
        bare = f"({inside})" if len(self.of) > 1 else inside
        return f"⌊{f'({inside} + {self.plus})' if self.plus else bare}/{self.by}⌋"


@dataclass(frozen=True, order=True)
class Monomial:
    """B^`b` S^`s`, times powers of quotients and of `further` letters: (quotient or letter, power) each."""

    b: int = 0
    s: int = 0
    quotients: tuple[tuple[Quotient, int], ...] = ()
    further: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, atom: str | Quotient, power: int = 1) -> "Monomial":
        """A power of a letter or of a quotient."""
        if isinstance(atom, Quotient):
            return cls(quotients=((atom, power),))
        return cls(power * (atom == "B"), power * (atom == "S"), further=() if atom in USUAL else ((atom, power),))

    @property
    def powers(self) -> list[tuple[str, int]]:
        """(letter, power) of each letter that is not inside a quotient."""
        return [(letter, power) for letter, power in (("B", self.b), ("S", self.s), *self.further) if power]

    @property
    def atoms(self) -> list[tuple[str | Quotient, int]]:
        """(letter or quotient, power) each."""
        return [*self.powers, *self.quotients]

    @property
    def used(self) -> set[str]:
        """The letters in it, and in its quotients."""
        return set().union(*(atom.used if isinstance(atom, Quotient) else atom for atom, _ in self.atoms))

    def at(self, sizes: Mapping[str, Any]):
        """Its value at sizes of the letters: whole numbers, or arrays of them."""
        value = 1
        for letter, power in self.powers:
            value = value * sizes[letter] ** power
        for quotient, power in self.quotients:
            value = value * quotient.at(sizes) ** power
        return value

    def __mul__(self, other: "Monomial") -> "Monomial":
        quotients, further = _joined(self.quotients, other.quotients), _joined(self.further, other.further)
        return Monomial(self.b + other.b, self.s + other.s, quotients, further)

    def text(self, coefficient: int, whole: str) -> str:
        """So many of it, as code."""
        factors = [str(coefficient)] if coefficient != 1 or self == ONE else []
        for letter, power in self.powers:
            factors += [letter] * power
        for q, power in self.quotients:
            inside = " + ".join(m.text(n, whole) for m, n in q.of) if q.of else "*".join(q.letters)
            factors += [whole.format(f"{inside} + {q.plus}", q.by)] * power
        return "*".join(factors)


ONE = Monomial()


def _joined(one, other):
    """Powers of a product."""
    powers = dict(one)
    for base, power in other:
        powers[base] = powers.get(base, 0) + power
    return tuple(sorted(powers.items()))


@dataclass(frozen=True)
class Amount:
    """A sum of monomials, each with its coefficient, in their order."""

    terms: tuple[tuple[Monomial, Fraction], ...]

    @classmethod
    def of(cls, terms: Mapping[Monomial, Any] | Iterable[tuple[Monomial, Any]]) -> "Amount":
        """From coefficients; those of equal monomials are added up."""
        found: dict[Monomial, Fraction] = {}
        for m, c in terms.items() if isinstance(terms, Mapping) else terms:
            found[m] = found.get(m, 0) + Fraction(c)
        return cls(tuple(sorted((m, c) for m, c in found.items() if c)))

    @classmethod
    def letter(cls, atom: str | Quotient) -> "Amount":
        """A letter, or a quotient."""
        return cls.of({Monomial.of(atom): 1})

    @classmethod
    def total(cls, counts: Iterable[tuple["Amount", Any]]) -> "Amount":
        """The sum of amounts, each by its factor."""
        return cls.of((m, c * n) for amount, n in counts for m, c in amount.terms)

    def __add__(self, other):
        return Amount.of((*self.terms, *_amount(other).terms))

    def __mul__(self, other):
        return Amount.of((a * b, x * y) for a, x in self.terms for b, y in _amount(other).terms)

    __radd__, __rmul__ = __add__, __mul__

    def __pow__(self, power: int):
        return prod([self] * power, start=_amount(1))

    def value(self, sizes: Mapping[str, int]) -> Fraction:
        """Its value at sizes of the letters."""
        return sum((c * m.at(sizes) for m, c in self.terms), Fraction())

    def at(self, sizes: Mapping[str, int]) -> int:
        """Whole bytes; ValueError where it gives a fraction, which no tensor has."""
        value = self.value(sizes)
        if value.denominator != 1:
            said = ", ".join(f"{NAMES.get(letter, letter)} {size}" for letter, size in sizes.items())
            raise ValueError(f"derive: {self.text()} is no whole number at {said}")
        return int(value)

    def fixed(self, sizes: Mapping[str, int]) -> "Amount":
        """With numbers for some letters."""

        def value(atom):
            if isinstance(atom, Quotient):
                return atom.fixed(sizes)
            return sizes[atom] if atom in sizes else Amount.letter(atom)

        return self.moved(value)

    def moved(self, value: Callable[[str | Quotient], Any]) -> "Amount":
        """With what `value` says of each letter and quotient, an amount or a number, in its place."""
        return _amount(sum(c * prod(value(atom) ** power for atom, power in m.atoms) for m, c in self.terms))

    @cached_property
    def constant(self) -> int | None:
        """Its value where it depends on no letter; else None."""
        if not self.terms:
            return 0
        return int(self.terms[0][1]) if len(self.terms) == 1 and self.terms[0][0] == ONE else None

    def rounded(self, block: int) -> "Amount | None":
        """Rounded up to a multiple of `block`; None where that is no sum of monomials."""
        if self.constant is not None:
            return Amount.of({ONE: -(-self.constant // block) * block})
        return self if all(not m.quotients and c % block == 0 for m, c in self.terms) else None

    @cached_property
    def denominator(self) -> int:
        """The least number that makes all its coefficients whole."""
        return lcm(*(c.denominator for _, c in self.terms))

    def text(self, whole: str = "(({0}) // {1})") -> str:
        """As code in the letters, by default Python; whole numbers stay whole. `whole`: how a quotient is said."""
        under = self.denominator
        text = " + ".join(m.text(int(c * under), whole) for m, c in self.terms) or "0"
        return text if under == 1 else whole.format(text, under)

    def readable(self) -> str:
        """For people: thousands apart, no stars."""
        parts = []
        for m, c in sorted(
            self.terms, key=lambda t: (-sum(p for _, p in t[0].powers) - len(t[0].quotients), t[1] < 0, t[0])
        ):
            factors = [
                (atom.readable() if isinstance(atom, Quotient) else atom) + _RAISED.get(power, f"^{power}")
                for atom, power in m.atoms
            ]
            number = f"{abs(c).numerator:,}" + (f"/{c.denominator}" if c.denominator > 1 else "")
            text = " ".join(([] if abs(c) == 1 and factors else [number]) + factors)
            parts.append(("− " if c < 0 else "+ ") + text)
        return " ".join(parts).removeprefix("+ ") or "0"

    def as_list(self) -> list:
        """As JSON holds it."""
        return [[c.numerator, c.denominator, *_listed(m)] for m, c in self.terms]

    @classmethod
    def read(cls, said: list) -> "Amount":
        """The other way; ValueError, TypeError or KeyError where it is none."""
        return cls.of({_read(rest): Fraction(_whole(over), _whole(under, 1)) for over, under, *rest in said})


def _amount(value) -> Amount:
    return value if isinstance(value, Amount) else Amount.of({ONE: value})


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
        inside.append((Quotient(str(letters), _whole(plus), _whole(by, 1), sums), _whole(power, 1, _HIGHEST)))
    powers = tuple((letter, _whole(power, 1, _HIGHEST)) for letter, power in (further[0] if further else ()))
    if not {letter for letter, _ in powers} <= LETTERS - set(USUAL):
        raise ValueError("derive: letters of no reader's own")
    return Monomial(_whole(b, 0, _HIGHEST), _whole(s, 0, _HIGHEST), tuple(inside), powers)


def _whole(value, least=-(2**200), most=2**200):
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"derive: {value!r} is no whole number of its kind")
    return value
