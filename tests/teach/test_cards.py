"""A prediction's cards: what the reader types is read alike with a kernel and without, and no stored output tells the answer."""

import pytest

from everybyte import units
from everybyte.teach import cards, predict, predictions, reveal
from everybyte.teach.cards import Card
from everybyte.teach.quantities import guess

SOURCE = cards.program()
READ = """
import { read } from "./cards.mjs";
export default ({ texts, spec }) => texts.map((text) => read(text, spec)).map((x) => (Number.isNaN(x) ? null : x));
"""
TOLD = """
import { apart, score } from "./cards.mjs";
export default ({ pairs, kept }) => [pairs.map(([guess, answer]) => apart(guess, answer)), score(kept)];
"""
MEMORY = ["20", "20 G", "~20 GiB", "15-20 GiB", "15 to 20 g", "15\u201320 GiB", "20 gb", "about 3 MiB", "1,024 MiB", ".5 TiB", "1e3 mib", "8619549484",
          "8,619,549,484 B"]  # fmt: skip
COUNTS = ["20k tokens", "20k", "1,000", "5-7 tokens", "~3", "1 token", "2m tokens"]
NEVER = ["", "lots", "-3 GiB", "1e99", "20 parsecs", "15-", "<b>1</b>", "1 2 GiB"]


def test_the_browser_reads_a_guess_as_python_does(node):
    for texts, unit, memory in ((MEMORY, "GiB", True), (COUNTS, "tokens", False)):
        spec = {"unit": unit, "memory": memory, "units": units.UNITS if memory else {}}
        found = node(READ, {"texts": texts, "spec": spec}, cards=SOURCE)
        assert found == [pytest.approx(float(guess(text, unit))) for text in texts]
    spec = {"unit": "GiB", "memory": True, "units": units.UNITS}
    assert node(READ, {"texts": NEVER, "spec": spec}, cards=SOURCE) == [None] * len(NEVER)
    for text in NEVER[1:]:
        assert predict("P90.1", text).value is None, text


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("~20 G", "GiB", 20 * 2**30),
        ("15-20 GiB", "GiB", 17.5 * 2**30),
        ("20k tokens", "tokens", 20_000),
        ("1 to 3", "", 2),
    ],
)
def test_as_people_guess(text, unit, value):
    assert guess(text, unit) == value == predict("P90.2", text, unit=unit).value


def test_how_far_apart_is_said_alike(node):
    pairs = [(10, 10), (10.5, 10), (30, 10), (4, 12), (-1, 12), (0, 10)]
    kept = {"P1": [1, "1", 3], "P2": [1, "1", 2], "P3": [5, "5", 4], "P4": [5, "5"]}
    said, score = node(TOLD, {"pairs": pairs, "kept": kept}, cards=SOURCE)
    assert [f"{words}." for words in said] == [
        predict("P90.3", a, unit="things").reveal(b).text.rpartition(": ")[2] for a, b in pairs
    ]
    assert score == "Of your 3 guesses so far, 2 were within a factor of two."


def test_what_is_locked_in_is_the_prediction_and_the_answer_stands_folded_until_then():
    asked = predict("P90.4", ..., question="How much?")
    hidden = reveal("P90.4", 2**31)
    assert hidden._repr_html_().startswith("<details><summary>") and "2.00 GiB" in hidden._repr_html_()
    bundle = asked._repr_mimebundle_()
    assert "2.00 GiB" not in str(bundle) and "application/vnd.jupyter.widget-view+json" in bundle
    card = predictions._SHOWN["Prediction P90.4", type(asked)]
    assert isinstance(card, Card) and card.spec["question"] == "How much?"
    card.guess = "~1 GiB"
    said = reveal("P90.4", 2**31)
    assert "You said 1.00 GiB. The answer is 2.00 GiB: 2 times too little." in said.text
    assert not said._repr_html_().startswith("<details")
    said._repr_mimebundle_()
    assert predictions._SHOWN["Prediction P90.4", type(said)].spec["guess"] == [2**30, "1.00 GiB"]
