"""Settle the articles' claims: compute numbers, and derive a verdict from them.

The rule, first match:

1. a call of PyTorch that runs without complaint holds; one with an error or a warning, or that is gone, is an outdated API;
   for hardware and other packages a document is quoted, with address and date, and the verdict is written beside it;
2. a claim without a value or a document is not settled here;
3. a claim holds where the value, rounded as in the article, is the stated number; it holds if the condition is met, where the
   value is the stated number only with the condition;
4. it contradicts the article's own figures, or another article's, where the two have no number in common;
5. else it is off by the factor between the value and the nearest stated number.

A stated number is a span: plus and minus half of its last digit other than zero, but at most a tenth. "28 GB" is 27.5 to 28.5,
"30 GB" is 27 to 33. A rule's span is one part in a hundred, since the smallest tensors of a block may add as much.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from ..catalog import Claim, claims
from ..catalog.claims import Stated
from ..common import checks
from .expressions import Reader


@dataclass(frozen=True)
class Settled:
    """A claim with its value and its verdict.

    Attributes:
        stated: the span that the article states or implies, in `claim.unit`; None where there is none.
        computed: the value in the same unit; or the words of PyTorch ("" for none) or of a document; or None.
        under: the value with the condition met, where the claim has one.
        verdict: in full, with the condition or the factor.
        ratio: of the nearest stated number to the value; None where one of them is missing or zero, or where only a
            comparison was implied.
    """

    claim: Claim
    stated: Stated | None
    computed: Fraction | str | None
    under: Fraction | str | None
    verdict: str
    ratio: float | None

    @property
    def factor(self) -> float | None:
        """The factor between the value and the stated number, 1 or more in either direction."""
        return None if self.ratio is None else max(self.ratio, 1 / self.ratio)

    @property
    def text(self) -> str:
        """The computed number with its unit, then the number with the condition met."""
        said = [_shown(value, self.claim.unit) for value in (self.computed, self.under) if value is not None]
        return ", or ".join(dict.fromkeys(said)) or "–"

    @property
    def stated_text(self) -> str:
        """The stated number as text: the article's number, its rule's value, or the comparison that it implies."""
        if self.claim.recipe and self.stated:
            return _shown(self.stated.low, self.claim.unit)
        return self.claim.stated or self.claim.expects or "–"

    def as_dict(self) -> dict:
        """A dict for JSON: `stated` is a number or [least, most], null for an open end; `computed` is a number, text or null."""
        span = None if self.stated is None else [_plain(self.stated.low), _plain(self.stated.high)]
        computed = _plain(self.computed) if isinstance(self.computed, Fraction) else self.computed
        return {
            "id": self.claim.id, "article": self.claim.article, "claim": self.claim.claim,
            "stated": span[0] if span and span[0] == span[1] else span, "unit": self.claim.unit,
            "computed": computed, "verdict": self.verdict, "chapter": self.claim.chapter,
        }  # fmt: skip


def settle(claim: Claim) -> Settled:
    """Settle a claim.

    Raises:
        ValueError: naming the claim and the field: for an unreadable expression, an unknown name, a verdict that does not follow,
            invalid evidence.
    """
    checks.kind("settle", "claim", claim, Claim)
    plain, special = Reader(claim), Reader(claim, claim.given) if claim.given else None
    stated = _stated(claim, plain)
    if claim.source:
        return Settled(claim, stated, claim.found, None, claim.verdict, None)
    computed, under = plain.computed(), special.computed() if special else None
    own = plain.read("own") if claim.own else None
    if claim.against and not disagree(claim, claims()[claim.against]):
        raise ValueError(f"claim {claim.id}.against: it agrees with {claim.against}")
    verdict = _sample_kind(claim, computed, under) if claim.sample else _kind(claim, stated, computed, under, own)
    if verdict != claim.verdict:
        raise ValueError(f"claim {claim.id}.verdict: {claim.verdict!r}, but the numbers say {verdict!r}")
    if verdict == "contradicts itself":
        computed = own
    ratio = None
    if stated is not None and isinstance(computed, Fraction) and computed > 0 and not claim.expects:
        ratio = float(stated.nearest(computed) / computed) or None
    if verdict == "off by a factor of":
        low, high = sorted((computed, stated.nearest(computed)))
        verdict += f" {_digits(float(high / low))}"
    elif verdict == "holds if":
        verdict += f" {claim.condition}"
    return Settled(claim, stated, computed, under, verdict, ratio)


def disagree(one: Claim, other: Claim) -> bool:
    """Whether two claims about one quantity have no number in common.

    Raises:
        ValueError: where they have different units, or one of them states no number.
    """
    spans = [_stated(claim, Reader(claim)) for claim in (one, other)]
    if None in spans or one.unit != other.unit:
        raise ValueError(f"claim {one.id}.against: {other.id} states nothing that can be set beside it")
    return not spans[0].meets(spans[1])


def _stated(claim, reader):
    return Stated.about(reader.read("recipe")) if claim.recipe else claim.span


def _sample_kind(claim, said, under):
    if not claim.condition:
        return "outdated API" if said else "holds"
    if not said or under:
        raise ValueError(f"claim {claim.id}.given: the call must run with it and not without")
    return "holds if"


def _kind(claim, stated, computed, under, own):
    if computed is None and own is None and not claim.against:
        return "not settled here"
    if stated is None:
        raise ValueError(f"claim {claim.id}.stated: missing; a value needs a number to stand beside")
    if computed is not None and stated.holds(computed):
        if claim.given or claim.own:
            raise ValueError(f"claim {claim.id}.value: it holds, so neither given nor own may be there")
        return "holds"
    if under is not None:
        if not stated.holds(under):
            raise ValueError(f"claim {claim.id}.given: it does not hold with it either: {_shown(under, claim.unit)}")
        return "holds if"
    if own is not None:
        if stated.holds(own):
            raise ValueError(f"claim {claim.id}.own: it agrees with what is stated")
        return "contradicts itself"
    if computed is None:
        return "contradicts another article"
    if stated.strict:
        return "false"
    if not computed or not stated.nearest(computed) or stated.nearest(computed) == computed:
        raise ValueError(f"claim {claim.id}.value: no factor between {_shown(computed, claim.unit)} and what is stated")
    return "off by a factor of"


def _shown(value, unit):
    if isinstance(value, str):
        return value or "runs"
    return f"{_digits(float(value))} {unit}".rstrip()


def _digits(value):
    """A number in four significant digits; with two decimals where it has more digits before the point."""
    if value == int(value) or abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:,.{max(2, 3 - math.floor(math.log10(abs(value))))}f}".rstrip("0").rstrip(".")


def _plain(value):
    return None if math.isinf(value) else int(value) if value == int(value) else float(value)
