"""The table of what the articles say is the catalog's claims, settled."""

import pytest

from everybyte import claims, settle
from everybyte.teach import articles


def test_a_chapter_shows_its_own_claims():
    table = articles("12", 2, caption="Article 2")
    mine = [c for c in claims().values() if c.chapter.startswith("12") and c.article == 2]
    assert table.columns == ("article", "claim", "stated", "computed", "verdict") and table.caption == "Article 2"
    assert len(mine) >= 5 and [row[1] for row in table.rows] == [c.claim for c in mine]
    row = next(row for row in table.rows if row[1] == "all states of a 7B model")
    assert row == ("2", "all states of a 7B model", "112 GB", "112 GB", "holds")


def test_both_numbers_of_a_condition_are_shown():
    row = next(row for row in articles("11", 1).rows if "fp32 (Llama-2-7B)" in row[1])
    assert row[2:] == ("28 GB", "26.95 GB, or 28 GB", "holds if P is 7.0 B, not 6.74 B")


def test_a_slug_will_do_and_all_is_every_chapter():
    assert articles("14_loss").rows == articles("14").rows
    table = articles("all", 4)
    assert table.columns[-1] == "chapter"
    assert [row[-1] for row in table.rows] == [c.chapter[:2] for c in claims().values() if c.article == 4]
    assert len(articles("all").rows) == len(claims())


def test_what_is_not_settled_shows_no_number():
    open_ = [row for row in articles("41").rows if row[-1] == "not settled here"]
    assert open_ and all(row[3] == "–" for row in open_)
    assert all(settle(one).text == "–" for one in claims().values() if one.verdict == "not settled here")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(("99",), "articles.chapter: '99'"), (("00",), "articles.chapter"), (("13", 6), "articles.numbers: 6")],
)
def test_what_there_is_not_is_named(arguments, named):
    with pytest.raises(ValueError, match=named):
        articles(*arguments)


def test_claims_are_escaped():
    assert "7 &lt; 8" not in articles("20")._repr_html_() and "&lt; 1" in articles("20")._repr_html_()


def test_one_section_of_an_article():
    claims_there = [c for c in claims().values() if (c.article, c.section) == (3, "Interview Questions")]
    assert len(articles("all", 3, section="Interview Questions").rows) == len(claims_there) > 10
    with pytest.raises(ValueError, match="articles.section: 'Cooking' is unknown"):
        articles("all", 3, section="Cooking")


def test_only_what_does_not_hold():
    every, wrong = articles("12"), articles("12", wrong=True)
    assert wrong.rows == [row for row in every.rows if "hold" not in row[-1] and "settled" not in row[-1]]
    assert 0 < len(wrong.rows) < len(every.rows)
    assert wrong.caption == f"{len(wrong.rows)} of {len(every.rows)} claims do not hold; chapter 47 has all."
