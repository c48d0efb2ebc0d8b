"""A data set's lengths in PyTorch's own allocator: step by step it reserves what is played."""

import json
from pathlib import Path
from random import Random

import pytest

import everybyte as eb
from everybyte.rehearsal import rehearse_script

pytestmark = pytest.mark.usefixtures("flash")
SCRIPT = Path(__file__).with_name("scripts") / "lengths.py"
MODEL = eb.model("llama-3.2-1b").replace(layers=2, vocabulary=32_000, name="two layers")


def test_an_epoch_reserves_what_is_played(here, tmp_path, capfd):
    """The most reserved in each step, and at its end. Of the small blocks 2 MiB more or less: kernels' own, which are no requests of it."""
    draw = Random(3)
    lengths = [min(2048, int(draw.lognormvariate(5.8, 0.8)) + 16) for _ in range(4 * 24)]
    setup = eb.Setup(batch=4, sequence=2048, precision="bf16")
    played = eb.epoch(MODEL, setup, lengths, order="given", gpu="h200")
    sizes = {
        "hidden_size": MODEL.width, "intermediate_size": MODEL.ffn_width, "num_hidden_layers": MODEL.layers, "head_dim": MODEL.head_width,
        "num_attention_heads": MODEL.heads, "num_key_value_heads": MODEL.kv_heads, "vocab_size": MODEL.vocabulary,
        "tie_word_embeddings": MODEL.tied, "max_position_embeddings": MODEL.positions,
    }  # fmt: skip
    (tmp_path / "sizes").write_text(json.dumps(sizes))
    (tmp_path / "batches").write_text(json.dumps([[b.batch, b.sequence] for (b,) in played.steps]))
    words = ["python", str(SCRIPT), str(tmp_path / "sizes"), str(tmp_path / "batches")]
    rehearse_script(words, "h200", steps=0)
    rows = [
        [int(word) for word in line.split()[1:]]
        for line in capfd.readouterr().out.splitlines()
        if line.startswith("step")
    ]
    reserved, requested, kept = zip(*rows, strict=True)
    assert list(requested) == played.played.requested
    assert (
        len(rows) == 24 and max(abs(a - b) for a, b in zip(reserved, played.played.reserved, strict=True)) <= 2 * 2**20
    )
    assert max(abs(a - b) for a, b in zip(kept, played.played.kept, strict=True)) <= 2 * 2**20
