"""Published runs, in their makers' own model code: what the dry run says of that code, by hand; and that the table is whole."""

import pytest
import torch

import everybyte as eb
from everybyte.common.tables import Table
from everybyte.published import torchtitan as published

GIB = 2**30


@pytest.fixture
def small(monkeypatch):
    """A Llama of four heads and two of keys, in the catalog's place."""
    model = eb.model("llama-3.2-1b", code="reference").replace(
        name="small", layers=4, width=64, heads=4, kv_heads=2, head_width=16, ffn_width=96, vocabulary=512, tied=False
    )
    monkeypatch.setattr(published, "find_model", lambda name, code: model)
    return model


def saved(model, recompute, layers):
    """Bytes of activations that its forward leaves."""
    tokens, setup = ((2, 128), torch.int64), eb.Setup(batch=2, sequence=128, precision="bf16")
    published.find_model = lambda name, code: model.replace(layers=layers)
    made = published.llama("small", recompute, 128)
    return eb.dry_run(made, setup, batch={"tokens": tokens, "labels": tokens}).parts_at("after_forward")["activations"]


def test_its_weights_are_the_catalogs(small):
    module = published.llama("small", "nothing", 128)()
    assert sum(p.numel() for p in module.parameters()) == small.parameters


def test_recomputed_blocks_keep_their_input(small, monkeypatch):
    monkeypatch.setattr(published, "find_model", None)
    assert saved(small, "blocks", 4) - saved(small, "blocks", 3) == 2 * 128 * 2 * 64


def test_every_second_product_keeps_four_of_seven_and_attention(small, monkeypatch):
    """Of q, k, v, out, w1, w3, w2 the first, third, fifth and seventh; attention's output, its sums and its random state."""
    monkeypatch.setattr(published, "find_model", None)
    tokens, heads, keys = 2 * 128, 4 * 16, 2 * 16
    products = 2 * (heads + keys + 96 + 64)
    attention = 2 * heads + 4 * 4
    kept = saved(small, "every second product", 4) - saved(small, "every second product", 3)
    assert kept == tokens * (2 * 64 + products + attention) + 24


def test_each_run_has_its_row(monkeypatch):
    monkeypatch.setattr(published, "reserved", lambda run: (50 * GIB, 80 * GIB))
    table = published.table()
    assert isinstance(table, Table) and len(table.rows) == len(published.RUNS)
    assert table.rows[0][2:] == ["its own", "50.0", "80.0", "82.4", "-2.9%"]
    assert {run.table for run in published.RUNS} <= {1, 2, 3, 4, 5, 6} and published.SOURCE in repr(table)


def test_a_bad_way_to_recompute_is_named():
    with pytest.raises(ValueError, match="llama.recompute: 'half'"):
        published.llama("llama-3.1-8b", "half", 128)
