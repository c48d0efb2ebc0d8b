"""The whole step of a Llama on one GPU: the ledger says what PyTorch counts, to the byte, at every operation."""

import sys

import grid
import numpy
import pytest

import everybyte as eb
from everybyte.budget import PEAKS, not_derived, peaks
from everybyte.fit import BLOCK, fit
from everybyte.formulas import formula
from everybyte.formulas.llama_ledger import LlamaKind, LlamaLedger
from everybyte.setup import ATTENTIONS, CHECKPOINTINGS, LOSSES, PRECISIONS

LLAMA = eb.Model(
    name="small llama", layers=3, width=40, heads=6, kv_heads=3, head_width=8, vocabulary=1009, learned_positions=0,
    ffn_width=56, gated=True, fused=False, tied=False, qkv_bias=False, out_bias=False, ffn_bias=False, norm="rmsnorm",
)  # fmt: skip
#: The catalog's, and one setup of each.
NAMED = {
    "llama-2-7b": {"precision": "bf16-mixed"},
    "llama-3-8b": {"precision": "bf16-master", "checkpointing": "full", "loss": "chunked"},
    "llama-3.2-1b": {"attention": "eager", "checkpointing": "selective"},
    "mistral-7b": {"precision": "bf16", "checkpointing": "every-k", "checkpoint_every": 5, "accumulation": 2},
    "qwen2.5-0.5b": {"precision": "fp16-mixed", "attention": "eager", "accumulation": 3},
    "gemma-2b": {"precision": "fp32"},
}


@pytest.mark.parametrize("start", range(0, 18, 6))
def test_any_llama_any_setup(start):
    """Odd sizes, grouped heads, trivial dimensions, padded heads, biases, and every way of saving: six at a time."""
    assert grid.disagreeing(grid.llama, range(start, start + 6)) == {}


@pytest.mark.parametrize("start", range(18, 36, 6))
def test_every_operation_of_any_llama_and_setup(start):
    found = {}
    for seed in range(start, start + 6):
        model, setup, block = grid.llama(seed)
        if wrong := grid.first_difference(model, setup.replace(loss="plain", loss_chunks=8), block):
            found[seed] = wrong
    assert found == {}


@pytest.mark.parametrize(
    "model",
    [
        LLAMA.replace(layers=1, heads=heads, kv_heads=kv_heads, head_width=width)
        for heads, kv_heads, width in ((1, 1, 2), (1, 1, 4), (2, 2, 2), (2, 1, 2), (3, 3, 12), (3, 1, 12))
    ],
    ids=lambda m: f"{m.heads} heads, {m.kv_heads} with keys, {m.head_width} wide",
)
@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (1, 3), (2, 3)], ids=str)
def test_where_copies_are_made_and_where_not(model, shape):
    setups = [eb.Setup(batch=shape[0], sequence=shape[1], attention="eager", optimizer="sgd")]
    setups += [setups[0].replace(attention="flash", precision="bf16")]
    assert [grid.first_difference(model, setup) for setup in setups] == [None, None]


@pytest.mark.parametrize("name", NAMED)
def test_the_catalogs_llamas(name):
    setup = eb.Setup(batch=1, sequence=1000, **NAMED[name])
    compared = grid.disagreements if setup.loss == "chunked" else grid.first_difference
    assert not compared(eb.model(name), setup)


def test_the_random_llamas_are_not_all_alike():
    drawn = [grid.llama(seed) for seed in range(160)]
    assert all(not m.unlike_llama() and not not_derived(m, s) for m, s, _ in drawn)
    assert {(m.tied, m.qkv_bias, m.heads > m.kv_heads > 1, m.kv_heads > 1) for m, *_ in drawn} >= {
        (t, b, g, True) for t in (True, False) for b in (True, False) for g in (True, False)
    }
    assert {(s.precision, s.attention) for _, s, _ in drawn} == {(p, a) for p in PRECISIONS for a in ATTENTIONS}
    assert {(s.checkpointing, s.accumulation > 1, s.loss) for _, s, _ in drawn} == {
        (c, a, x) for c in CHECKPOINTINGS for a in (True, False) for x in LOSSES
    }
    grouped_in_fp32 = [s for m, s, _ in drawn if m.heads > m.kv_heads and s.precision == "fp32"]
    assert {s.attention for s in grouped_in_fp32} == set(ATTENTIONS)
    assert len({eb.budget(m, s).peak_at for m, s, _ in drawn}) >= 3


@pytest.mark.parametrize("forgotten", ["silu", "sines"])
def test_a_changed_ledger_is_noticed(monkeypatch, forgotten):
    class Forgetful(LlamaLedger):
        """Does not know one tensor."""

        def _op(self, name, *taken, gone=(), **rest):
            kept = [g for g in gone if forgotten not in (g, g[0])]
            super()._op(name, *(t for t in taken if t[0] != forgotten), gone=kept, **rest)

    monkeypatch.setattr(LlamaKind, "ledger", property(lambda self: Forgetful))
    budget = sys.modules["everybyte.budget"]
    monkeypatch.setattr(budget, "_ledger_program", budget._ledger_program.__wrapped__)
    setup = eb.Setup(batch=2, sequence=16)
    found = grid.disagreements(LLAMA, setup)
    after = eb.dry_run(LLAMA, setup).parts_at("after_forward")["activations"]
    missing = {"silu": 3 * 32 * 56 * 4, "sines": 16 * 4 * 4}[forgotten]
    assert f"activations after_forward, block 1: {after - missing} predicted, {after} counted" in found


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_block_keeps_what_its_named_formula_says(precision):
    model = LLAMA.replace(kv_heads=6) if precision == "fp32" else LLAMA
    setup = eb.Setup(batch=3, sequence=31, precision=precision)
    more, fewer = (eb.budget(model.replace(layers=n), setup).parts_at("after_forward") for n in (3, 2))
    assert more["activations"] - fewer["activations"] == formula("activations.llama").at(model, setup)


def test_llama_2_7b_at_batch_1_by_hand():
    """In bf16 with fp32 master weights: the peak is in the optimizer's step, where all 16-bit gradients stand in fp32 too."""
    model, setup = eb.model("llama-2-7b"), eb.Setup(batch=1, sequence=1024, precision="bf16-master")
    budget = eb.budget(model, setup)
    assert budget.peak_at == "optimizer step"
    assert budget.peak == (2 + 2 + 12 + 4 + 4) * 6_738_415_616 + 2 * 8 * 1024 + 2


def test_a_step_that_is_not_derived_is_said():
    shared, dropped = eb.Setup(gpus=8, sharding="zero3"), eb.Setup(dropout=0.1)
    assert "Model.gated" in not_derived(LLAMA, shared)
    with pytest.raises(ValueError, match="Model.gated: True of small llama"):
        eb.budget(LLAMA, shared)
    budget = eb.budget(LLAMA, dropped)
    assert budget.peak is None and list(budget.phases) == ["rest", "after_step"]
    assert budget.parts_at("rest") == eb.budget(LLAMA, eb.Setup()).parts_at("rest")
    with pytest.raises(ValueError, match="Setup.dropout: 0.1 with small llama, a Llama; allowed: 0.0"):
        budget.timeline()


def test_eager_attention_keeps_no_masks_between_steps():
    model, setup = LLAMA.replace(positions=64, learned_positions=0), eb.Setup(batch=1, sequence=8, attention="eager")
    assert eb.budget(model, setup).parts_at("rest") == {
        part: size for part, size in eb.dry_run(model, setup).parts_at("rest").items()
        if part in ("parameters", "buffers", "optimizer", "gradients")
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_peaks_over_arrays_are_the_budgets(seed):
    model, setup, block = grid.llama(seed)
    setup = setup.replace(loss="plain", loss_chunks=8)
    batch, sequence = numpy.array([1, 2, 9, 4000]), numpy.array([[1], [7], [33]])
    peak, peak_at = peaks(model, setup, batch, sequence, block)
    for (i, j), found in numpy.ndenumerate(peak):
        one = eb.budget(model, setup.replace(batch=int(batch[j]), sequence=int(sequence[i, 0])), block)
        assert (found, PEAKS[peak_at[i, j]]) == (one.peak, one.peak_at)


def test_what_fits_is_what_the_dry_run_says():
    setup = eb.Setup(sequence=512, precision="bf16-mixed", checkpointing="full")
    found = fit(eb.model("llama-3.2-1b"), setup, "rtx-5090")
    peaks_of = [eb.dry_run(found.model, setup.replace(batch=found.value + more), block=BLOCK).peak for more in (0, 1)]
    assert found.value and peaks_of[0] == found.peak <= found.usable < peaks_of[1]
    too_large = fit(eb.model("llama-3-70b"), eb.Setup(), "h200")
    assert not too_large.fits and too_large.nearest_setup is None and "no single GPU" in repr(too_large)
