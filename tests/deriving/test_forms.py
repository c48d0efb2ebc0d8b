"""Bytes as exact functions, and the proofs about them."""

from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everybyte.derivation import Irregular, Range, partition
from everybyte.derivation.ranges import SEQUENCE_MULTIPLES, SEQUENCES
from everybyte.deriving.proofs import Order
from everybyte.deriving.solver import Solver
from everybyte.step.amount import Amount, Monomial, Quotient

POINTS = [
    (3, 64),
    (2, 33),
    (5, 90),
    (7, 127),
    (3, 100),
    (2, 255),
    (4, 64),
    (3, 16),
    (2, 48),
    (6, 77),
    (8, 300),
    (3, 1000),
]


def solved(function):
    return Solver(POINTS).solve([function(b, s) for b, s in POINTS])


@pytest.mark.parametrize(
    "function",
    [
        lambda b, s: 12_345,
        lambda b, s: 4 * b * s * 50_257 + 8 * s + 3,
        lambda b, s: 2 * b * 12 * s * s,
        lambda b, s: s * (s + 1) // 2,
        lambda b, s: 4 * b * 12 * -(-s // 32) * 32,
        lambda b, s: 2 * b * s * -(-s // 16) * 16,
        lambda b, s: 8 * -(-b * s // 8),
        lambda b, s: 4 * b * b + 4 * b,
        lambda b, s: 768 * b * (s // 2) + 7 * b * s,
    ],
)
def test_a_form_gives_the_bytes_at_points_that_it_has_not_seen(function):
    form = solved(function)
    for b, s in product((1, 2, 9, 31), (1, 2, 15, 16, 17, 999, 4097)):
        assert form.at({"B": b, "S": s}) == eval(form.text(), {"B": b, "S": s}) == function(b, s)
    assert Amount.read(form.as_list()) == form


def test_what_is_no_polynomial_has_no_form():
    assert solved(lambda b, s: b**s % 1009) is None


def test_two_points_more_than_it_needs_are_asked_for():
    assert Solver(POINTS[:3]).solve([4 * b * s + 8 * s + 1 for b, s in POINTS[:3]]) is None


def test_a_form_reads_well():
    padded = Amount.of({Monomial(1, 0, ((Quotient("S", 31, 32), 1),)): 4096, Monomial(0, 2): -4, Monomial(): 5_000})
    assert padded.readable() == "4,096 B ⌈S/32⌉ − 4 S² + 5,000"


S2, BS, ONE, PADDED = (
    Amount.of({m: 1})
    for m in (Monomial(0, 2), Monomial(1, 1), Monomial(), Monomial(0, 0, ((Quotient("S", 15, 16), 1),)))
)


@given(
    rows=st.lists(st.lists(st.integers(0, 60), min_size=4, max_size=4), min_size=1, max_size=8),
    rounding=st.sampled_from([1, 512]),
)
def test_the_highest_is_always_among_those_kept(rows, rounding):
    forms = [S2, BS, ONE, PADDED]
    kept = Order(forms, rows, {"B": (2, 40), "S": (3, 90)}, rounding).highest()

    def at(row, b, s):
        return sum(n * (-(-f.at({"B": b, "S": s}) // rounding) * rounding) for n, f in zip(row, forms, strict=True))

    for b, s in product((2, 7, 40), (3, 16, 17, 50, 90)):
        values = [at(row, b, s) for row in rows]
        assert values.index(max(values)) in kept


def test_what_is_dominated_goes_and_what_wins_somewhere_stays():
    # S² wins for long sequences, B S for short ones; half of each and less never; a thousand nowhere
    rows = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 2, 0]]
    assert Order([S2, BS, ONE, PADDED], rows, {"B": (2, 64), "S": (2, 4096)}).highest() == [0, 1]


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (lambda s: 0, [Range(2, 1000)]),
        (lambda s: s >= 417, [Range(2, 416), Range(417, 1000)]),
        (lambda s: s % 16 == 0, [Range(2, 1000, 16, True), Range(2, 1000, 16, False)]),
    ],
)
def test_ranges_are_found(kind, wanted):
    assert [r for r, _ in partition(kind, 2, 1000, (3, 16, 33, 64, 90, 128, 255, 256, 500, 512, 777))] == wanted


def test_thresholds_and_multiples_together_are_found():
    def kind(s):
        return "short" if s < 512 else ("even" if s % 16 == 0 else "odd")

    found = partition(kind, 2, 5000, (3, 16, 64, 90, 256, 300, 511, 512, 513, 777, 1024, 2048, 2050, 4096, 4097))
    for s in range(2, 5001):
        assert {k for r, k in found if s in r} == {kind(s)}


@pytest.mark.parametrize("by", [3, 7, 12, 28, 48, 96, 100, 112, 192])
def test_multiples_of_what_is_no_known_divisor_are_no_numbers_by_themselves(by):
    with pytest.raises(Irregular):
        partition(lambda s: s % by == 0, 2, 131072, SEQUENCES, (), SEQUENCE_MULTIPLES)
    found = partition(lambda s: s == 1000, 2, 131072, SEQUENCES, (), SEQUENCE_MULTIPLES)
    assert [r for r, _ in found] == [Range(2, 999), Range(1000, 1000), Range(1001, 131072)]


def test_a_loop_over_a_letter_is_no_range():
    with pytest.raises(Irregular):
        partition(lambda s: s, 2, 10**9, (3, 5, 8, 10**6))


def test_fractions_are_refused():
    with pytest.raises(ValueError, match="no whole number"):
        Amount.of({Monomial(1, 0): Fraction(1, 2)}).at({"B": 3, "S": 1})


def test_a_loop_over_chunks_is_told_from_thresholds():
    """A loop over chunks of 64 has as many kinds as chunks, of which few are looked at; multiples of Mamba-2's chunk are ranges."""
    asked = []
    with pytest.raises(Irregular):
        partition(lambda s: asked.append(s) or -(-s // 64), 2, 2**20, SEQUENCES)
    assert max(asked[:-1]) < 10_000
    found = partition(lambda s: s % 256 == 0, 2, 131072, SEQUENCES, (), SEQUENCE_MULTIPLES)
    assert [r for r, _ in found] == [Range(2, 131072, 256), Range(2, 131072, 256, False)]


def test_a_range_gives_a_number_where_it_has_one():
    assert Range(2, 511, 256).some([64], 4) == [256]
    assert len(Range(256, 4096, 128).some([256], 6)) == 6


def test_bytes_of_every_pair_of_chunks():
    amount = solved(lambda b, s: 4 * b * (-(-s // 64) + 1) ** 2)
    assert all(
        amount.at({"B": b, "S": s}) == 4 * b * (-(-s // 64) + 1) ** 2 for b, s in product((1, 4), (1, 64, 65, 5000))
    )


def test_sizes_beyond_64_bits_are_compared():
    square = Amount.of({Monomial(0, 2): 2**40})
    assert Order([square], [[1], [1]], {"S": (1, 2**40)}).highest() == [0]
