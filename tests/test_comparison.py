"""Witnesses side by side: agreement, a planted difference, and steps that are not the same step."""

from dataclasses import replace

import pytest

import everybyte as eb
from everybyte import units
from everybyte.answers.comparison import everyone
from everybyte.lab import Measurement, Runs

MODEL = eb.Model(name="small", layers=2, width=48, heads=3, vocabulary=101, positions=40)
SETUP = eb.Setup(batch=2, sequence=8)


@pytest.fixture(scope="module")
def trace():
    return eb.dry_run(MODEL, SETUP)


@pytest.fixture
def budget():
    return eb.budget(MODEL, SETUP)


def with_more(budget, extra, part="activations"):
    """A prediction that is `extra` bytes too high, in one part, at the peak."""
    parts = budget.parts | {part: budget.parts[part] + extra}
    return replace(budget, parts=parts, peak=budget.peak + extra)


def cells(comparison):
    """What -> the cells of its row, as shown."""
    return {row[0]: row[1:] for row in comparison.table().rows}


def test_witnesses_that_agree(budget, trace):
    comparison = eb.compare(budget, trace)
    assert comparison.agree
    assert set(comparison.differences.values()) == {0}
    assert comparison.differences.keys() == {*budget.parts, *budget.phases, "peak"}
    assert list(comparison.witnesses) == ["predict", "dry run"]
    shown = cells(comparison)
    assert shown["peak"] == [budget.peak, trace.peak, units.text(trace.peak), 0, "0.00%"]
    assert shown.keys() == {what for what, values in comparison.rows if any(values)} & comparison.differences.keys()


@pytest.mark.parametrize("extra", [1, -1, 4096])
def test_a_planted_difference_is_shown_in_bytes_and_percent(budget, trace, extra):
    comparison = eb.compare(with_more(budget, extra), trace)
    assert not comparison.agree
    wrong = {what: d for what, d in comparison.differences.items() if d}
    assert wrong == {"activations": abs(extra), "peak": abs(extra)}
    larger = max(budget.peak, budget.peak + extra)
    percent = f"{100 * abs(extra) / larger:.2f}%"
    row = [budget.peak + extra, budget.peak, units.text(larger), abs(extra), percent]
    assert cells(comparison)["peak"] == row
    line = next(line for line in repr(comparison).splitlines() if line.startswith("peak"))
    assert line.split() == ["peak", f"{row[0]:,}", f"{row[1]:,}", *row[2].split(), f"{row[3]:,}", percent]
    assert comparison.as_dict()["agree"] is False
    assert comparison.as_dict()["differences"]["peak"] == abs(extra)


def test_a_difference_in_one_moment_is_a_disagreement(budget, trace):
    comparison = eb.compare(replace(budget, phases=budget.phases | {"rest": budget.phases["rest"] - 8}), trace)
    assert {what: d for what, d in comparison.differences.items() if d} == {"rest": 8}
    assert not comparison.agree


def test_the_widest_of_three_differences_counts(budget, trace):
    comparison = eb.compare(trace, with_more(budget, 10), with_more(budget, -5))
    assert list(comparison.witnesses) == ["dry run 1", "predict 2", "predict 3"]
    assert comparison.differences["peak"] == 15
    assert cells(comparison)["peak"][:3] == [trace.peak, budget.peak + 10, budget.peak - 5]


def test_what_one_witness_does_not_say_is_no_disagreement(budget, trace):
    silent = replace(budget, parts={}, peak=None, peak_at=None)
    comparison = eb.compare(silent, trace)
    assert comparison.agree
    assert comparison.differences.keys() == budget.phases.keys()
    assert dict(comparison.rows)["peak"] == [None, trace.peak]
    assert "peak" not in cells(comparison)
    three = cells(eb.compare(silent, trace, budget))
    assert three["peak"][:3] == ["–", trace.peak, budget.peak]


def test_fewer_than_two_are_refused(trace):
    for witnesses in ((), (trace,)):
        with pytest.raises(ValueError, match=rf"compare\.witnesses: {len(witnesses)} given; allowed: two or more"):
            eb.compare(*witnesses)


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("model", eb.budget(MODEL.replace(layers=3), SETUP)),
        ("setup", eb.budget(MODEL, SETUP.replace(batch=3))),
        ("rounding", eb.budget(MODEL, SETUP, rounding=512)),
    ],
)
def test_different_steps_are_refused(budget, trace, field, other):
    for witnesses in ((trace, other), (other, trace), (trace, budget, other)):
        with pytest.raises(ValueError, match=rf"compare\.{field}: .* allowed: witnesses of one and the same step"):
            eb.compare(*witnesses)


@pytest.mark.parametrize("other", [None, 3, "peak", {"peak": 3}])
def test_what_is_no_witness_is_refused(budget, other):
    for witnesses in ((budget, other), (other, budget)):
        with pytest.raises(ValueError, match=r"compare\.witnesses: .* is no witness; allowed: what budget or dry_run"):
            eb.compare(*witnesses)


def test_html_has_every_number_and_no_markup_of_the_users():
    bad = '<img src=x onerror="alert(1)"> & co'
    model = MODEL.replace(name=bad)
    budget, trace = eb.budget(model, SETUP), eb.dry_run(model, SETUP)
    page = eb.compare(with_more(budget, 4096), trace)._repr_html_()
    assert "<img" not in page
    assert f'<td style="text-align:right">{budget.peak + 4096:,}</td>' in page
    assert page.count("<tr>") == 1 + len(eb.compare(budget, trace).table().rows)
    # A part's name comes from a witness: one that someone wrote may have any.
    trace_like = replace(budget, parts=budget.parts | {bad: 7})
    page = eb.compare(trace_like, trace_like)._repr_html_()
    assert "<img" not in page and "&lt;img src=x onerror=&quot;alert(1)&quot;&gt; &amp; co" in page


def test_json_holds_whole_bytes(budget, trace):
    found = eb.compare(with_more(budget, 3), trace).as_dict()
    assert all(type(v) is int for v in found["differences"].values())
    assert [w["peak"] for w in found["witnesses"]] == [budget.peak + 3, trace.peak]


def test_everyone_answers_one_question(trace):
    table = everyone({"an article": 3 * trace.peak, "<b>": 0}, MODEL, SETUP)
    assert [row[0] for row in table.rows] == [
        "an article", "<b>", "this book, by formula", "this book, by dry run", "a GPU",
    ]  # fmt: skip
    assert [row[2] for row in table.rows] == ["3.00 times", "0.00 times", "1.00 times", "1.00 times", "–"]
    assert table.rows[-1][1] == "not yet recorded on a GPU" and "<b>" not in table._repr_html_()


@pytest.mark.parametrize(
    ("change", "shown"),
    [({}, "2.00 times"), ({"status": "oom"}, "out of memory"), ({"status": "failed"}, "failed")],
)
def test_everyone_and_a_gpu(trace, change, shown):
    device = {"name": "NVIDIA Made-Up", "type": "cuda", "gpu": None, "memory": None}
    status = {
        "status": "measured",
        "reason": "",
        "requested_peak": 2 * trace.peak + 9,
        "baseline": 4,
        "workspace": 5,
    } | change
    measured = Measurement(model=MODEL, setup=SETUP, device=device, fingerprint="0" * 64, date="2026-11-21", **status)
    row = everyone({}, MODEL, SETUP, Runs("made up", {"this": measured})).rows[-1]
    assert row[0] == "NVIDIA Made-Up" and shown in row
    on_cpu = replace(measured, device=device | {"type": "cpu"})
    assert everyone({}, MODEL, SETUP, Runs("made up", {"this": on_cpu})).rows[-1][0] == "a GPU"


def test_everyone_answers_of_the_same_step(trace):
    other = Measurement(
        model=MODEL, setup=SETUP.replace(batch=7), status="failed", reason="", device={"type": "cuda"}, fingerprint="", date=""
    )  # fmt: skip
    for found in ({"this": other}, {}, {"one": None, "two": None}):
        with pytest.raises(ValueError, match="everyone.runs: not of this step"):
            everyone({}, MODEL, SETUP, Runs("made up", found))
