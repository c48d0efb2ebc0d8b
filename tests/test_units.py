"""Bytes in, text out, and back."""

import hypothesis
import pytest
from hypothesis import strategies as st

from everybyte import units


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (0.5, "0.50 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (2**20, "1.00 MiB"),
        (8 * 1024 * 50257 * 4, "1.53 GiB"),
        (2**40, "1.00 TiB"),
        (-(2**30), "-1.00 GiB"),
        (2**30 - 1, "1.00 GiB"),  # not 1024.00 MiB
        (-(2**40) + 1, "-1.00 TiB"),
        (2**20 - 5, "1.00 MiB"),
        (2**20 - 6, "1023.99 KiB"),
        (1023.999, "1.00 KiB"),
        (2**50, "1.00 PiB"),
        (2**70, "1024.00 EiB"),
    ],
)
def test_text(count, text):
    assert units.text(count) == text


@pytest.mark.parametrize(("count", "text"), [(999, "999 B"), (1000, "1.00 kB"), (80e9, "80.00 GB"), (2**40, "1.10 TB")])
def test_text_decimal(count, text):
    assert units.text(count, decimal=True) == text


def test_digits():
    assert units.text(2**30, digits=0) == "1 GiB"
    assert units.gib(2**29, digits=3) == "0.500 GiB"
    assert units.gib(3 * 2**40) == "3,072.00 GiB"
    assert units.exact(1646821376) == "1,646,821,376 B"
    assert units.to(3 * 2**30, "GiB") == 3
    assert units.to(3e9, "GB") == 3


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.0 k"),
        (999_949, "999.9 k"),
        (999_950, "1.0 M"),
        (124439808, "124.4 M"),
        (671026419200, "671.0 B"),
        (1.5e12, "1.5 T"),
    ],
)
def test_number(count, text):
    assert units.number(count) == text


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1.5 GiB", 1.5 * 2**30),
        ("12,582,912 B", 12582912),
        ("12_582_912B", 12582912),
        (" .5 kB ", 500),
        ("1e3 MB", 1e9),
        ("-2 KiB", -2048),
        ("80 GB", 80 * 10**9),
    ],
)
def test_parse(text, count):
    assert units.parse(text) == count


@pytest.mark.parametrize("text", ["", "12", "GiB", "1.5.2 GiB", "1 2 GiB", "one GiB", "1 GiB GiB"])
def test_parse_refuses_what_is_no_amount(text):
    with pytest.raises(ValueError, match="is not a number followed by a unit"):
        units.parse(text)


@pytest.mark.parametrize("unit", ["gib", "Gb", "GIB", "bytes"])
def test_unknown_unit_lists_the_known(unit):
    with pytest.raises(ValueError, match=rf"unit: '{unit}' is not one of .*GiB.*GB"):
        units.parse(f"1 {unit}")
    with pytest.raises(ValueError, match=rf"unit: '{unit}'"):
        units.to(1, unit)


@hypothesis.given(st.integers(0, 2**53))
def test_exact_comes_back(count):
    assert units.parse(units.exact(count)) == count


@hypothesis.given(st.integers(0, 2**60), st.booleans())
def test_text_comes_back_within_its_digits(count, decimal):
    text = units.text(count, decimal=decimal)
    unit = units.UNITS[text.split()[1]]
    assert abs(units.parse(text) - count) <= 0.005 * unit * (1 + 1e-9)
    assert count < 1 or units.parse(text) >= unit


@hypothesis.given(st.floats(0, 1e20) | st.integers(0, 2**66), st.booleans(), st.integers(0, 3))
def test_no_number_is_shown_in_a_unit_too_small_for_it(count, decimal, digits):
    said, unit = units.text(count, decimal=decimal, digits=digits).split()
    assert unit in ("TiB", "TB") or float(said) < (1000 if decimal else 1024)
    assert abs(float(said) * units.UNITS[unit] - count) <= 0.51 * units.UNITS[unit] / 10**digits  # as the digits round


@pytest.mark.parametrize("count", [float("inf"), float("nan"), -float("inf"), 1e301, 10**400, None, "5", [5], 1j])
def test_what_is_no_number_is_refused(count):
    for show in (units.text, units.number):
        with pytest.raises(ValueError, match=r"count: .*; allowed: a number below 1e300"):
            show(count)


@pytest.mark.parametrize("text", ["1e999 GiB", "1e300 TiB", "9" * 400 + " B"])
def test_more_than_a_number_holds_is_refused(text):
    with pytest.raises(ValueError, match="^value: .* is more than anybody has"):
        units.parse(text)


@pytest.mark.parametrize("text", ["11,53 GiB", "1,5e3 B", "12,34,567 B", "1,5 MiB"])
def test_a_decimal_comma_is_named_and_makes_no_number_a_hundred_times_as_large(text):
    with pytest.raises(ValueError, match="a comma that does not group three digits; allowed: a decimal point"):
        units.parse(text)
