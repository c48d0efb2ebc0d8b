"""A slice of `make fuzz`: odd inputs of each kind, each answered rightly or refused clearly."""

from pathlib import Path

import attacks
import fuzz
import pytest

ROOT = Path(__file__).resolve().parents[1]

#: Inputs of each subject here: what takes longer has fewer.
FEW = {fuzz.dry_run: 4, fuzz.module: 6, fuzz.config: 0, fuzz.card: 8, fuzz.model: 8, fuzz.formula: 6, fuzz.record: 8}


@pytest.mark.parametrize("subject", [s for s in fuzz.SUBJECTS if FEW.get(s, 1)], ids=lambda subject: subject.__name__)
def test_whatever_is_given_the_answer_is_right_or_a_clear_error(subject):
    seen = fuzz.run(subject, count := FEW.get(subject, 20))
    assert 1 <= sum(seen.values()) <= 4 * count and set(seen) <= {"right", "clear error"}


def test_what_is_neither_is_found():
    def wrong(draw):
        assert draw(fuzz.st.integers(0, 99)) < 50

    def unclear(draw):
        int(draw(fuzz.st.sampled_from(["1", "x"])))

    def elsewhere(draw):
        [][draw(fuzz.st.integers(0, 1))]

    for subject, error in ((wrong, AssertionError), (unclear, AssertionError), (elsewhere, IndexError)):
        with pytest.raises(error):
            fuzz.run(subject, 50)


def test_every_subject_is_mostly_answered():
    """Where nothing is right, nothing was checked against a second way."""
    for subject in (fuzz.setup, fuzz.size, fuzz.claim, fuzz.message, fuzz.progress):
        assert fuzz.run(subject, 30)["right"] > 2


@pytest.mark.sampled(4)
@pytest.mark.parametrize("area", attacks.AREAS)
def test_what_may_be_done_to_it_survives_or_is_a_clear_error(area):
    seen, failed = attacks.tried(area)
    assert not failed and seen["survived"] + seen["clear error"] > 8


def test_the_table_of_tries_has_every_area_and_none_that_failed():
    table = (ROOT / "tools" / "attacks.txt").read_text(encoding="utf-8").splitlines()
    rows = {line.split("  ")[0].removesuffix(" (tests)"): line for line in table[2:] if line[-1:].isdigit()}
    assert rows.keys() == {*attacks.AREAS, *attacks.TESTS, "all"} and all(row.endswith(" 0") for row in rows.values())
