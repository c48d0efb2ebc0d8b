"""Whether a step's memory grows with a letter, by proof; and the largest size of it with which a peak stays below a bound."""

from collections.abc import Callable

from ..step.amount import Amount, Quotient


def grows(amount: Amount, letter: str, low: int) -> bool:
    """Whether it is proved that an amount never falls as a letter grows from `low` on.

    Write the letter, and each quotient of it, as its least value plus a rest: then no coefficient is negative.
    """
    quotients = {q for m, _ in amount.terms for q, _ in m.quotients if letter in q.used}
    if not all(grows(q.inside, letter, low) for q in quotients):
        return False

    def value(atom):
        if isinstance(atom, Quotient):
            return Amount.letter(atom) + (atom.at({letter: low}) if atom.used == {letter} else 0)
        return Amount.letter(atom) + (low if atom == letter else 0)

    return all(c >= 0 for m, c in amount.moved(value).terms if letter in m.used)


def largest(derivation, setup, letter: str, over: Callable[[int], int]):
    """(the largest size that is not over, or None; the next larger one that the model takes, or None; the least one).

    Args:
        over: bytes that a size is over some bound. setup: its batch and sequence.

    Raises:
        ValueError: where the peak is not known to grow with the letter, or no case holds at the setup's batch and sequence.
    """
    point = {"B": setup.batch, "S": setup.sequence}
    cases = [c for c in derivation.cases if all(point[x] in c.ranges[x] for x in point)]
    if not cases:
        derivation.case(point | {letter: derivation.range(letter)[0]})
    fit, ranges = [], [case.ranges[letter] for case in cases]
    for case, r in zip(cases, ranges, strict=True):
        used = (derivation.forms[k] for k in derivation.used(case))
        if falls := next((form for form in used if not grows(form, letter, r.low)), None):
            raise ValueError(
                f"fit.vary: {letter!r}, and {falls.text()} bytes are not known to grow with it; allowed: .at({letter}=...) at the "
                "sizes that you want"
            )
        low, high = r.first(r.low), r.last(r.high)
        if over(low) > 0:
            continue
        while low < high:
            middle = max(r.last((low + high + 1) // 2), r.first(low + 1))
            low, high = (middle, high) if over(middle) <= 0 else (low, r.last(middle - 1))
        fit.append(low)
    following = [n for r in ranges if fit and (n := r.first(max(fit) + 1)) is not None]
    return max(fit, default=None), min(following, default=None), min(r.first(r.low) for r in ranges)
