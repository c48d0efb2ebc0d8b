"""The whole step, operation by operation: the ledger's timeline is the dry run's, to the byte."""

import grid
import numpy
import pytest

import everybyte as eb
from everybyte.budget import PEAKS, peaks
from everybyte.setup import PRECISIONS


@pytest.mark.parametrize("start", range(0, 120, 40))
def test_every_operation_of_any_model_and_setup(start):
    found = {}
    for seed in range(start, start + 40):
        if wrong := grid.first_difference(*grid.anything(seed)):
            found[seed] = wrong
    assert found == {}


@pytest.mark.parametrize("start", range(0, 80, 40))
def test_every_operation_with_checkpointing_and_accumulation(start):
    found = {}
    for seed in range(start, start + 40):
        if wrong := grid.first_difference(*grid.saving(seed, chunks=False)):
            found[seed] = wrong
    assert found == {}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("attention", ["eager", "flash"])
def test_every_operation_of_gpt2(precision, attention):
    setup = eb.Setup(batch=3, sequence=1000, precision=precision, attention=attention, dropout=0.1)
    assert grid.first_difference(eb.model("gpt2"), setup, 512) is None
    assert grid.first_difference(eb.model("gpt2-nobias"), setup) is None


@pytest.mark.parametrize("seed", range(8))
def test_with_the_loss_in_chunks_the_marks_and_the_peak_are_the_same(seed):
    """A chunk's operations stand in the ledger in an order of their own."""
    model, setup, block = grid.anything(seed)
    for chunks in {1, min(2, setup.batch * setup.sequence), min(5, setup.batch * setup.sequence)}:
        chunked = setup.replace(loss="chunked", loss_chunks=chunks)
        budget, trace = eb.budget(model, chunked, block), eb.dry_run(model, chunked, block)
        assert max(budget.live) == trace.peak
        assert [budget.live[i] for i in budget.marks.values()] == [trace.live[i] for i in trace.marks.values()]


@pytest.mark.parametrize("drawn", [grid.anything, grid.saving, grid.shared])
@pytest.mark.parametrize("seed", range(12))
def test_the_timeline_holds_the_budget(seed, drawn):
    budget = eb.budget(*drawn(seed))
    lines, at = budget.timeline(), budget.peak_operation
    assert budget.live[at] == budget.peak and budget.operations[at][1] == budget.peak_at
    assert {part: line[at] for part, line in lines.items() if line[at]} == {p: b for p, b in budget.parts.items() if b}
    assert {moment: budget.live[place] for moment, place in budget.marks.items()}.items() <= budget.phases.items()
    assert budget.live[0] == budget.live[-1] == budget.phases["rest"]


def test_a_block_s_operations_are_its_own():
    budget = eb.budget(eb.model("gpt2"), eb.Setup(batch=1, sequence=64))
    trace = eb.dry_run(eb.model("gpt2"), eb.Setup(batch=1, sequence=64))
    owners = [".".join(owner.split(".")[:2]) if owner.startswith("blocks") else "" for *_, owner in trace.operations]
    assert [owner for *_, owner in budget.operations] == owners


@pytest.mark.parametrize("checkpointing", ["full", "every-k"])
def test_a_block_made_again_owns_what_it_makes(checkpointing):
    setup = eb.Setup(batch=1, sequence=64, checkpointing=checkpointing, accumulation=2)
    model = eb.Model(name="five", layers=5, width=32, heads=2, vocabulary=101, positions=64)
    budget, trace = eb.budget(model, setup), eb.dry_run(model, setup)
    owners = [".".join(owner.split(".")[:2]) if owner.startswith("blocks") else "" for *_, owner in trace.operations]
    assert [owner for *_, owner in budget.operations] == owners


def test_a_planted_error_is_noticed(monkeypatch):
    model, setup = eb.model("gpt2"), eb.Setup(batch=1, sequence=64)
    trace = eb.dry_run(model, setup)
    lines = {part: list(line) for part, line in trace.timeline().items()}
    lines["activations"][100] += 1
    assert grid.first_difference(model, setup) is None
    monkeypatch.setattr(type(trace), "timeline", lambda self: lines)
    assert "100, " in grid.first_difference(model, setup)


def test_a_step_that_is_not_derived_has_no_timeline():
    with pytest.raises(ValueError, match="mixtral-8x7b"):
        eb.budget(eb.model("mixtral-8x7b"), eb.Setup()).timeline()


@pytest.mark.parametrize("seed", range(40))
def test_the_named_instants_are_the_timeline_s(seed):
    model, setup, _ = grid.anything(seed)
    budget = eb.budget(model, setup)
    live = {
        name: x
        for (name, moment, _), x in zip(budget.operations, budget.live, strict=True)
        if moment != "optimizer step"
    }
    last = "token gradients added" if "token gradients added" in live else "token gradient"
    assert eb.formula("instant.end_of_backward").at(model, setup) == live[last]
    for name, operation in (
        ("nll_backward", "negative log-likelihood backward"),
        ("log_softmax_backward", "log-softmax backward"),
    ):
        assert eb.formula(f"instant.{name}").at(model, setup) == live[operation]


@pytest.mark.parametrize("seed", range(8))
def test_peaks_over_arrays_are_the_budgets(seed):
    model, setup, block = grid.anything(seed)
    batch, sequence = numpy.array([1, 2, 9, 4000]), numpy.array([[1], [7], [model.positions]])
    peak, peak_at = peaks(model, setup, batch, sequence, block)
    assert peak.shape == peak_at.shape == (3, 4)
    for (i, j), found in numpy.ndenumerate(peak):
        one = eb.budget(model, setup.replace(batch=int(batch[j]), sequence=int(sequence[i, 0])), block)
        assert (found, PEAKS[peak_at[i, j]]) == (one.peak, one.peak_at)


@pytest.mark.parametrize(
    ("model", "setup", "batch", "sequence", "said"),
    [
        ("mixtral-8x7b", {}, 1, 1, "mixtral-8x7b"),
        ("gpt2", {"loss": "chunked"}, 1, 1, "peaks.setup.loss: 'chunked'"),
        ("gpt2", {}, 1, [8, 1025], "Setup.sequence: 1025"),
        ("gpt2", {}, [4, 0], 8, "Setup.batch: 0"),
    ],
)
def test_bad_input_is_named(model, setup, batch, sequence, said):
    with pytest.raises(ValueError, match=said):
        peaks(eb.model(model), eb.Setup(**setup), batch, sequence)


def test_a_comparison_draws_both_timelines():
    setup = eb.Setup(batch=1, sequence=64)
    fig = eb.compare(eb.budget(eb.model("gpt2"), setup), eb.dry_run(eb.model("gpt2"), setup)).figure()
    assert [ax.get_title("left") for ax in fig.axes] == ["predict", "dry run"]
    assert "gpt2, fp32, batch 1, sequence 64: predict, 350 operations: the peak" in fig.alt
