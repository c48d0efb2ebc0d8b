"""The whole step: the ledger says what PyTorch counts, to the byte, at every moment and at the peak."""

import sys
from functools import cache

import grid
import numpy
import pytest

import everybyte as eb
from everybyte.formulas import formula
from everybyte.formulas.ledger import Ledger
from everybyte.formulas.registry import bindings, compile_expressions
from everybyte.formulas.sharding import Kind
from everybyte.formulas.step import instants
from everybyte.setup import ATTENTIONS, CHECKPOINTINGS, LOSSES, PRECISIONS


@pytest.mark.parametrize("start", range(0, 160, 40))
def test_any_model_any_setup(start):
    """Odd sizes, trivial dimensions, padded heads, missing biases: forty at a time."""
    assert grid.disagreeing(grid.anything, range(start, start + 40)) == {}


@pytest.mark.parametrize("start", range(0, 90, 30))
def test_any_way_of_saving(start):
    """The same with checkpointing, accumulation and the chunked loss, together."""
    assert grid.disagreeing(grid.saving, range(start, start + 30)) == {}


@pytest.mark.parametrize("name", grid.GPT2_SIZES)
@pytest.mark.parametrize("checkpointing", CHECKPOINTINGS[1:])
def test_the_gpt2_sizes_checkpointed(name, checkpointing):
    turn = grid.GPT2_SIZES.index(name) + CHECKPOINTINGS.index(checkpointing)
    precision, attention = list(PRECISIONS)[turn % 5], ATTENTIONS[turn % 2]
    setup = eb.Setup(
        batch=3, sequence=1000, precision=precision, attention=attention, checkpointing=checkpointing,
        checkpoint_every=5 if checkpointing == "every-k" else 2, accumulation=1 + turn % 2,
    )  # fmt: skip
    assert grid.disagreements(eb.model(name), setup) == []


def test_the_random_models_are_not_all_alike():
    drawn = [grid.anything(seed) for seed in range(160)]
    assert len({m.head_width % 8 for m, _, _ in drawn}) > 1
    assert {s.precision for _, s, _ in drawn} == set(PRECISIONS)
    assert {(m.tied, s.attention, s.dropout > 0) for m, s, _ in drawn} == {
        (t, a, d) for t in (True, False) for a in ATTENTIONS for d in (True, False)
    }
    assert len({eb.budget(m, s).peak_at for m, s, _ in drawn}) >= 3
    saved = [grid.saving(seed) for seed in range(160)]
    assert {(s.checkpointing, s.accumulation > 1, s.loss) for _, s, _ in saved} == {
        (c, a, x) for c in CHECKPOINTINGS for a in (True, False) for x in LOSSES
    }
    assert any(m.layers % s.checkpoint_every for m, s, _ in saved if s.checkpointing == "every-k")


@pytest.mark.parametrize("name", grid.GPT2_SIZES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_gpt2_sizes(name, precision):
    eager = (grid.GPT2_SIZES.index(name) + list(PRECISIONS).index(precision)) % 2
    attention, dropout = ("eager", 0.1) if eager else ("flash", 0.0)
    setup = eb.Setup(batch=3, sequence=1000, precision=precision, attention=attention, dropout=dropout)
    assert grid.disagreements(eb.model(name), setup) == []


def test_a_changed_ledger_is_noticed(monkeypatch):
    class Forgetful(Ledger):
        """Does not know that the GELU's output is kept."""

        def _op(self, name, *taken, gone=(), **rest):
            super()._op(name, *(t for t in taken if t[0] != "gelu"), gone=[g for g in gone if g != "gelu"], **rest)

    monkeypatch.setattr(Kind, "ledger", property(lambda self: Forgetful))
    budget = sys.modules["everybyte.budget"]
    monkeypatch.setattr(budget, "_ledger_program", budget._ledger_program.__wrapped__)
    found = grid.disagreements(eb.model("gpt2"), eb.Setup(batch=1, sequence=64))
    missing = 12 * 64 * 4 * 768 * 4
    after = formula("activations").at(eb.model("gpt2"), eb.Setup(batch=1, sequence=64))
    assert f"activations after_forward, block 1: {after - missing} predicted, {after} counted" in found


@pytest.mark.parametrize("drawn", [grid.anything, grid.saving])
@pytest.mark.parametrize("seed", range(12))
def test_the_named_formulas_are_the_ledgers(seed, drawn):
    model, setup, _ = drawn(seed)
    budget = eb.budget(model, setup)
    for moment in ("rest", "after_forward", "after_backward", "step", "after_step"):
        assert formula(f"phase.{moment}").at(model, setup) == budget.phases[moment]
    after = budget.parts_at("after_forward")
    for part in ("activations", "casts", "loss"):
        assert formula(part).at(model, setup) == after[part]


@cache
def all_totals():
    return compile_expressions(instant.total for instant in instants())


@pytest.mark.parametrize("seed", range(12))
def test_the_peak_is_the_largest_instant(seed):
    model, setup, _ = grid.anything(seed)
    model = model.replace(layers=max(2, model.layers))
    totals = list(zip(all_totals()(model, setup, 1), (instant.moment for instant in instants()), strict=True))
    budget = eb.budget(model, setup)
    assert max(total for total, _ in totals) == budget.peak
    assert next(moment for total, moment in totals if total == budget.peak) == budget.peak_at


def test_gpt2_at_batch_8_by_hand():
    """DESIGN's worked numbers: 16 BSH numbers a block, and three logits-sized tensors at the peak."""
    model, setup = eb.model("gpt2"), eb.Setup(batch=8, sequence=1024)
    logits = 8 * 1024 * 50257 * 4
    assert (
        formula("activations.block").at(model, setup) == 4 * (16 * 8 * 1024 * 768 + 4 * 8 * 1024 + 8 * 12 * 1024) + 16
    )
    budget = eb.budget(model, setup)
    assert budget.peak_at == "loss backward"
    assert budget.parts["loss"] == 3 * logits + 8 * 8 * 1024 + 4 + 4
    assert budget.parts["gradients"] == 0


@pytest.mark.parametrize("name", ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"])
def test_autocast_with_eager_attention_takes_more_than_fp32_from_medium_on(name):
    peaks = {
        p: eb.budget(eb.model(name), eb.Setup(precision=p, attention="eager")).peak for p in ("fp32", "bf16-mixed")
    }
    assert (peaks["bf16-mixed"] > peaks["fp32"]) == (name != "gpt2")


def test_arrays_say_what_numbers_say():
    model, f = eb.model("gpt2"), formula("instant.nll_backward")
    batches = numpy.arange(1, 9)
    values = bindings(model, eb.Setup(), f.symbols) | {"batch": batches}
    assert list(f.arrays(**values)) == [f.at(model, eb.Setup(batch=int(b))) for b in batches]


def test_a_model_without_a_ledger_has_its_states_alone():
    budget = eb.budget(eb.model("mixtral-8x7b"), eb.Setup(precision="bf16-master"))
    assert budget.peak is None and budget.parts == {} and "peak" not in budget.as_dict()
    assert budget.phases["rest"] == 14 * 46_702_792_704
