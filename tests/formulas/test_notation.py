"""The page of notation is the registry's, and has every letter."""

import notation
import pytest

from everybyte.formulas.symbols import SYMBOLS


def test_the_page_is_written_from_the_registry():
    assert notation.PAGE.read_text(encoding="utf-8") == notation.page()


@pytest.mark.parametrize("name", SYMBOLS)
def test_every_symbol_stands_in_it_once(name):
    assert notation.page().count(f"| `{name}` |") == 1


def test_one_letter_has_one_meaning():
    letters = [str(s.symbol) for s in SYMBOLS.values()]
    assert len(set(letters)) == len(letters)
