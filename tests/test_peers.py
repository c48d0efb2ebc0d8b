"""What the README says of other estimators is what `tools/peers.py` computes, and what is kept of them is that too."""

import json
from pathlib import Path

import peers
import pytest

from everybyte import model
from everybyte.published import harvest

README = Path(__file__).resolve().parents[1] / "README.md"
GIB = 2**30


def test_the_readme_has_the_tables():
    pytest.importorskip("accelerate")
    text = README.read_text(encoding="utf-8")
    assert all(table() in text for table in (peers.table, peers.measured, peers.simulated))


def test_the_estimates_are_kept():
    pytest.importorskip("accelerate")
    kept = [json.loads(line) for line in peers.STORE.read_text(encoding="utf-8").splitlines()]
    assert kept == peers.estimates()


def test_the_books_formula_is_within_a_percent_of_every_run_and_the_rule_of_thumb_is_not():
    pytest.importorskip("accelerate")
    off = peers.errors()
    assert max(off["this book's formula"]) < 0.01
    assert min(off["16 bytes a parameter"]) > 0.01


def test_an_estimator_says_nothing_of_what_it_does_not_know():
    flash = peers.Asked(model("gpt2"), 8, 1024)
    eager, many = peers.Asked(model("gpt2"), 8, 1024, flash=False), peers.Asked(model("gpt2"), 8, 1024, zero=3, data=8)
    assert (
        peers.cookbook(flash) is peers.ultrascale(flash) is None
        and peers.cookbook(eager) > 16 * model("gpt2").parameters
    )
    assert peers.gpu_poor(eager) is peers.fm_estimator(eager) is peers.megatron(eager) is peers.deepspeed(eager) is None
    assert peers.accelerate(many) is None and peers.deepspeed(many) < peers.sixteen(eager)


def test_a_record_s_run_is_read_as_its_script_reads_it():
    """8 of 64 GPUs share a matrix, so FSDP shares over the other 8; the vocabulary is padded to 128 for each GPU of a matrix."""
    asked = dict(peers.asked())
    titan, gpt = asked["titan-qwen3-32b-32-fsdp-8-tensor-8"], asked["megatron-7b-tensor-4-h100"]
    assert (titan.data, titan.tensor, titan.batch, titan.sequence, titan.recompute, titan.states) == (
        8,
        8,
        32,
        4096,
        "full",
        "mixed",
    )
    assert (gpt.model.vocabulary, gpt.zero, gpt.data, gpt.model.kv_heads, gpt.flash) == (131_584, 1, 2, 8, True)
    assert not [id for id in asked if "compiled" in id or "pp" in id or harvest.corpus()[id].quantity == "states"]
    assert peers.sixteen(titan) == pytest.approx(16 * titan.model.parameters / 64)
