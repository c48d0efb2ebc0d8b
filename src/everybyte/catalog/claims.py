"""What five published articles say, claim by claim: in the book's words, with the numbers as stated and what settles them."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from fractions import Fraction
from functools import cache, cached_property
from math import inf

from .. import units
from ..common import checks, files

VERDICTS = (
    "holds",
    "holds if",
    "off by a factor of",
    "false",
    "contradicts itself",
    "contradicts another article",
    "outdated API",
    "not settled here",
)
#: Verdicts that a document can give. They are written by hand, and no computation checks them.
BY_SOURCE = ("holds", "false", "outdated API")
#: The articles: number -> subject.
ARTICLES = {
    1: "Calculating GPU memory requirements",
    2: "Predicting VRAM usage",
    3: "GPU memory management",
    4: "A practical guide to LLM GPU memory estimation",
    5: "Where training memory goes",
}
_NUMBER = r"(\d[\d,]*(?:\.\d+)?)"
_STATED = re.compile(rf"([<>=]\s*)?{_NUMBER}(?:\s*to\s*{_NUMBER}|(\+))?\s*(.*)")
#: How much a rule of the article, such as a sum of whole coefficients, may leave out and still be right.
_SHARE = Fraction(1, 100)


@dataclass(frozen=True)
class Stated:
    """An article's number, or the span that its words leave: from `low` to `high`, in `unit`, with the rounding of each.

    A single number has `low` equal to `high`; an open end is infinite. `strict` ends are not in the span.
    """

    low: Fraction | float
    high: Fraction | float
    unit: str = ""
    slack: tuple[Fraction, Fraction] = (Fraction(0), Fraction(0))
    strict: bool = False

    @classmethod
    def read(cls, text: str) -> "Stated":
        """Read "28 GB", "10 to 15 GB" or "20+ GB"; "> 1", "< 1 %" or "= 2" for what is implied.

        Raises:
            ValueError: where the text is none of these.
        """
        match = _STATED.fullmatch(text)
        if not match or (match[1] and (match[3] or match[4])):
            raise ValueError(
                f"{text!r} does not begin with its number; allowed: '28 GB', '10 to 15 GB', '20+ GB', '> 1'"
            )
        low = Fraction(match[2].replace(",", ""))
        high = Fraction(match[3].replace(",", "")) if match[3] else low
        sign, unit = (match[1] or "").strip(), match[5].strip()
        if high < low:
            raise ValueError(f"{text!r} does not ascend")
        if sign in ("<", ">"):
            return cls(-inf if sign == "<" else low, inf if sign == ">" else high, unit, strict=True)
        if sign == "=":
            return cls.about(low, unit)
        return cls(low, inf if match[4] else high, unit, (_rounding(low), _rounding(high)))

    @classmethod
    def about(cls, number: Fraction, unit: str = "") -> "Stated":
        """A number that follows from a rule, allowed to be off by one part in a hundred."""
        return cls(number, number, unit, (number * _SHARE, number * _SHARE))

    def holds(self, value: Fraction) -> bool:
        """Whether `value`, in the same unit, is what was stated."""
        if self.strict:
            return self.low < value < self.high
        return self.low - self.slack[0] <= value <= self.high + self.slack[1]

    def nearest(self, value: Fraction) -> Fraction | float:
        """The number of the span that is nearest to `value`."""
        return min(max(value, self.low), self.high)

    def meets(self, other: "Stated") -> bool:
        """Whether the two have a number in common, rounding allowed. Their unit is the same."""

        def apart(one, two):
            top, bottom = one.high + one.slack[1], two.low - two.slack[0]
            return top < bottom or (top == bottom and (one.strict or two.strict))

        return not apart(self, other) and not apart(other, self)


def _rounding(number):
    """How far a stated number may be off by rounding: half of its last nonzero digit, and at most a tenth of it."""
    last = (Decimal(number.numerator) / number.denominator).normalize().as_tuple().exponent
    return min(Fraction(10) ** int(last) / 2, number / 10)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim of an article, and what settles it. `everybyte.published.settling` parses its expressions; none is run as code.

    Attributes:
        id: article and a name, "1.weights-7b". article: 1 to 5. section: its heading. claim: in the book's words.
        verdict: one of `VERDICTS`, which has to follow from the numbers. chapter: the notebook that derives them.
        stated: the article's number with its unit, as `Stated.read` takes it; "" where it has none.
        expects: the comparison that its words imply, "> 1". recipe: an expression of the article's own rule.
        unit: of `expects` and `recipe`; `stated` brings its own. conditions: what the article says that it holds under.
        numbers: the numbers of the article that the claim rests on; by default those of `stated`.
        value: an expression of the true number. model, setup, gpu, format, symbols: give its letters their values.
        runs: {name: another model and setup that the expression may use}. condition, given: what must hold in addition, in
            words, and the fields that change then.
        own: an expression of what the article says elsewhere. against: the id of another article's claim about the same
            quantity.
        easy: why it does not count as an estimate, such as "a definition".
        sample: the name of a call in `everybyte.published.samples`. needs: what would settle a claim that is not settled here.
        found, source: where a document settles it, what that says in the book's words, and its address with the date of reading.

    Raises:
        ValueError: naming the claim, the field, the value and what is allowed.
    """

    id: str
    article: int
    section: str
    claim: str
    verdict: str
    chapter: str
    stated: str = ""
    expects: str = ""
    recipe: str = ""
    unit: str = ""
    conditions: str = ""
    numbers: tuple[str, ...] | None = None
    value: str = ""
    model: str | Mapping = ""
    setup: Mapping = field(default_factory=dict)
    gpu: str = ""
    format: str = ""
    symbols: Mapping = field(default_factory=dict)
    runs: Mapping = field(default_factory=dict)
    condition: str = ""
    given: Mapping = field(default_factory=dict)
    own: str = ""
    against: str = ""
    easy: str = ""
    sample: str = ""
    found: str = ""
    source: str = ""
    needs: str = ""

    def __post_init__(self):
        owner = f"claim {self.id}"
        checks.one_of(owner, "verdict", self.verdict, VERDICTS)
        checks.whole(owner, "article", self.article, min(ARTICLES), max(ARTICLES))
        for each in fields(self):
            value = getattr(self, each.name)
            wanted = {"article": int, "numbers": tuple | None, "model": str | Mapping}.get(each.name)
            wanted = wanted or (Mapping if each.default_factory is dict else str)
            if not isinstance(value, wanted):
                raise ValueError(
                    f"{owner}.{each.name}: {value!r} is not {'text' if wanted is str else 'of the right kind'}"
                )
            if each.name in _REQUIRED and not value:
                raise ValueError(f"{owner}.{each.name}: empty; allowed: text")
        if not re.fullmatch(r"\d\d_\w+", self.chapter):
            raise ValueError(
                f"{owner}.chapter: {self.chapter!r} is no chapter; allowed: such as '12_gradients_and_optimizers'"
            )
        if sum(map(bool, (self.stated, self.expects, self.recipe))) > 1:
            raise ValueError(f"{owner}.expects: only one of stated, expects and recipe may be given")
        if bool(self.condition) != bool(self.given):
            raise ValueError(f"{owner}.given: a condition in words and what it changes go together")
        if bool(self.found) != bool(self.source):
            raise ValueError(f"{owner}.source: what a document says and where it stands go together")
        if self.source and not re.fullmatch(r"https://\S+, \d{4}-\d\d-\d\d", self.source):
            raise ValueError(
                f"{owner}.source: {self.source!r}; allowed: 'https://..., 2026-11-22', an address and a date"
            )
        if self.source and (
            self.verdict not in BY_SOURCE or self.value or self.sample or self.given or self.own or self.needs
        ):
            raise ValueError(f"{owner}.source: a document settles alone; allowed verdicts: {', '.join(BY_SOURCE)}")
        for name in ("stated", "expects"):
            try:
                if getattr(self, name):
                    Stated.read(getattr(self, name))
            except ValueError as error:
                raise ValueError(f"{owner}.{name}: {error}") from None
        if self.numbers is None:
            object.__setattr__(self, "numbers", tuple(re.findall(_NUMBER, self.stated)))
        if not self.unit and self.span:
            object.__setattr__(self, "unit", self.span.unit)
        if "/" not in self.unit and self.unit not in units.UNITS and self.unit.lower() in map(str.lower, units.UNITS):
            raise ValueError(f"{owner}.unit: {self.unit!r} is unknown; allowed: {', '.join(units.UNITS)}")

    @cached_property
    def span(self) -> Stated | None:
        """The span that `stated` or `expects` allows; None where there is neither, as where the article's rule is computed."""
        text = self.stated or self.expects
        return Stated.read(text) if text else None


_REQUIRED = tuple(f.name for f in fields(Claim) if f.default is f.default_factory and f.name != "id")


def read_claims(text: str) -> dict[str, Claim]:
    """Claims by id from TOML, a table each.

    Raises:
        ValueError: naming the claim and the field: one missing, unknown, or with a value that is not allowed.
    """
    found = {}
    for id, entry in tomllib.loads(text).items():
        checks.table(f"claim {id}", entry, _REQUIRED, [f.name for f in fields(Claim) if f.name != "id"])
        if "numbers" in entry:
            entry["numbers"] = tuple(entry["numbers"])
        found[id] = Claim(id=id, **entry)
    for claim in found.values():
        if claim.against:
            checks.one_of(f"claim {claim.id}", "against", claim.against, found)
    return found


@cache
def claims() -> dict[str, Claim]:
    """Every claim of the catalog, by id, article by article."""
    return read_claims(files.text(__package__, "claims.toml"))
