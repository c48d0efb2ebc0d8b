"""The table of the beat "What the articles say": a chapter's claims, each with its number, the computed one and the verdict."""

from ..catalog import claims
from ..catalog.claims import ARTICLES
from ..common import checks
from ..common.tables import Table
from ..published.settling import settle

ALL = "all"
#: How the verdict of a claim begins that no condition saves.
WRONG = ("off by", "false", "contradicts")


def articles(chapter: str, *numbers: int, section: str = "", caption: str = "", wrong: bool = False) -> Table:
    """The claims that a chapter settles.

    Args:
        chapter: its number, "13", or its slug; "all" for every chapter, which the table then names.
        numbers: of the articles; by default all that say something here.
        section: of an article, as it is headed there; by default all.
        wrong: only those that do not hold, not even under a condition; the caption says how many there are in all.

    Raises:
        ValueError: where no article says anything in that chapter, or a number or a section is not an article's.
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
    columns, rows = ["article", "claim", "stated", "computed", "verdict"], []
    for s in found:
        rows.append([str(s.claim.article), s.claim.claim, s.stated_text, s.text, s.verdict])
        if slug == ALL:
            rows[-1][-1] += f" ({s.claim.easy}: not counted)" if s.claim.easy else ""
            rows[-1].append(s.claim.chapter[:2])
    return Table([*columns, "chapter"] if slug == ALL else columns, rows, caption)
