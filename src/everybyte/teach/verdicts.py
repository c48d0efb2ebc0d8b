"""The table of the beat "What the articles say": each claim, its number, the computed one, and a verdict that follows."""

import re
from collections.abc import Iterable
from fractions import Fraction

from .. import checks, units
from ..tables import Table
from .quantities import show

VERDICTS = (
    "holds",
    "holds if …",
    "off by a factor of …",
    "contradicts itself",
    "contradicts another article",
    "outdated API",
    "not settled here",
)
_IF, _FACTOR = "holds if ", "off by a factor of"
_STATED = re.compile(r"(\d[\d,]*(?:\.\d+)?)(?:\s*(?:to|-|–)\s*(\d[\d,]*(?:\.\d+)?))?\s*(.*)")


def articles(rows: Iterable[tuple], caption: str = "") -> Table:
    """A table of claims, from rows (article, claim, stated, computed, verdict).

    article: 1 to 5. claim: in our words. stated: the article's number with its unit, "30 GB", or its range, "10 to 15 GB";
    empty where it gives none. computed: a number, of bytes where the stated unit is one of bytes and else in that unit;
    text and None are shown as they are. verdict: one of `VERDICTS`, with a condition after "holds if"; the factor
    after "off by a factor of" is filled in.

    Raises:
        ValueError: naming the field; also where the verdict does not follow from the two numbers.
    """
    return Table(("article", "claim", "stated", "computed", "verdict"), [_row(*row) for row in rows], caption)


def _row(article, claim, stated, computed, verdict):
    checks.whole("articles", "article", article, 1, 5)
    if not verdict.startswith((_IF, _FACTOR)) or verdict in (_IF, "holds if …"):
        checks.one_of("articles", "verdict", verdict, [v for v in VERDICTS if "…" not in v])
    low, high, unit = _range(stated)
    if low is None or computed is None or isinstance(computed, str):
        if verdict.startswith(_FACTOR):
            raise ValueError(
                f"articles.verdict: {verdict!r} needs two numbers; stated {stated!r}, computed {computed!r}"
            )
        return str(article), claim, stated or "–", computed or "–", verdict
    exact = Fraction(computed)
    value = exact / units.UNITS.get(unit, 1)
    holds = low - _slack(low) <= value <= high + _slack(high)
    if verdict == "holds" and not holds:
        raise ValueError(f"articles.verdict: 'holds', but {stated!r} was stated and {show(exact, unit)} computed")
    if verdict.startswith(_FACTOR):
        verdict = _factor(verdict, low if value < low else high, value, holds, stated)
    return str(article), claim, stated, show(exact, unit), verdict


def _range(stated):
    match = _STATED.fullmatch(stated or "")
    if not match:
        if re.search(r"\d", stated or ""):
            raise ValueError(
                f"articles.stated: {stated!r} does not begin with its number; allowed: '30 GB', '10 to 15 GB'"
            )
        return None, None, ""
    low, high = (Fraction(n.replace(",", "")) for n in (match[1], match[2] or match[1]))
    return low, high, match[3].strip()


def _slack(number):
    """How far rounding may have moved `number`: half of its last digit other than zero, and at most a tenth of it."""
    power = 12
    while (number / Fraction(10) ** power).denominator != 1:
        power -= 1
    return min(Fraction(10) ** power / 2, number / 10)


def _factor(verdict, stated, value, holds, text):
    if holds or value <= 0 or stated <= 0:
        raise ValueError(f"articles.verdict: {verdict!r}, but {text!r} was stated and {float(value):.4g} computed")
    found = f"{float(max(stated / value, value / stated)):.2g}"
    said = verdict.removeprefix(_FACTOR).strip(" …")
    if said and said != found:
        raise ValueError(
            f"articles.verdict: {verdict!r}, but the numbers say {found}; leave the factor out: it is filled in"
        )
    return f"{_FACTOR} {found}"
