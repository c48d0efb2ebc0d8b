"""A derivation with numbers for some of the reader's own letters."""

from dataclasses import replace
from fractions import Fraction
from functools import partial

from ..common import checks
from .forms import USUAL, Form, Monomial, Quotient


def fixed(derivation, sizes: dict[str, int]):
    """The derivation at these sizes of further letters, in the letters that are left.

    Raises:
        ValueError: a letter that is not there, or a size for which no case holds.
    """
    for letter, value in sizes.items():
        checks.one_of("derive", "letter", letter, [*derivation.further])
        low, high = derivation.range(letter)
        checks.whole("derive", letter, value, low, high)
    letters = [*USUAL, *derivation.further]
    left = "".join(letter for letter in derivation.letters if letter not in sizes)

    def kept(values):
        return tuple(value for letter, value in zip(letters, values, strict=True) if letter not in sizes)

    def inside(ranges):
        return all(sizes[letter] in r for letter, r in zip(letters, ranges, strict=True) if letter in sizes)

    cases = [
        replace(case, further=tuple((letter, r) for letter, r in case.further if letter not in sizes))
        for case in derivation.cases
        if inside(case.ranges.values())
    ]
    if not cases:
        said = ", ".join(f"{letter} {value:,}" for letter, value in sizes.items())
        why = next((why for ranges, why in derivation.refused if inside(ranges)), "no case holds there")
        raise ValueError(f"derive: {said} of {derivation.name}: {why}")
    forms: dict[Form, int] = {}
    numbers = [forms.setdefault(_form(form, sizes), len(forms)) for form in derivation.forms]
    places = {letter: i + 1 for i, letter in enumerate(letters)}
    checked = [
        (layers, *kept(point)) for layers, *point in derivation.checked
        if all(point[places[letter] - 1] == value for letter, value in sizes.items())
    ]  # fmt: skip
    where = ", ".join(f"{letter} = {value:,}" for letter, value in sizes.items())
    return replace(
        derivation, forms=tuple(forms), columns=tuple(replace(c, form=numbers[c.form]) for c in derivation.columns),
        cases=tuple(cases), refused=tuple((kept(ranges), why) for ranges, why in derivation.refused if inside(ranges)),
        how=f"{derivation.how} Here {where}.", checked=tuple(checked), letters=left,
        again=derivation.again and partial(derivation.again, **sizes),
    )  # fmt: skip


def _form(form, sizes):
    terms: dict[Monomial, Fraction] = {}
    for m, c in form.terms:
        mine, factor = _monomial(m, sizes)
        terms[mine] = terms.get(mine, Fraction()) + c * factor
    return Form.of(terms)


def _monomial(m, sizes):
    """(what is left of a monomial, the number that the rest is)."""
    factor = 1
    for letter, power in m.further:
        factor *= sizes.get(letter, 1) ** power
    found = Monomial(m.b, m.s, (), tuple((letter, p) for letter, p in m.further if letter not in sizes))
    for quotient, power in m.quotients:
        mine = _quotient(quotient, sizes)
        if isinstance(mine, int):
            factor *= mine**power
        else:
            found *= Monomial(quotients=((mine, power),))
    return found, factor


def _quotient(q, sizes):
    """A quotient, or the number that it is."""
    of = q.of or ((_product(q.letters), 1),)
    inside: dict[Monomial, int] = {}
    for m, times in of:
        mine, factor = _monomial(m, sizes)
        inside[mine] = inside.get(mine, 0) + times * factor
    if set(inside) == {Monomial()}:
        return (inside[Monomial()] + q.plus) // q.by
    if inside == dict(of):
        return q
    return Quotient("", q.plus, q.by, tuple(sorted(inside.items())))


def _product(letters):
    own = tuple((letter, 1) for letter in sorted(letters) if letter not in USUAL)
    return Monomial(letters.count("B"), letters.count("S"), (), own)
