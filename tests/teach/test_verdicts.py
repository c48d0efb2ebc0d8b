"""A verdict is one of the fixed ones and follows from its numbers."""

import pytest

from everybyte.teach import articles


def _verdict(*row):
    return articles([row]).rows[0][-1]


def test_the_factor_is_filled_in():
    table = articles([(2, "the whole run", "30 GB", 12_460_889_600, "off by a factor of …")], caption="Chapter 13")
    assert table.rows == [("2", "the whole run", "30 GB", "12.46 GB", "off by a factor of 2.4")]
    assert _verdict(1, "c", "10 GB", 24 * 10**9, "off by a factor of") == "off by a factor of 2.4"
    assert _verdict(1, "c", "10 to 15 GB", 30 * 10**9, "off by a factor of 2") == "off by a factor of 2"
    assert _verdict(1, "c", "10 to 15 GB", 5 * 10**9, "off by a factor of") == "off by a factor of 2"


@pytest.mark.parametrize(
    ("stated", "computed"),
    [("16 bytes", 16), ("500 MB", 497_759_232), ("40-60 %", 50), ("124.4 M", 124.44), ("10 to 15 GB", 12 * 10**9)],
)
def test_what_holds(stated, computed):
    assert _verdict(1, "c", stated, computed, "holds") == "holds"
    with pytest.raises(ValueError, match="was stated"):
        _verdict(1, "c", stated, computed, "off by a factor of")


@pytest.mark.parametrize(
    "verdict",
    [
        "holds if gradients are fp32",
        "contradicts itself",
        "contradicts another article",
        "outdated API",
        "not settled here",
    ],
)
def test_verdicts_that_need_no_numbers(verdict):
    assert articles([(3, "c", "", None, verdict)]).rows == [("3", "c", "–", "–", verdict)]


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ((6, "c", "1 GB", 10**9, "holds"), "article"),
        ((1, "c", "1 GB", 10**9, "true"), "verdict"),
        ((1, "c", "1 GB", 10**9, "holds if …"), "verdict"),
        ((1, "c", "1 GB", 2 * 10**9, "holds"), "verdict"),
        ((1, "c", "10 GB", 14 * 10**9, "holds"), "verdict"),
        ((1, "c", "16 bytes", 16.6, "holds"), "verdict"),
        ((1, "c", "1 GB", 10**9, "off by a factor of"), "verdict"),
        ((1, "c", "1 GB", 3 * 10**9, "off by a factor of 2"), "verdict"),
        ((1, "c", "", None, "off by a factor of"), "verdict"),
        ((1, "c", "1 GB", 0, "off by a factor of"), "verdict"),
        ((1, "c", "about 1 GB", 10**9, "holds"), "stated"),
    ],
)
def test_a_verdict_that_does_not_follow_is_refused(row, field):
    with pytest.raises(ValueError, match=f"articles.{field}"):
        articles([row])


def test_claims_are_escaped():
    assert "<b>" not in articles([(1, "<b>c", "", None, "outdated API")])._repr_html_()
