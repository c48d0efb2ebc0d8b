"""What is said of an exercise, in TOML, and what is computed for it, in Python, belong together; what does not is refused by name."""

import re
import tomllib
from copy import deepcopy
from importlib import import_module
from pathlib import Path

import pytest

import everybyte.teach.bank as bank
from everybyte.common import files
from everybyte.teach.exercise import chapters
from everybyte.teach.program import Case

FOLDER = Path(bank.__file__).parent
SAID = tomllib.loads(
    """
["99.1"]
title = "How many bytes"
difficulty = 1
minutes = 2
unit = "B"
hints = ["one", "two"]
mistakes.half = "that is half"
mistakes.twice = "that is twice"

["99.2"]
title = "A function"
difficulty = 2
minutes = 5
call = "double(x)"
hints = ["one", "two"]
mistakes.times = "it trebles"
mistakes.none = "it gives nothing at all"
""",
)


def double(x, *, times=2):
    return times * x


def answers():
    return {
        "99.1": bank.answers(lambda: 8, twice=lambda: 16, half=4),
        "99.2": bank.program(double, lambda: [Case("3", (3,), 6)], times=3, none=lambda x: 0),
    }


def test_a_mistake_is_the_wrong_answer_of_its_name_in_the_order_of_the_text():
    amount, function = bank.joined("99", SAID, answers()).values()
    assert list(amount.mistakes) == ["that is half", "that is twice"]
    assert amount.judge(8).right and "That is half" in amount.judge(4).text and "That is twice" in amount.judge(16).text
    assert function.judge(lambda x: x + x).right and function.wanted == "double(x)"
    assert "It trebles" in function.judge(lambda x: 9).text and "nothing at all" in function.judge(lambda x: 0).text


def amount(batch=2, width=3, **setup):
    return 100 * batch + width + sum(setup.values())


def test_a_wrong_answer_is_a_value_a_function_or_the_right_one_with_arguments_changed():
    def said(right, **wrong):
        return {name: how() if callable(how) else how for name, how in bank.answers(right, **wrong).wrong.items()}

    assert said(203, half=4, own=lambda: 5) == {"half": 4, "own": 5}
    assert said(lambda batch=2: batch, batch=4, half=1, three={"batch": 3}) == {"batch": 4, "half": 1, "three": 3}
    assert said(amount, batch=1, dropout=7, both={"width": 0, "dropout": 1}) == {
        "batch": 103,
        "dropout": 210,
        "both": 201,
    }
    assert bank.each(amount, one=1, two=(1, 0), some={"batch": 0, "loss": 5}) == {"one": 103, "two": 100, "some": 8}


@pytest.mark.parametrize("chapter", chapters())
def test_every_exercise_has_its_text_and_every_text_its_exercise(chapter):
    said, computed = files.toml(bank.__name__, f"c{chapter}.toml"), import_module(f"{bank.__name__}.c{chapter}").ANSWERS
    assert list(said) == list(computed)
    assert {id: set(entry["mistakes"]) for id, entry in said.items()} == {
        id: set(found.wrong) for id, found in computed.items()
    }


def test_every_file_of_answers_has_one_of_texts():
    assert {p.stem for p in FOLDER.glob("c*.toml")} == {p.stem for p in FOLDER.glob("c*.py")}


def _without(*names):
    def change(said, computed):
        for where in names:
            (said if where == "said" else computed).pop("99.1")

    return change


def _said(id="99.1", **fields):
    return lambda said, computed: said[id].update(fields)


def _computed(id="99.1", **wrong):
    return lambda said, computed: computed.update({id: bank.answers(8, **wrong)})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_without("said"), "c99.toml.exercise: 99.1 missing in TOML"),
        (_without("computed"), "c99.toml.exercise: 99.1 missing in Python"),
        (_computed(half=4), "c99.toml: 99.1.mistakes: twice missing in Python"),
        (_computed(half=4, twice=16, thrice=24), "c99.toml: 99.1.mistakes: thrice missing in TOML"),
        (_said(mistakes={}), "99.1.mistakes: half, twice missing in TOML"),
        (_said(mistakes={"half": "so", "twice": "so"}), "99.1.mistakes: one sentence under two names"),
        (_said(mistakes={"half": " ", "twice": "so"}), "99.1.mistakes.half: ' ' is no text"),
        (_said(mistakes="that is half"), "99.1.mistakes: 'that is half'; allowed: a dict"),
        (_said(hints="one"), "99.1.hints: 'one'; allowed: a list"),
        (_said(hints=["one"]), "99.1: Exercise.hints: 99.1 has 1; allowed: two"),
        (_said(hints=["one", 2]), "99.1: Exercise.hints 2: 2 is no text"),
        (_said(title=""), "99.1: Exercise.title: '' is no text"),
        (_said(unit=3), "99.1: Exercise.unit: 3; allowed: a str"),
        (_said(decimals="2"), "99.1: Exercise.decimals: '2' is not a whole number from 0 to 20"),
        (_said(tolerance="2"), "99.1: Exercise.tolerance: '2' of 99.1; allowed: a number"),
        (_said(factors={"batch": 1}), "99.1: Exercise.factors.batch: 1 is not a whole number from 2"),
        (_said(factors=8), "99.1.factors: 8; allowed: a dict"),
        (_said(answer=8), "99.1.field: 'answer' is unknown"),
        (_said(call="f(x)"), "99.1.field: 'call' is unknown"),
        (_said("99.2", agree="same"), "99.2.field: 'agree' is unknown"),
        (_said("99.2", accepts="number"), "99.2.field: 'accepts' is unknown"),
        (_said("99.2", call=""), "99.2: Program.call: '' is no text"),
        (lambda said, computed: said["99.1"].pop("minutes"), "c99.toml: 99.1.minutes: missing"),
        (lambda said, computed: said.update({"99.1": 3}), "c99.toml: 99.1: 3; allowed: a table"),
        (lambda said, computed: (said.update({"98.1": said.pop("99.1")}), computed.update({"98.1": computed.pop("99.1")})),
         "c99.toml: 98.1 is not of chapter 99"),
    ],
)  # fmt: skip
def test_what_does_not_belong_together_is_refused(change, named):
    said, computed = deepcopy(SAID), answers()
    change(said, computed)
    with pytest.raises(ValueError, match=re.escape(named)):
        bank.joined("99", said, computed)
