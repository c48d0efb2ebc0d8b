"""The page of notation is the registry's, and has every letter; what is said of formulas is said of all."""

import re

import notation
import pytest

import everybyte as eb
from everybyte.common import files
from everybyte.formulas import formula, registry
from everybyte.formulas.symbols import SYMBOLS
from everybyte.theory.optimizers import BLOCK, QUANTIZED


def test_the_page_is_written_from_the_registry():
    assert notation.PAGE.read_text(encoding="utf-8") == notation.page()


@pytest.mark.parametrize("name", SYMBOLS)
def test_every_symbol_stands_in_it_once(name):
    assert notation.page().count(f"| `{name}` |") == 1


def test_one_letter_has_one_meaning():
    letters = [str(s.symbol) for s in SYMBOLS.values()]
    assert len(set(letters)) == len(letters)


def test_what_is_said_of_formulas_is_said_of_registered_ones():
    said = {re.sub(r"^fsdp\.(root|block|model|llama_block)\.", "fsdp.unit.", name) for name in registry()}
    assert said == set(files.entries("everybyte.formulas", "formulas.toml")) - {"notes"}
    words = " ".join(formula("states.adamw8bit").assumptions)
    assert f"blocks of {BLOCK}," in words and f"fewer than {QUANTIZED:,} numbers" in words


def test_an_amount_shows_letters_that_the_model_puts_in():
    """With heads of the width that the stream gives them, A D is H, which the formula itself does not have."""
    shown = formula("cache.held").at(eb.model("gpt2"), eb.Setup(batch=8, sequence=1024))._repr_latex_()
    assert r"8 \times 8 \times 768 \times 12 \times 1{,}024 = 603{,}979{,}776" in shown
