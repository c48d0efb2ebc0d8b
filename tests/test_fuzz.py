"""A share of `make fuzz`: odd inputs of each kind, each answered rightly or refused clearly; and the harness sees what is neither."""

import gc
import os
import signal
import warnings
from pathlib import Path

import fuzz
import hypothesis
import pytest
from fuzzing import SUBJECTS, commands, evidence, files, pages, steps, values
from fuzzing.drawn import LeftOut
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[1]
#: Inputs of each subject here: what takes longer has fewer.
FEW = {
    commands.command: 12, commands.script: 0, commands.sizes: 4, evidence.hostile: 8, evidence.snapshot: 10, files.derivation: 0, files.record: 8,
    pages.explorer: 3, steps.config: 0, steps.derived: 0, steps.dry_run: 2, steps.own: 2, steps.name: 0, values.card: 8, values.formula: 6, values.model: 8,
}  # fmt: skip


@pytest.mark.parametrize("subject", [s for s in SUBJECTS if FEW.get(s, 1)], ids=lambda subject: subject.__name__)
def test_whatever_is_given_the_answer_is_right_or_a_clear_error(subject):
    seen, failed = fuzz.run(subject, count := FEW.get(subject, 20))
    assert not failed, "\n".join(f"{where}: {told}" for where, told in failed.items())
    assert 1 <= sum(seen.values()) <= 4 * count and set(seen) <= {"right", "clear error"}


def wrong(draw):
    assert draw(st.integers(0, 99)) < 50


def unclear(draw):
    int(draw(st.sampled_from(["1", "x"])))


def elsewhere(draw):
    [][draw(st.integers(0, 1))]


def escaped(draw):
    raise ValueError(f"x.y: {draw(st.sampled_from(['1', chr(27)]))}; allowed: 1")


def endless(draw):
    raise ValueError(f"x.y: {'9' * draw(st.integers(0, 9999))}; allowed: 1")


def ended(draw):
    raise SystemExit(draw(st.integers(0, 3)))


def moved(draw):
    os.chdir(draw(st.sampled_from([".", ".."])))


def set_aside(draw):
    if draw(st.booleans()):
        warnings.simplefilter("ignore", FutureWarning)


def uncollected(draw):
    (gc.disable if draw(st.booleans()) else gc.enable)()


def unhandled(draw):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN if draw(st.booleans()) else signal.SIG_DFL)


def left(draw):
    os.environ["FUZZ"] = draw(st.sampled_from(["1", "2"]))


def in_a_mode(draw):
    import torch

    torch.set_default_dtype(draw(st.sampled_from([torch.float32, torch.float64])))


@pytest.fixture
def restored(monkeypatch):
    """What the subjects below change is put back."""
    import torch

    monkeypatch.setenv("FUZZ", "0")
    folder, enabled, handler, dtype = (
        os.getcwd(),
        gc.isenabled(),
        signal.getsignal(signal.SIGUSR1),
        torch.get_default_dtype(),
    )
    yield
    os.chdir(folder)
    (gc.enable if enabled else gc.disable)()
    signal.signal(signal.SIGUSR1, handler)
    torch.set_default_dtype(dtype)


@pytest.mark.parametrize(
    ("subject", "where"),
    [
        (wrong, "AssertionError"), (unclear, "AssertionError"), (elsewhere, "IndexError"), (escaped, "AssertionError"),
        (endless, "AssertionError"), (ended, "SystemExit"), (moved, "AssertionError"), (set_aside, "AssertionError"),
        (uncollected, "AssertionError"), (unhandled, "AssertionError"), (left, "AssertionError"), (in_a_mode, "AssertionError"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)  # fmt: skip
def test_what_is_neither_is_found(subject, where, restored):
    seen, failed = fuzz.run(subject, 50)
    assert seen["failed"] >= 1 and all(name.startswith(where) for name in failed) and failed


def test_an_input_without_end_is_a_failure(monkeypatch):
    def waits(draw):
        if draw(st.integers(0, 9)) > 4:
            signal.pause()

    monkeypatch.setattr(waits, "seconds", 1, raising=False)
    monkeypatch.setattr(fuzz, "SHORTER", 0)
    monkeypatch.setattr(fuzz, "PATIENCE", 1)
    seen, failed = fuzz.run(waits, 5)
    assert list(failed) == [next(name for name in failed if name.startswith("TimeoutError"))]


def test_each_different_failure_is_told_by_its_shortest_input_and_the_others_are_counted():
    def several(draw):
        number = draw(st.integers(0, 9999))
        if number > 7000:
            raise KeyError(number)
        assert number < 3000

    seen, failed = fuzz.run(several, 200)
    assert sorted(told.rpartition("drawn: ")[2] for told in failed.values()) == ["3000", "7001"]
    assert seen["failed"] > 2 and seen["right"] > 2 and 100 < seen.total() <= 200


def test_a_subject_that_cannot_be_tried_says_why_and_one_that_is_wrong_itself_is_no_failure_of_the_library():
    def absent(draw):
        raise LeftOut("nothing to rehearse in")

    def mistaken(draw):
        draw(st.integers(3, 2))

    with pytest.raises(LeftOut, match="nothing to rehearse in"):
        fuzz.run(absent, 5)
    with pytest.raises(hypothesis.errors.InvalidArgument):
        fuzz.run(mistaken, 5)


def test_every_subject_is_mostly_answered():
    """Where nothing is right, nothing was checked against a second way."""
    for subject in (values.setup, values.size, values.claim, values.keyed, evidence.message, files.answers):
        assert fuzz.run(subject, 40)[0]["right"] > 2


def test_the_table_is_of_every_subject_its_numbers_add_up_and_none_failed():
    table = (ROOT / "tools" / "fuzz.txt").read_text(encoding="utf-8").splitlines()
    rows = {line.split()[0]: [int(number.replace(",", "")) for number in line.split()[1:]] for line in table[2:]}
    assert rows.keys() == {*(subject.__name__ for subject in SUBJECTS), "all"}
    found = rows.pop("all")
    assert all(tried == right + clear + failed for tried, right, clear, failed, _ in rows.values())
    assert found[:4] == [sum(column) for column in zip(*rows.values(), strict=True)][:4] and found[0] > 15_000
    assert found[3] == 0
