"""Quantized tensors and what linear layers save: the formulas against torchao's and Transformer Engine's own code, 0 bytes apart."""

import json
from pathlib import Path

import pytest
import ran
import torch

from everybyte.dryrun import quantized, saving
from everybyte.formulas.quantized import RECIPES, saved
from everybyte.formulas.quantized import quantized as formula

RECORD = Path(__file__).resolve().parents[2] / "labs/rehearsals/transformer_engine.jsonl"
ENGINE = [json.loads(line) for line in RECORD.read_text("utf-8").splitlines()]
FORMS = {
    "1 by 128": "FP8, 1 by 128, multiples of 4",
    "128 by 128": "FP8, 128 by 128, multiples of 4",
    "MXFP8": "MXFP8, tiled",
    "NVFP4": "NVFP4, tiled",
}
TORCHAO = {"tensorwise": "torchao fp8, compiled", "rowwise": "torchao fp8 by rows, compiled"}


@pytest.mark.parametrize("shape", [(4096, 4096), (160, 96), (1, 32), (129, 4128), (7168, 18432)])
def test_a_tensor_is_torchaos(shape):
    pytest.importorskip("torchao")
    for form, size in quantized.stored(*shape).items():
        assert formula(form, *shape) == size, form


@pytest.mark.parametrize(
    "line", ENGINE, ids=lambda line: f"{line['form']}{line['gpu']} {line['shape']} {line['rows']:d}"
)
def test_a_tensor_is_transformer_engines(line):
    rows, columns = line["shape"]
    if line["form"] == "tensor":
        copies = 1 if line["gpu"] == "blackwell" else line["rows"] + line["columns"]
        found = formula("FP8, a scale a tensor", rows, columns) + (copies - 1) * formula("FP8", rows, columns)
    else:
        form = FORMS[line["form"]]
        found = line["rows"] * formula(form, rows, columns) + line["columns"] * formula(form, columns, rows)
    assert found == line["bytes"]


@pytest.mark.parametrize("recipe", quantized.RECIPES)
def test_a_layer_saves_16_bits_as_written_and_8_compiled(recipe):
    pytest.importorskip("torchao")
    tokens, inputs, outputs = 192, 320, 256

    def beside(found):
        return [one.bytes for one in found if one.made != "parameter"]

    x = torch.empty(tokens, inputs, dtype=torch.bfloat16, device="meta", requires_grad=True)
    eager = beside(saving.eager(quantized.linear(recipe, inputs, outputs, "meta"), x))
    assert eager == [2 * tokens * inputs] == [saved("torchao fp8, eager", tokens, inputs, outputs)["input"]]
    x = torch.empty(tokens, inputs, dtype=torch.bfloat16, requires_grad=True)
    cut, _ = saving.compiled(lambda: quantized.linear(recipe, inputs, outputs), x)
    of_weight = {"tensorwise": 2 + 4}.get(recipe, 0)  # the largest weight and its scale
    assert sum(beside(cut)) - of_weight == saved(TORCHAO.get(recipe, "bf16"), tokens, inputs, outputs)["input"]


def rehearsed(gpu, name):
    return ran.scripts(f"rehearsals/scripts/{gpu}")[f"linear {name}"]["printed"]["FOUND"]


@pytest.mark.parametrize(
    ("gpu", "name", "recipe", "scalars"),
    [
        ("h200", "bf16", "bf16", 0),
        ("h200", "tensorwise", "torchao fp8, eager", 0),
        ("h200", "blockwise", "torchao fp8, eager", 0),
        ("h200", "tensorwise compile", "torchao fp8, compiled", 6),
        ("h200", "rowwise compile", "torchao fp8 by rows, compiled", 0),
        ("b200", "mxfp8", "torchao MXFP8, eager", 0),
        ("b200", "nvfp4", "torchao NVFP4", 8),  # its seed
    ],
)
def test_a_rehearsed_layer_saves_as_much(gpu, name, recipe, scalars):
    kept = rehearsed(gpu, name)["saved"]
    found = sum(size for known, *_, size in kept if known != "weight")
    assert found == sum(saved(recipe, 8192, 4096, 14336).values()) + scalars


def test_fsdp_gathers_a_byte_a_weight_in_8_bits():
    found = [rehearsed("h200", name)["gathered"] for name in ("gather", "gather8")]
    assert found == [2 * 4096 * 14336, 4096 * 14336]


def test_what_is_no_form_or_recipe_is_named():
    with pytest.raises(ValueError, match=r"^quantized\.form: 'fp8' is unknown; did you mean 'FP8'"):
        formula("fp8", 1, 1)
    with pytest.raises(ValueError, match=r"^quantized\.columns: 33 is odd"):
        formula("NVFP4", 2, 33)
    with pytest.raises(ValueError, match=r"^saved\.recipe: 'fp8' is unknown"):
        saved("fp8", 1, 1, 1)
    assert set(TORCHAO.values()) < set(RECIPES)
