"""Whether a step's memory grows with a letter, by proof; and the largest size of it with which a peak stays below a bound."""

from collections.abc import Callable
from fractions import Fraction
from math import comb

from .forms import Form, Quotient


def grows(form: Form, letter: str, low: int) -> bool:
    """Whether a form never falls as a letter grows from `low` on: with that size and a rest for the letter, and so for each
    quotient of it, no coefficient is negative. Where it says no, the form may grow all the same."""
    found: dict[tuple, Fraction] = {}
    for m, c in form.terms:
        others = m.b if letter != "B" else 0, m.s if letter != "S" else 0
        parts: list[tuple] = [(letter, dict(m.powers).get(letter, 0), low)]
        rest: list[tuple] = [(x, p) for x, p in m.further if x != letter]
        for q, power in m.quotients:
            if not _has(q, letter):
                rest.append((q, power))
            elif not _rises(q, letter, low):
                return False
            elif set(q.letters) == {letter} or (q.of and not _others(q, letter)):
                parts.append((q, power, q.at(low, low, **{letter: low})))
            else:
                parts.append((q, power, 0))
        expanded: dict[tuple, Fraction] = {(): Fraction(c)}
        for what, power, least in parts:
            expanded = {
                (*key, *([(str(what), k)] if k else [])): factor * comb(power, k) * least ** (power - k)
                for key, factor in expanded.items()
                for k in range(power + 1)
            }
        for key, factor in expanded.items():
            place = others, tuple(map(str, rest)), key
            found[place] = found.get(place, Fraction()) + factor
    return all(c >= 0 for (*_, key), c in found.items() if key)


def _has(q: Quotient, letter):
    return letter in q.letters or any(
        dict(m.powers).get(letter) or any(_has(x, letter) for x, _ in m.quotients) for m, _ in q.of
    )


def _others(q: Quotient, letter):
    """Whether another letter is in a quotient."""
    return bool(set(q.letters) - {letter}) or any(
        set(dict(m.powers)) - {letter} or any(_others(x, letter) for x, _ in m.quotients) for m, _ in q.of
    )


def _rises(q: Quotient, letter, low):
    return not q.of or grows(Form.of(dict(q.of)), letter, low)


def largest(derivation, setup, letter: str, over: Callable[[int], int]):
    """(the largest size that is not over, or None; the next larger one that the model takes, or None; the least one).

    Raises:
        ValueError: where the peak is not known to grow with the letter, or no case holds at the setup's batch and sequence.
    """
    cases = [c for c in derivation.cases if setup.batch in c.batch and setup.sequence in c.sequence]
    if not cases:
        derivation.case(setup.batch, setup.sequence, **{letter: derivation.range(letter)[0]})
    value, ranges = None, [case.ranges[letter] for case in cases]
    for case, within in zip(cases, ranges, strict=True):
        used = {derivation.columns[c].form for i in case.rounded for c, _ in case.instants[i].counts}
        if falls := next(
            (derivation.forms[k] for k in used if not grows(derivation.forms[k], letter, within.low)), None
        ):
            raise ValueError(
                f"fit.vary: {letter!r}, and {falls.text()} bytes are not known to grow with it; allowed: .at({letter}=...) at the "
                "sizes that you want"
            )
        members = _Members(within)
        low, high = 0, len(members)  # so many fit
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if over(members[middle]) <= 0 else (low, middle)
        if low and (value is None or members[low - 1] > value):
            value = members[low - 1]
    following = [n for r in ranges if (n := _next(r, value)) is not None] if value is not None else []
    return value, min(following, default=None), min(_Members(r)[0] for r in ranges)


class _Members:
    """The numbers of a range, in order."""

    def __init__(self, r):
        self.range, self.by = r, r.by
        self.every = r.by == 1 or r.multiples
        self.first = -(-r.low // r.by) * r.by if self.every else r.low

    def __len__(self):
        if self.every:
            return max(0, (self.range.high - self.first) // self.by + 1)
        return self._below(self.range.high) - self._below(self.range.low - 1)

    def _below(self, n):
        """How many up to n are no multiples."""
        return n - n // self.by

    def __getitem__(self, i):
        if self.every:
            return self.first + i * self.by
        count = self._below(self.range.low - 1) + i  # so many no multiples are before it
        return count + count // (self.by - 1) + 1


def _next(r, value):
    return next(
        (n for n in range(max(r.low, value + 1), min(r.high, value + 2 * r.by) + 1) if n in r),
        r.low if r.low > value else None,
    )
