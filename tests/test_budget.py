"""The prediction as an object: its sums, its order, what it refuses. That its numbers are right, others test."""

import json

import grid
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

import everybyte as eb
from everybyte import units
from everybyte.ask.choices import ATTENTIONS, COMMON_OPTIMIZERS, OPTIMIZER_IMPLS, PRECISIONS
from everybyte.theory.budget import peaks

MODEL = eb.Model(name="small", layers=2, width=48, heads=3, vocabulary=101, positions=64)
MOMENTS = ("rest", "after_forward", "after_backward", "after_step")
PEAKS = {"forward", "loss forward", "loss backward", "backward", "optimizer step"}
#: A GPT as large as the largest: 175 B parameters, and a batch that no GPU has ever held.
HUGE = eb.Model(name="175B", layers=96, width=12288, heads=96, vocabulary=50257, positions=2048)


@st.composite
def steps(draw):
    """A model, a setup and a rounding; heads that any kernel takes."""
    heads = draw(st.integers(1, 6))
    model = eb.Model(
        name="drawn", layers=draw(st.integers(1, 6)), width=heads * 4 * draw(st.integers(1, 24)), heads=heads,
        vocabulary=draw(st.integers(2, 60000)), positions=128, tied=draw(st.booleans()), qkv_bias=draw(st.booleans()),
    )  # fmt: skip
    setup = eb.Setup(
        batch=draw(st.integers(1, 12)), sequence=draw(st.integers(1, 100)), precision=draw(st.sampled_from(list(PRECISIONS))),
        optimizer=draw(st.sampled_from(COMMON_OPTIMIZERS)), optimizer_impl=draw(st.sampled_from(OPTIMIZER_IMPLS)),
        attention=draw(st.sampled_from(ATTENTIONS)), dropout=draw(st.sampled_from([0.0, 0.1])),
    )  # fmt: skip
    return model, setup, draw(st.sampled_from(grid.BLOCKS))


@pytest.mark.parametrize("seed", range(80))
def test_parts_sum_to_the_peak_and_moments_to_their_phases(seed):
    model, setup, rounding = grid.anything(seed)
    budget = eb.budget(model, setup, rounding)
    assert sum(budget.parts.values()) == budget.peak
    assert list(budget.moments) == list(MOMENTS)
    for moment in MOMENTS:
        assert sum(budget.parts_at(moment).values()) == budget.phases[moment]
    assert budget.peak_at in PEAKS
    # Nothing that is a moment of the step is above its peak, which the optimizer's step reaches or does not.
    assert max(budget.phases.values()) <= budget.peak
    assert budget.peak_at != "optimizer step" or budget.phases["step"] == budget.peak
    assert budget.phases["step"] >= max(budget.phases["after_backward"], budget.phases["after_step"])
    assert budget.phases["after_step"] >= budget.phases["rest"]
    for value in [*budget.parts.values(), *budget.phases.values(), budget.peak]:
        assert type(value) is int and value >= 0 and value % rounding == 0


@given(steps())
def test_what_is_drawn_adds_up(step):
    model, setup, rounding = step
    budget = eb.budget(model, setup, rounding)
    assert sum(budget.parts.values()) == budget.peak == max(budget.peak, *budget.phases.values())


@given(steps(), st.integers(1, 5))
def test_a_larger_batch_takes_no_less(step, more):
    model, setup, rounding = step
    no_less(eb.budget(model, setup, rounding), eb.budget(model, setup.replace(batch=setup.batch + more), rounding))


@given(steps(), st.integers(1, 28))
def test_a_longer_sequence_takes_no_less(step, more):
    model, setup, rounding = step
    no_less(
        eb.budget(model, setup, rounding), eb.budget(model, setup.replace(sequence=setup.sequence + more), rounding)
    )


@given(steps(), st.integers(1, 5))
def test_more_layers_take_more(step, more):
    model, setup, rounding = step
    small, large = (eb.budget(m, setup, rounding) for m in (model, model.replace(layers=model.layers + more)))
    no_less(small, large)
    assert small.peak < large.peak
    assert all(small.phases[m] < large.phases[m] for m in small.phases)


@given(steps())
def test_rounding_takes_no_less_and_512_covers_1(step):
    model, setup, _ = step
    no_less(eb.budget(model, setup, 1), eb.budget(model, setup, 512))


def no_less(small, large):
    assert small.peak <= large.peak
    for moment in small.phases:
        assert small.phases[moment] <= large.phases[moment]


def test_unknown_phase():
    budget = eb.budget(MODEL, eb.Setup(sequence=64))
    with pytest.raises(ValueError, match=r"Budget\.phase: 'after_forwards' is unknown; did you mean 'after_forward'"):
        budget.parts_at("after_forwards")
    with pytest.raises(ValueError, match=r"Budget\.phase: 'step' is unknown; .*allowed: rest, after_forward"):
        budget.parts_at("step")


@pytest.mark.parametrize("sequence", [65, 1024])
def test_a_sequence_longer_than_the_positions_is_refused(sequence):
    with pytest.raises(ValueError, match=rf"Setup\.sequence: {sequence} is more than the 64 positions of small"):
        eb.budget(MODEL, eb.Setup(sequence=sequence))


@pytest.mark.parametrize("rounding", [0, -512, 512.0, True, "512", None, 2**31])
def test_rounding_is_a_whole_number(rounding):
    with pytest.raises(ValueError, match=rf"budget\.rounding: {rounding!r} is not a whole number"):
        eb.budget(MODEL, eb.Setup(sequence=64), rounding=rounding)


@pytest.mark.parametrize(("precision", "attention"), [("fp32", "eager"), ("bf16-mixed", "flash"), ("bf16", "flash")])
def test_a_model_too_big_for_any_machine_is_predicted_and_counted_alike(precision, attention):
    setup = eb.Setup(batch=64, sequence=2048, precision=precision, attention=attention)
    budget, trace = eb.budget(HUGE, setup), eb.dry_run(HUGE, setup)
    assert eb.compare(budget, trace).agree
    assert budget.peak_at == trace.peak_at
    assert HUGE.parameters > 174_000_000_000
    assert budget.peak > 2**42  # bytes: four times the memory of eight of the largest GPUs


def test_budgets_are_their_own():
    setup = eb.Setup(batch=2, sequence=8)
    first = eb.budget(MODEL, setup)
    said = first.as_dict() | {"moments": dict(first.moments)}
    eb.budget(MODEL, setup).parts.clear()
    eb.budget(MODEL, setup).moments.clear()
    second = eb.budget(MODEL, setup)
    assert second.as_dict() | {"moments": dict(second.moments)} == said


def test_json_gives_the_same_numbers_back():
    budget = eb.budget(MODEL, eb.Setup(batch=2, sequence=8, dropout=0.1))
    found = json.loads(json.dumps(budget.as_dict()))
    assert list(found) == ["witness", "model", "setup", "parts", "phases", "peak", "peak_at"]
    assert found["model"] == {"name": "small", "parameters": MODEL.parameters}
    assert eb.Setup(**found["setup"]) == budget.setup
    assert (found["parts"], found["phases"], found["peak"]) == (budget.parts, budget.phases, budget.peak)
    assert found["peak_at"] == budget.peak_at


@pytest.mark.parametrize("name", ["bert-large", "opt-350m"])
def test_what_is_not_derived_is_refused_by_name(name):
    model = eb.model(name, code="reference")
    with pytest.raises(
        ValueError,
        match=rf"^Model\.\w+: .* of {name} is not a .*; allowed: .*; eb.dry_run and eb.derive take what transformers builds$",
    ):
        eb.budget(model, eb.Setup(sequence=64))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "changes",
    [
        {}, {"checkpointing": "every-k", "checkpoint_every": 5}, {"checkpointing": "full", "accumulation": 5},
        {"loss": "chunked", "loss_chunks": 7, "attention": "eager"}, {"checkpointing": "operations", "precision": "bf16-mixed"},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("name", ["gpt2", "llama-3.2-1b"])
def test_each_operation_is_its_module_s(name, changes):
    """Of blocks that are alike few are traced, and each has its own number."""
    model, setup = eb.model(name, code="reference").replace(layers=17), eb.Setup(batch=2, sequence=64, **changes)
    predicted, counted = (
        [owner for _, phase, owner in witness(model, setup).operations if phase not in ("optimizer step", "after_step")]
        for witness in (eb.budget, eb.dry_run)
    )
    assert predicted == counted and {"blocks.16.mlp.up", "blocks.11.attention"} <= set(predicted)


def test_it_shows_itself():
    budget, trace = (witness(MODEL, eb.Setup(batch=2, sequence=8)) for witness in (eb.budget, eb.dry_run))
    for said in (budget, trace):
        assert (
            repr(said)
            == f"{type(said).__name__}(small: peak {units.text(said.peak)}, {said.peak:,} B, in the {said.peak_at})"
        )
        rows = {row[0]: row[1:] for row in said.table().rows}
        assert rows["total"] == [said.peak, *(said.phases[phase] for phase in MOMENTS)]
        assert rows["loss"] == [said.parts["loss"], *(said.parts_at(phase)["loss"] for phase in MOMENTS)]
        assert "<table>" in said._repr_html_()
    assert budget.table() == trace.table()


@pytest.mark.parametrize(("field", "said"), [("model", "budget.model: 'gpt2'"), ("setup", "budget.setup: None")])
def test_what_is_no_model_or_no_setup_is_named(field, said):
    given = {"model": eb.model("gpt2"), "setup": eb.Setup()} | {field: "gpt2" if field == "model" else None}
    with pytest.raises(ValueError, match=said):
        eb.budget(**given)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("gpt2", r"^budget\.model: 'gpt2'; allowed: a Model .*; eb\.model\('gpt2'\)"),
        (dict, r"^budget\.model: a type; allowed: a Model .*; eb\.dry_run and eb\.derive take any model"),
    ],
)
def test_what_is_no_model_is_told_what_takes_it(model, said):
    with pytest.raises(ValueError, match=said):
        eb.budget(model, eb.Setup())


@pytest.mark.parametrize("attention", ["eager", "flash"])
def test_peaks_of_any_size_are_the_budget_s_own(attention):
    model = HUGE.replace(positions=2**27, learned_positions=2**27)
    setup = eb.Setup(attention=attention)
    batches, sequences = [1, 2, 2**24], [2, 2**17, 2**27]
    found, _ = peaks(model, setup, numpy.array(batches)[:, None], numpy.array(sequences))
    assert found.max() > 2**63
    for i, batch in enumerate(batches):
        for j, sequence in enumerate(sequences):
            assert found[i, j] == eb.budget(model, setup.replace(batch=batch, sequence=sequence)).peak


@pytest.mark.parametrize("batch", [1.7, "3", True, float("nan"), 2**70, -1, [1, 2.5], None])
def test_peaks_take_whole_numbers_alone(batch):
    with pytest.raises(ValueError, match=r"peaks\.batch|Setup\.batch"):
        peaks(MODEL, eb.Setup(), batch, [64])
    with pytest.raises(ValueError, match=r"peaks\.sequence|Setup\.sequence"):
        peaks(MODEL, eb.Setup(), [2], batch)


@pytest.mark.parametrize(("field", "given"), [("rounding", (eb.Setup(), [1], [2], 1.5)), ("setup", (None, [1], [2]))])
def test_peaks_refuse_by_name(field, given):
    with pytest.raises(ValueError, match=rf"peaks\.{field}"):
        peaks(MODEL, *given)


def test_ddp_s_buckets_are_rounded_one_by_one_wherever_a_step_is_read():
    """In the peak, in the timeline and over arrays; each bucket is a tensor of its own."""
    model, setup, _ = grid.everything(310)
    found = eb.budget(model, setup, 38)
    assert eb.dry_run(model, setup, 38).peak == found.peak == max(found.live)
    assert peaks(model, setup, [setup.batch], [setup.sequence], 38)[0].tolist() == [found.peak]
