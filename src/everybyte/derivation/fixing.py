"""A derivation with numbers for some of the reader's own letters."""

from dataclasses import replace
from functools import partial

from ..common import checks
from ..step.amount import Amount


def fixed(derivation, sizes: dict[str, int]):
    """The derivation at these sizes of further letters, in the letters that are left.

    Raises:
        ValueError: a letter that is not there, or a size for which no case holds.
    """
    for letter, value in sizes.items():
        checks.one_of("derive", "letter", letter, [*derivation.further])
        checks.whole("derive", letter, value, *derivation.range(letter))

    def left(values):
        """Of what there is one of for each letter: what the letters that are left have."""
        return {letter: x for letter, x in zip(derivation.every, values, strict=True) if letter not in sizes}

    def inside(ranges):
        return all(sizes[letter] in r for letter, r in zip(derivation.every, ranges, strict=True) if letter in sizes)

    def at(point):
        return all(sizes.get(letter, x) == x for letter, x in zip(derivation.every, point, strict=True))

    said = ", ".join(f"{letter} {value:,}" for letter, value in sizes.items())
    cases = [replace(c, ranges=left(c.ranges.values())) for c in derivation.cases if inside(c.ranges.values())]
    if not cases:
        why = next((why for ranges, why in derivation.refused if inside(ranges)), "no case holds there")
        raise ValueError(f"derive: {said} of {derivation.name}: {why}")
    forms: dict[Amount, int] = {}
    numbers = [forms.setdefault(form.fixed(sizes), len(forms)) for form in derivation.forms]
    refused = [(tuple(left(ranges).values()), why) for ranges, why in derivation.refused if inside(ranges)]
    where = ", ".join(f"{letter} = {value:,}" for letter, value in sizes.items())
    return replace(
        derivation, forms=tuple(forms), columns=tuple(replace(c, form=numbers[c.form]) for c in derivation.columns),
        cases=tuple(cases), refused=tuple(refused), how=f"{derivation.how} Here {where}.",
        checked=tuple((layers, *left(point).values()) for layers, *point in derivation.checked if at(point)),
        letters="".join(letter for letter in derivation.letters if letter not in sizes),
        again=derivation.again and partial(derivation.again, **sizes),
    )  # fmt: skip
