"""How a router spreads rows over the GPUs that divide experts: not one ratio, but a number for each GPU, with its chances.

A token visits `visits` different experts. The chance of a set of experts is in proportion to the product of its experts' weights,
and tokens choose independently: the law of sampling without replacement that favors no set beyond what its experts' shares
say (Chen, Dempster, Liu 1994, Biometrika 81). So the rows that one token sends to a GPU have an exact law, by elementary
symmetric polynomials. Of a real router loads are measured; `Router.of_loads` has the same share for each expert. Real tokens of
one text choose alike: what a step really sends varies more than here.
"""

import cmath
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp, isfinite, log, pi
from typing import NamedTuple

from ..common import checks

#: The most experts, visits of a token, and tokens of a GPU.
MOST_EXPERTS, MOST_VISITS, MOST_TOKENS = 4096, 64, 2**20
#: Of a fit to loads: how near each share comes, and after how many rounds at most.
_NEAR, _ROUNDS = 1e-12, 10_000
#: The least sum of products of weights that floating-point numbers hold well.
_LEAST = 1e-280
#: What a tail may lack, as an exponent of e; deviations on each side that hold all the rest.
_NOTHING, _WIDE = -46.0, 9


class Rows(NamedTuple):
    """Rows that come to one GPU's experts in one layer: on the mean; so many at most at a level of confidence; at the very most."""

    mean: float
    high: int
    most: int


def _times(a, b, top):
    """The product of two polynomials, without powers above `top`."""
    found = [0.0] * min(len(a) + len(b) - 1, top + 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b[: len(found) - i]):
            found[i + j] += x * y
    return found


def _polynomial(weights, top):
    """Elementary symmetric polynomials of the weights, up to degree `top`."""
    found = [1.0]
    for weight in weights:
        found = _times(found, [1.0, weight], top)
    return found


@dataclass(frozen=True)
class Router:
    """How often experts are chosen, side by side as they stand on the GPUs.

    Attributes:
        weights: of each expert, in proportion to its odds. visits: different experts that a token visits.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    weights: tuple[float, ...]
    visits: int

    def __post_init__(self):
        found = _numbers("weights", self.weights)
        checks.whole("Router", "visits", self.visits, 1, min(len(found), MOST_VISITS))
        if sum(w > 0 for w in found) < self.visits:
            raise ValueError(
                f"Router.weights: {sum(w > 0 for w in found)} above 0; allowed: at least {self.visits}, as a token visits so many"
            )
        most = max(found)
        object.__setattr__(self, "weights", tuple(w / most for w in found))
        if len(whole := _polynomial(self.weights, self.visits)) <= self.visits or not whole[-1] > _LEAST:
            raise ValueError(
                "Router.weights: too far apart for floating-point numbers; allowed: closer ones, or 0 for the least"
            )

    @classmethod
    def even(cls, experts: int, visits: int) -> "Router":
        """Every expert as often as any other."""
        checks.whole("Router", "experts", experts, 1, MOST_EXPERTS)
        return cls((1.0,) * experts, visits)

    @classmethod
    def zipf(cls, experts: int, visits: int, exponent: float) -> "Router":
        """Weights 1, 1/2^x, 1/3^x, ...: the most wanted experts stand on the first GPU, which is the worst order."""
        checks.whole("Router", "experts", experts, 1, MOST_EXPERTS)
        if isinstance(exponent, bool) or not isinstance(exponent, int | float) or not 0 <= exponent <= 10:
            raise ValueError(f"Router.exponent: {checks.shown(exponent)}; allowed: 0, where all are alike, to 10")
        return cls(tuple((i + 1) ** -float(exponent) for i in range(experts)), visits)

    @classmethod
    def of_loads(cls, loads: Sequence[float], visits: int) -> "Router":
        """The router whose experts have these shares of all visits: loads as a framework logs them, in any unit.

        Raises:
            ValueError: where an expert has more than one of each token's visits, which are to different experts.
        """
        found = _numbers("loads", loads)
        checks.whole("Router", "visits", visits, 1, min(len(found), MOST_VISITS))
        wanted = [visits * load / sum(found) for load in found]
        if max(wanted) >= 1 and not all(x in (0, 1) for x in wanted):
            i = wanted.index(max(wanted))
            raise ValueError(
                f"Router.loads: expert {i} has {checks.shown(loads[i])} of {sum(found):g} visits, and each token visits it once at most; "
                f"allowed: less than {sum(found) / visits:g}, of {visits} visits a token"
            )  # fmt: skip
        router = cls(tuple(wanted), visits)
        for _ in range(_ROUNDS):
            shares = router.shares
            if max(abs(a - b) for a, b in zip(shares, wanted, strict=True)) < _NEAR:
                return router
            ratios = [b / a if a else 0.0 for a, b in zip(shares, wanted, strict=True)]
            router = cls(tuple(w * x for w, x in zip(router.weights, ratios, strict=True)), visits)
        raise ValueError(
            f"Router.loads: no router was found for them in {_ROUNDS:,} rounds; allowed: shares that are farther from 1"
        )

    def spread(self, gpus: int) -> "Router":
        """The same experts dealt out: the most wanted one on the first GPU, the next on the second, and after the last GPU back again."""
        each = self._each(gpus)
        ranked = sorted(self.weights, reverse=True)
        turns = [ranked[turn * gpus : (turn + 1) * gpus][:: -1 if turn % 2 else 1] for turn in range(each)]
        return Router(tuple(weight for dealt in zip(*turns, strict=True) for weight in dealt), self.visits)

    def _each(self, gpus):
        checks.whole("Router", "gpus", gpus, 1, len(self.weights))
        if len(self.weights) % gpus:
            raise ValueError(f"Router.gpus: {gpus} do not divide {len(self.weights)} experts; allowed: a divisor")
        return len(self.weights) // gpus

    def laws(self, gpus: int) -> list[list[float]]:
        """Of each GPU the chances that one token sends it 0, 1, 2, ... rows."""
        each, top = self._each(gpus), self.visits
        own = [_polynomial(self.weights[g * each : (g + 1) * each], top) for g in range(gpus)]
        before = list(accumulate(own, lambda a, b: _times(a, b, top), initial=[1.0]))
        after = list(accumulate(own[::-1], lambda a, b: _times(a, b, top), initial=[1.0]))[::-1]
        found = []
        for g in range(gpus):
            others = _times(before[g], after[g + 1], top)
            chances = [x * others[top - j] if top - j < len(others) else 0.0 for j, x in enumerate(own[g])]
            found.append([x / sum(chances) for x in chances])
        return found

    @property
    def shares(self) -> list[float]:
        """Of each expert the chance that a token visits it; they sum to `visits`."""
        return [law[1] for law in self.laws(len(self.weights))]

    def routing(self, gpus: int) -> list[float]:
        """Of each GPU the rows that come, over those that it sends, on the mean: each is a `Mesh.routing`; together they average 1."""
        return [gpus * _mean(law) / self.visits for law in self.laws(gpus)]

    def rows(self, gpus: int, tokens: int, level: float = 0.99, times: int = 1) -> list[Rows]:
        """Rows that come to each GPU, where each of them has so many tokens.

        Args:
            level: with what chance no more than `high` rows come, in any of so many `times`: layers, micro-batches, steps.
        """
        checks.whole("Router", "tokens", tokens, 1, MOST_TOKENS)
        checks.whole("Router", "times", times, 1, 2**40)
        checks.probability("Router", "level", level)
        every, each = tokens * gpus, self._each(gpus)
        once = exp(log(level) / times) if level else 0.0
        laws = self.laws(gpus)
        high = {tuple(law): _quantile(law, every, once) for law in laws}
        most = every * min(each, self.visits)
        return [Rows(every * _mean(law), high[tuple(law)], most) for law in laws]

    def padded(self, gpus: int, tokens: int, multiple: int) -> list[float]:
        """Rows of each GPU on the mean where each expert's rows are padded up to a multiple, and an expert without rows has none."""
        checks.whole("Router", "tokens", tokens, 1, MOST_TOKENS)
        checks.whole("Router", "multiple", multiple, 1, 2**16)
        each, every, shares = self._each(gpus), tokens * gpus, self.shares
        added = {share: _left_over(share, every, multiple) for share in shares}
        return [sum(every * s + added[s] for s in shares[g * each : (g + 1) * each]) for g in range(gpus)]


def _numbers(field, values) -> list[float]:
    """The weights or loads of a router, as floats."""
    checks.kind("Router", field, values, Sequence)
    checks.whole("Router", f"{field}, how many", len(values), 1, MOST_EXPERTS)
    for i, x in enumerate(values):
        if isinstance(x, bool) or not isinstance(x, int | float) or not isfinite(x) or x < 0:
            raise ValueError(f"Router.{field}: {checks.shown(x)} of expert {i}; allowed: a number from 0 on")
    if not max(values):
        raise ValueError(f"Router.{field}: all 0; allowed: one above 0 at least")
    return [float(x) for x in values]


def _mean(law):
    return sum(j * x for j, x in enumerate(law))


def _left_over(share, every, multiple) -> float:
    """Rows that pad an expert's binomial number of rows up to a multiple, on the mean: by the roots of unity."""
    turns = [cmath.exp(2j * pi * m / multiple) for m in range(multiple)]
    found = 0.0
    for m, turn in enumerate(turns):
        value = (1 - share + share * turn) ** every
        found += sum((rest * value * turns[m * rest % multiple]).real for rest in range(multiple))
    return found / multiple


def _quantile(law, every, level) -> int:
    """The least number of rows that is not passed with a chance of `level`, where `every` token chooses by one law.

    Chances of sums are the law's powers at the roots of unity, as many as there are numbers of rows around the mean; their partial
    sums are geometric.
    """
    mean = _mean(law)
    deviation = max(every * (sum(j * j * x for j, x in enumerate(law)) - mean**2), 0.0) ** 0.5
    low = max(0, int(every * mean - _WIDE * deviation) - _WIDE)
    high = min(every * (len(law) - 1), int(every * mean + _WIDE * deviation) + _WIDE)
    size, values = high - low + 1, []
    for m in range(1, size // 2 + 1):
        turn = cmath.exp(2j * pi * m / size)
        value = sum(x * turn**j for j, x in enumerate(law))
        if value and every * log(abs(value)) > _NOTHING:
            back = 1 / turn
            first = value**every * cmath.exp(-2j * pi * (m * low % size) / size) / (1 - back)
            values.append((m, first if 2 * m == size else 2 * first))

    def chance(rows):
        """Of no more rows than these."""
        count = rows - low + 1
        return (count + sum((x * (1 - cmath.exp(-2j * pi * (m * count % size) / size))).real for m, x in values)) / size

    return bisect_left(range(low, high), level, key=chance) + low
