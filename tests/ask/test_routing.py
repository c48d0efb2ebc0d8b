"""Routers: the rows that come to each GPU, beside every way that few tokens can choose."""

from fractions import Fraction
from itertools import combinations, product
from math import prod

import pytest

import everybyte as eb
from everybyte.ask.mesh import worst_routing

WEIGHTS = ((1, 1, 1, 1), (5, 3, 2, 1), (4, 0, 1, 2, 3, 3), (9, 1, 1, 1, 1, 1))


def counted(weights, visits, gpus, tokens=1):
    """{rows of each GPU: the chance} of so many tokens in all, by writing down every choice."""
    sets = {chosen: Fraction(prod(weights[e] for e in chosen)) for chosen in combinations(range(len(weights)), visits)}
    whole, each, found = sum(sets.values()), len(weights) // gpus, {}
    for several in product(sets, repeat=tokens):
        rows = tuple(sum(e // each == g for chosen in several for e in chosen) for g in range(gpus))
        found[rows] = found.get(rows, 0) + prod(sets[chosen] / whole for chosen in several)
    return found


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("visits, gpus", [(1, 2), (2, 2), (3, 2), (2, 1)])
def test_rows_are_those_of_every_choice(weights, visits, gpus):
    router, tokens = eb.Router(weights, visits), 1 if len(weights) > 4 else 2
    ways = counted(weights, visits, gpus, tokens * gpus)
    for g, (law, rows, ratio) in enumerate(
        zip(router.laws(gpus), router.rows(gpus, tokens, 0.9), router.routing(gpus), strict=True)
    ):
        for j, chance in enumerate(law):
            once = sum(p for r, p in counted(weights, visits, gpus).items() if r[g] == j)
            assert chance == pytest.approx(float(once), abs=1e-12)
        mean = sum(r[g] * p for r, p in ways.items())
        assert rows.mean == pytest.approx(float(mean)) and ratio == pytest.approx(float(mean / (tokens * visits)))
        high = next(n for n in range(99) if sum(p for r, p in ways.items() if r[g] <= n) >= Fraction(9, 10))
        assert rows.high == high


def test_many_tokens_and_many_times():
    """Of 40 tokens the chances by adding one token after the other; over several times the chance of each is a root."""
    router, tokens = eb.Router((5, 3, 2, 1), 2), 20
    for law, once, often in zip(
        router.laws(2), router.rows(2, tokens, 0.99), router.rows(2, tokens, 0.99, times=50), strict=True
    ):
        chances = [1.0]
        for _ in range(2 * tokens):
            chances = [
                sum(law[j] * chances[n - j] for j in range(len(law)) if 0 <= n - j < len(chances))
                for n in range(len(chances) + len(law) - 1)
            ]
        below = [sum(chances[: n + 1]) for n in range(len(chances))]
        assert once.high == next(n for n, p in enumerate(below) if p >= 0.99)
        assert often.high == next(n for n, p in enumerate(below) if p**50 >= 0.99) > once.high


def test_the_most_is_the_mesh_s_worst_case():
    model = eb.model("mixtral-8x7b", code="reference").replace(experts=16, experts_per_token=4)
    for gpus in (2, 4, 8, 16):
        rows = eb.Router.even(16, 4).rows(gpus, 100)[0]
        assert rows.most == worst_routing(model, gpus) * 100 * 4 and rows.mean == pytest.approx(400)


@pytest.mark.parametrize("multiple", [1, 3, 8])
def test_padding_is_that_of_every_choice(multiple):
    weights, visits, gpus, tokens = (5, 3, 2, 1), 2, 2, 2
    singles = counted(weights, visits, 4, tokens * gpus)
    for g, found in enumerate(eb.Router(weights, visits).padded(gpus, tokens, multiple)):
        mean = sum(
            p * sum(-(-n // multiple) * multiple for n in rows[2 * g : 2 * g + 2]) for rows, p in singles.items()
        )
        assert found == pytest.approx(float(mean))


def test_loads_give_their_shares_back():
    loads = (900, 100, 700, 300, 1200, 200, 500, 196)
    router = eb.Router.of_loads(loads, 2)
    assert router.shares == pytest.approx([2 * x / sum(loads) for x in loads])
    assert max(router.routing(4)) == pytest.approx(1400 / 1024)
    assert eb.Router.of_loads((1, 1, 0), 2).shares == pytest.approx((1, 1, 0))


def test_hot_experts_that_are_dealt_out_weigh_less():
    skewed = eb.Router.zipf(64, 8, 0.8)
    assert sorted(skewed.weights) == sorted(skewed.spread(8).weights)
    assert max(skewed.spread(8).routing(8)) < max(skewed.routing(8)) / 2


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: eb.Router((1, -1), 1), r"Router\.weights: -1 of expert 1; allowed: a number from 0 on"),
        (lambda: eb.Router((0, 0), 1), r"Router\.weights: all 0"),
        (lambda: eb.Router((1, 0), 2), r"Router\.weights: 1 above 0; allowed: at least 2"),
        (lambda: eb.Router((1, 1), 3), r"Router\.visits: 3"),
        (lambda: eb.Router((1,) + (1e-300,) * 3, 3), r"Router\.weights: too far apart"),
        (lambda: eb.Router.zipf(8, 2, -1), r"Router\.exponent: -1"),
        (lambda: eb.Router.of_loads((5, 1, 1), 2), r"Router\.loads: expert 0 has 5 of 7 visits, .* less than 3\.5"),
        (lambda: eb.Router.even(8, 2).routing(3), r"Router\.gpus: 3 do not divide 8 experts"),
        (lambda: eb.Router.even(8, 2).rows(2, 0), r"Router\.tokens: 0"),
        (lambda: eb.Router.even(8, 2).rows(2, 4, 1.5), r"Router\.level: 1\.5"),
        (lambda: eb.Router.even(8, 2).padded(2, 4, 0), r"Router\.multiple: 0"),
    ],
)
def test_bad_input_is_named(make, said):
    with pytest.raises(ValueError, match=said):
        make()
