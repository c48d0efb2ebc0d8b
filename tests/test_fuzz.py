"""A slice of `make fuzz`: odd inputs of each kind, each answered rightly or refused clearly."""

import fuzz
import pytest

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
