"""Generating by PyTorch's CUDA code: what each pass asks for is the theory's peak and cuBLAS's workspace, 0 bytes else."""

import json
from pathlib import Path

import pytest

import everybyte as eb
from everybyte.rehearsal import rehearse_script
from everybyte.theory import inference

pytestmark = pytest.mark.usefixtures("flash")

SCRIPT = Path(__file__).parent / "scripts" / "generate.py"
GPT2 = eb.model("gpt2").replace(layers=3)
LLAMA = eb.model("llama-3.1-8b", code="reference").replace(
    layers=3, width=1024, heads=8, kv_heads=2, ffn_width=2816, vocabulary=32_000
)
SILU = {
    "hidden_size": "width", "intermediate_size": "ffn_width", "num_hidden_layers": "layers", "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads", "vocab_size": "vocabulary", "max_position_embeddings": "positions",
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "kind, model, fields",
    [
        ("gpt2", GPT2, {"n_layer": "layers"}),
        ("llama", LLAMA, SILU),
    ],
)
@pytest.mark.parametrize("batch, prompt, room", [(2, 900, 0), (1, 33, 0), (2, 300, 320), (1, 33, 39)])
def test_each_pass_asks_for_what_the_theory_says(here, tmp_path, kind, model, fields, batch, prompt, room):
    words = [f"{name}={getattr(model, field)}" for name, field in fields.items()]
    words += ["tie_word_embeddings=false"] * (not model.tied)
    found = rehearse_script(
        ["python", str(SCRIPT), str(tmp_path / "said.json"), kind, str(batch), str(prompt), "3", str(room), *words],
        "h200",
        steps=0,
        quiet=True,
    )
    assert found.status == 0
    workspace, said = eb.gpu("h200").cublas_workspace, json.loads((tmp_path / "said.json").read_text())
    for step, requested in enumerate(said):
        values = inference.letters(model, batch, 1 if step else prompt, prompt + step - 1 if step else 0, None, room)
        peak = inference.course(model, values).at(values).budget().peak
        assert requested == peak + workspace, (step, requested - peak)
    assert len(said) == 4
