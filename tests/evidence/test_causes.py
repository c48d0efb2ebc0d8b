"""Of messages of every form, the first cause named, and the phase of the run: right by hand in 95 of 100 at least."""

import pytest
import reported

import everybyte as eb
from everybyte.evidence import message, reports

#: What the numbers of each report allow to say, worked out by hand.
REPORTED = {
    "cads": "need", "girlgpt": "need", "neurolens": "tensor", "pytorch-16417": "fragmentation", "lerf": "fragmentation",
    "generateu": "fragmentation", "kaito": "fragmentation", "mask2dit": "fragmentation", "diffuman": "refused", "meshgen": "shared",
    "maddog": "fragmentation", "masking": "need", "examples": "fragmentation",
}  # fmt: skip
EVERY = reported.CASES | {name: reported.Case(reports()[name].text, cause) for name, cause in REPORTED.items()}


def test_the_first_cause_named_is_right_in_95_of_100():
    wrong = {name: found for name, case in EVERY.items() if (found := eb.doctor(case.text).cause) != case.cause}
    assert len(EVERY) >= 60 and set(REPORTED) == set(reports())
    assert len(wrong) <= 0.05 * len(EVERY), wrong


@pytest.mark.parametrize("name", reported.CASES)
def test_the_phase_and_what_helps_there(name):
    case = reported.CASES[name]
    found = eb.doctor(case.text)
    assert message(case.text).phase == case.phase, found
    assert found.advice and any(case.advice in one.what + one.why for one in found.advice), found


def test_the_line_is_the_scripts_own():
    said = message(reported.CASES["foreach"].text)
    assert (said.line, said.call, said.part) == ("train.py:70 train", "_multi_tensor_adam", "optimizer")
    assert (
        "it died in the optimizer's step: train.py:70 train, in _multi_tensor_adam"
        in eb.doctor(reported.CASES["foreach"].text).findings
    )


def test_bytes_that_the_allocator_warned_of_are_taken_where_they_are_the_messages_own():
    text = reported.CASES["exact"].text
    said = message(text)
    assert (said.asked, said.free, said.capacity) == (983_564_288, 539_387_494, 1_717_986_918)
    assert set(said.exact) == {"asked", "free", "capacity"}
    other = message(text.replace("983564288", "983564289000"))
    assert other.exact == () and other.asked == 938 * 2**20


def test_an_arrays_bytes_are_its_shapes():
    assert message(reported.CASES["NumPy"].text).asked == 1024 * 1_048_577 * 4


def test_what_frees_less_than_is_missing_is_not_enough_alone():
    found = eb.doctor(reported.CASES["foreach"].text)
    (grows,) = [one for one in found.advice if "expandable" in one.what]
    assert grows.fits is False and found.advice[-1] is grows and "not enough alone" in repr(found)
    causes = {one.cause: one for one in eb.doctor(reported.CASES["others, not enough"].text).causes}
    assert causes["need"].enough and causes["others"].enough is False and causes["others"].bytes == round(1.8 * 2**30)
