"""A guess, kept, beside its answer."""

import subprocess
import sys

import pytest

from everybyte.teach import predict, reveal


def test_a_guess_is_kept_and_compared():
    predict("90.1", "2 GB", "How much?", unit="GiB")
    said = reveal("90.1", 4 * 10**9)
    assert "1.86 GiB" in said.text and "3.73 GiB" in said.text and "2 times too little" in said.text


@pytest.mark.parametrize(
    ("guess", "words"),
    [(30, "3 times too much"), (10, "exactly"), (10.5, "within a tenth"), (0, "no factor")],
)
def test_how_far_apart(guess, words):
    assert words in predict("90.2", guess).reveal(10 * 2**30).text


def test_units_that_are_not_bytes():
    assert "no factor" in predict("90.3", -1, unit="%").reveal(12).text
    assert "3 times too little" in predict("90.3", "4 bits", unit="bit").reveal(12).text
    assert "124,439,808 parameters" in predict("90.3", 100_000_000, unit="parameters").reveal(124_439_808).text


@pytest.mark.parametrize("guess", [..., None])
def test_no_guess_says_how_and_still_reveals(guess):
    made = predict("90.4", guess, "How much?")
    assert "How much?" in repr(made) and "three dots" in made._repr_html_()
    assert "No guess was made. The answer is 1.00 GiB" in made.reveal(2**30).text


@pytest.mark.parametrize(
    "guess", ["<b>lots</b>", object(), [1], 10**5000, "9**9**9", "-3 GiB", "1e99"], ids=lambda g: type(g).__name__
)
def test_what_cannot_be_read_is_said_and_escaped(guess):
    made = predict("90.5", guess, "<i>How</i> much?")
    assert made.value is None and "could not be read" in repr(made)
    assert "<b>lots" not in made._repr_html_() and "<i>" not in made._repr_html_()


def test_a_guess_that_could_be_read_stands_until_another_can():
    predict("90.7", "2 GiB")
    assert "comma" in repr(predict("90.7", "2,5 GiB")) and "comma" in repr(predict("90.7", "1.234,5 GiB"))
    assert "the unit '153 GiB' after" in repr(predict("90.7", "1 153 GiB"))
    assert repr(reveal("90.7", 2**30)).startswith("• Prediction 90.7. You said 2.00 GiB.")
    predict("90.7", "3 GiB")
    assert "You said 3.00 GiB." in repr(reveal("90.7", 2**30))


def test_the_same_guess_shows_the_same():
    assert predict("90.6", 3)._repr_html_() == predict("90.6", "3 GiB")._repr_html_()


def test_revealing_what_was_not_predicted():
    with pytest.raises(ValueError, match="not predicted"):
        reveal("90.99", 1)


@pytest.mark.parametrize("asked", ["", "; everybyte.teach.exercises()"])
def test_importing_teach_and_listing_exercises_loads_no_sympy(asked):
    code = f"import sys, everybyte.teach{asked}; sys.exit(any(m in sys.modules for m in ('sympy', 'torch', 'matplotlib', 'ipywidgets')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
