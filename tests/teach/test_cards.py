"""Cards: what the reader types is read and marked alike with a kernel and without, and no stored output tells the answer."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everybyte import units
from everybyte.teach import callout, cards, check, exercise, kept, marking, predict, progress, reveal
from everybyte.teach.cards import Card
from everybyte.teach.predictions import seal
from everybyte.teach.quantities import read, show, spelled

SOURCE = cards.program()
READ = """
import { exact } from "./cards.mjs";
export default ({ texts, how }) => texts.map((text) => exact(text, how)).map((found) => found?.map(String).join("/") ?? null);
"""
GUESS = """
import { read } from "./cards.mjs";
export default ({ texts, spec }) => texts.map((text) => read(text, spec)).map((x) => (Number.isNaN(x) ? null : x));
"""
MARK = """
import { mark } from "./cards.mjs";
export default ({ texts, spec }) => texts.map((text) => mark(text, spec));
"""
TOLD = """
import { apart, score } from "./cards.mjs";
export default ({ pairs, kept }) => [pairs.map(([guess, answer]) => apart(guess, answer)), score(kept)];
"""
MEMORY = ["20", "20 G", "~20 GiB", "15-20 GiB", "15 to 20 g", "15\u201320 GiB", "20 gb", "about 3 MiB", "1,024 MiB", ".5 TiB", "1e3 mib", "8619549484",
          "8,619,549,484 B", "8_619_549_484 bytes", "4.35 MB", "-3 GiB", "0.1 k", "1e", "1048575", "-2 - -1 kB"]  # fmt: skip
COUNTS = [
    "20k tokens",
    "20k",
    "1,000",
    "5-7 tokens",
    "~3",
    "1 token",
    "2m tokens",
    "2 million",
    "1.5 Thousand tokens",
    "1e-3",
]
NEVER = [
    "",
    "lots",
    "20 parsecs",
    "15-",
    "<b>1</b>",
    "1 2 GiB",
    "2,5 GiB",
    "1.234,5 GiB",
    "1e999",
    "1-2-3",
    "1-" * 29 + "1",
    "9" * 61,
    "\u0663",
]


def as_python(text, unit):
    try:
        return read(text, unit)
    except ValueError:
        return None


def test_the_browser_reads_a_number_as_python_does(node):
    for texts, unit in (
        (MEMORY, "GiB"),
        (COUNTS, "tokens"),
        (["4.13 bits", "33 %", "12"], "%"),
        (["46.7 B", "46.7 billion", "3"], "billion"),
    ):
        found = node(READ, {"texts": texts + NEVER, "how": spelled(unit)}, cards=SOURCE)
        assert [text and Fraction(text) for text in found] == [as_python(text, unit) for text in texts + NEVER], unit
        assert found[len(texts) :] == [None] * len(NEVER)
        assert None not in found[: len(texts)] or unit == "%"


@settings(deadline=None)
@given(texts=st.lists(st.from_regex(r"(about |~)?[-+]?[0-9][0-9,_.]{0,5}(e[-+]?[0-9])?( ?(-|to) ?[0-9.,]{1,4})? ?[GgMmkKTtBbi%s]{0,4}", fullmatch=True), min_size=20, max_size=20))  # fmt: skip
def test_the_browser_reads_whatever_is_typed_as_python_does(node, texts):
    for unit in ("GiB", "tokens"):
        found = node(READ, {"texts": texts, "how": spelled(unit)}, cards=SOURCE)
        assert [text and Fraction(text) for text in found] == [as_python(text, unit) for text in texts]


def test_a_guess_is_of_what_a_memory_may_have(node):
    never = ["-3 GiB", "1e99", *NEVER]
    spec = {"how": spelled("GiB"), "most": 2**60}
    assert node(GUESS, {"texts": ["20", "2e0 G", *never], "spec": spec}, cards=SOURCE) == [20 * 2**30, 2**31] + [
        None
    ] * len(never)
    for text in never:
        assert predict("P90.1", text).value is None, text


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("~20 G", "GiB", 20 * 2**30),
        ("15-20 GiB", "GiB", 17.5 * 2**30),
        ("20k tokens", "tokens", 20_000),
        ("1 to 3", "", 2),
        ("46.7B", "billion", Fraction("46.7")),
        ("124 million", "parameters", 124_000_000),
    ],
)
def test_as_people_guess(text, unit, value):
    assert read(text, unit) == value == predict("P90.2", text, unit=unit).value


#: Exercises on bytes and on others, exact and not, with mistakes that are fractions, and one whose answer is below zero or none.
MARKED = ["11.1", "11.4", "11.6", "20.1", "20.3", "20.4", "20.5", "12.2", "15.1", "15.3", "34.4"]


def typed(e):
    """What a reader may type: the middle and the bounds of every row, as exactly as they can be written, and what is no number."""
    scale, found = units.UNITS.get(e.unit, 1), ["0", "1-3", "3 parsecs", "2,5", show(e.right(), e.unit)]
    for row in marking.rows(e):
        bounds = [bound for bound in (row.low, row.high) if bound is not None]
        for number in [*bounds, sum(bounds) / len(bounds), *(bound + Fraction(1, 1000) for bound in bounds)]:
            found.append(
                f"{float(number / scale):.9f}"
                if number.denominator > 1
                else f"{number} B"
                if scale > 1
                else str(number)
            )
            found.append(f"~{float(number / scale):.3g}")
    return [*dict.fromkeys(text for text in found if len(text) < 50)]


@pytest.mark.parametrize("id", MARKED)
def test_the_browser_marks_an_answer_as_check_does(node, monkeypatch, id):
    monkeypatch.setenv(cards.ALONE, "1")
    e = exercise.exercise(id)
    texts, spec = typed(e), cards.exercise(e, check).spec
    found = node(MARK, {"texts": texts, "spec": spec}, cards=SOURCE)
    for text, (kind, why) in zip(texts, found, strict=True):
        verdict = check(id, text)
        assert (kind, spec["heads"][kind]) == (verdict.kind, verdict.marked), text
        if kind == "unreadable":
            assert why.endswith(f"It takes {e.wanted}.") and verdict.text.endswith(f"It takes {e.wanted}."), text
            continue
        said = verdict.text.removeprefix(f"You say {show(read(text, e.unit), e.unit)}. ")
        assert why.partition(". ")[2] == said if kind == "wrong" and "." not in text else why.endswith(said), text
    kinds = [kind for kind, _ in found]
    assert {*kinds} == {"right", "wrong", "unreadable"} and len({why.partition(". ")[2] for _, why in found}) > 4


def test_an_exercise_on_a_number_has_a_card_whose_answers_go_through_check(monkeypatch, tmp_path):
    monkeypatch.setenv(kept.VARIABLE, str(tmp_path / "progress.json"))
    asked = check("15.1", ...)
    bundle = asked._repr_mimebundle_()
    assert "In JupyterLab: put" in bundle["text/plain"] and "application/vnd.jupyter.widget-view+json" in bundle
    card = callout._SHOWN["15.1 not attempted yet", type(asked)]
    assert isinstance(card, Card) and "rows" not in card.spec and "6.61" not in str(card.spec)
    card.guess = "7.1 GiB"
    assert card.verdict[:3] == ["7.1 GiB", "wrong", "\u2717 15.1 not yet"] and "GB for GiB" in card.verdict[3]
    assert "15.1" in progress().tried
    card.guess = "~6.61 g"
    assert card.verdict == ["~6.61 g", "right", "\u2713 15.1 right", "6.61 GiB, exactly 7,096,471,556 B."]
    assert "15.1" in progress().solved


@pytest.mark.parametrize("id", ["15.2", "15.6"])
def test_a_formula_and_a_function_stay_in_the_cell(id):
    asked = check(id, ...)
    assert not hasattr(asked, "_repr_mimebundle_") and asked.text.startswith("In JupyterLab: ")


def test_the_words_in_place_of_a_card_do_not_tell_the_answer(monkeypatch):
    monkeypatch.setenv(cards.ALONE, "1")
    bundle = check("15.1", ...)._repr_mimebundle_()
    assert "6.61" not in str(bundle) and "7,096" not in str(bundle)


def test_how_far_apart_is_said_alike(node):
    pairs = [(10, 10), (10.5, 10), (30, 10), (4, 12), (-1, 12), (0, 10)]
    kept = {"P1": [1, "1", 3], "P2": [1, "1", 2], "P3": [5, "5", 4], "P4": [5, "5"]}
    said, score = node(TOLD, {"pairs": pairs, "kept": kept}, cards=SOURCE)
    assert [f"{words}." for words in said] == [
        predict("P90.3", a, unit="things").reveal(b).text.rpartition(": ")[2] for a, b in pairs
    ]
    assert score == "Of your 3 guesses so far, 2 were within a factor of two."


def test_what_is_locked_in_is_the_prediction_and_the_answer_stands_folded_until_then(monkeypatch):
    asked = predict("P90.4", ..., question="How much?")
    hidden = reveal("P90.4", 2**31)
    assert hidden._repr_html_().startswith("<details><summary>") and "2.00 GiB" in hidden._repr_html_()
    data, told = hidden._repr_mimebundle_()
    assert "2.00" not in data["text/plain"] and "print(_)" in data["text/plain"] and "2.00 GiB" in repr(hidden)
    assert "2.00" not in data["text/html"] and "print(_)" in data["text/html"]
    assert told == {"everybyte": {"prediction": "P90.4", "sealed": [seal("P90.4", "2.00 GiB"), seal("P90.4", "2.00")]}}
    monkeypatch.setenv("EVERYBYTE_ALONE", "1")
    data, told = hidden._repr_mimebundle_()
    assert data["text/html"].startswith("<details><summary>") and told["everybyte"]["answer"] == "2.00 GiB"
    assert "2.00" not in data["text/plain"]
    bundle = asked._repr_mimebundle_()
    assert "2.00 GiB" not in str(bundle) and "application/vnd.jupyter.widget-view+json" in bundle
    card = callout._SHOWN["Prediction P90.4", type(asked)]
    assert isinstance(card, Card) and card.spec["question"] == "How much?"
    card.guess = "~1 GiB"
    said = reveal("P90.4", 2**31)
    assert "You said 1.00 GiB. The answer is 2.00 GiB: 2 times too little." in said.text
    assert not said._repr_html_().startswith("<details")
    said._repr_mimebundle_()
    assert callout._SHOWN["Prediction P90.4", type(said)].spec["guess"] == [2**30, "1.00 GiB"]
