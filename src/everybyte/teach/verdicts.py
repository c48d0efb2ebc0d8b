"""The table of "What the articles say": a chapter's claims, each with its number, the computed one and the verdict."""

from ..catalog import claims
from ..catalog.claims import ARTICLES
from ..common import checks
from ..common.tables import Table
from ..published.settling import settle

ALL = "all"
#: Beginnings of the verdicts of claims that do not hold, even under a condition.
WRONG = ("off by", "false", "contradicts")


def articles(chapter: str, *numbers: int, section: str = "", caption: str = "", wrong: bool = False) -> Table:
    """A table of the claims that a chapter settles.

    Args:
        chapter: its number, "13", or its slug; "all" for every chapter, which the table then names.
        numbers: of the articles; by default all with a claim in this chapter.
        section: heading of an article's section; by default all.
        wrong: only claims that do not hold, even under a condition; the caption has the number of all.

    Raises:
        ValueError: where the chapter has no claims, or there is no such article or section.
    """
    for number in numbers:
        checks.whole("articles", "numbers", number, min(ARTICLES), max(ARTICLES))
    chapters = sorted({claim.chapter for claim in claims().values()})
    slug = next((c for c in chapters if c.startswith(f"{chapter}_")), chapter)
    checks.one_of("articles", "chapter", slug, [*chapters, ALL])
    found = [settle(c) for c in claims().values() if slug in (c.chapter, ALL) and c.article in (numbers or ARTICLES)]
    if section:
        checks.one_of("articles", "section", section, dict.fromkeys(s.claim.section for s in found))
        found = [s for s in found if s.claim.section == section]
    if wrong:
        of, found = len(found), [s for s in found if s.verdict.startswith(WRONG)]
        caption = " ".join(filter(None, [caption, f"{len(found)} of {of} claims do not hold; chapter 47 has all."]))
    columns = ("article", "claim", "stated", "computed", "verdict", "chapter")[: 6 if slug == ALL else 5]
    return Table(columns, [_row(s, slug == ALL)[: len(columns)] for s in found], caption)


def _row(settled, all_together):
    """A row of the table. For all chapters, the verdict also says why a claim is not counted."""
    claim, verdict = settled.claim, settled.verdict
    if all_together and claim.easy:
        verdict += f" ({claim.easy}: not counted)"
    return str(claim.article), claim.claim, settled.stated_text, settled.text, verdict, claim.chapter[:2]
