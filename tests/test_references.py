"""Every paper that the package and the book name stands in the references, and no other; the page is what is written today."""

import pytest
import references


def test_every_paper_that_is_named_has_a_row_and_every_row_is_named():
    assert set(references.SAID["papers"]) == references.named()
    assert [*references.SAID["papers"]] == sorted(references.SAID["papers"])


def test_the_page_is_written_from_the_sources():
    """Where this fails, `python tools/references.py` writes it anew."""
    assert references.PAGE.read_text(encoding="utf-8") == references.page()


@pytest.mark.parametrize("number", references.SAID["papers"])
def test_a_paper_has_who_when_and_a_title(number):
    who, title = references.SAID["papers"][number]
    year = int(who.split()[-1])
    assert 0 <= 2000 + int(number[:2]) - year <= 1 and title and title[-1] != "."


def test_chapters_that_are_linked_are_there():
    paths = {path for found in references.chapters().values() for path in found}
    paths |= {path for found in references.formulas().values() for path in found.values()}
    assert paths and all((references.PAGE.parent / path).exists() for path in paths)
