"""The list of weights is that of the reference modules: names, shapes, order; and it counts what they hold."""

import pytest
import torch

import everybyte as eb
from everybyte.catalog import models
from everybyte.catalog.weights import layers, weights
from everybyte.reference import FAMILIES

BUILT = {name: model for name, model in models("reference").items() if model.family}


def listed(model):
    """(path, shape) of each weight tensor of a model whose layers are alike."""
    times = layers(model)
    groups = {group: [w for w in weights(model) if w.group == group and w.count and times[group]] for group in times}
    block = [w for group in ("block", "dense", "mixture") for w in groups[group]]
    found = [(w.name, tuple(w.shape)) for w in groups["embeddings"]]
    found += [(f"blocks.{i}.{w.name}", tuple(w.shape)) for i in range(model.layers) for w in block]
    return found + [(w.name, tuple(w.shape)) for w in groups["last"]]


def built(model):
    with torch.device("meta"):
        return FAMILIES[model.family](model, eb.Setup(batch=1, sequence=8, precision="bf16"))


@pytest.mark.parametrize("name", BUILT)
def test_names_shapes_and_order_are_the_modules(name):
    model = BUILT[name].replace(layers=2)
    module = built(model)
    assert listed(model) == [(path, tuple(p.shape)) for path, p in module.named_parameters()]
    assert model.parameters == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("field", ["tied", "qkv_bias", "out_bias", "ffn_bias", "norm_bias", "fused"])
def test_each_switch_adds_or_takes_what_the_module_has(field):
    model = eb.model("gpt2").replace(layers=1)
    for value in (True, False):
        changed = model.replace(**{field: value})
        assert listed(changed) == [(path, tuple(p.shape)) for path, p in built(changed).named_parameters()]


def test_a_flag_counts_as_a_number():
    """A letter times True would lose its letter."""
    assert {type(w.count) for w in weights(eb.model("gpt2"))} == {int}


def test_experts_have_their_biases():
    model = eb.model("gpt-oss-20b")
    biases = {w.name: w.shape for w in weights(model) if w.group == "mixture" and w.name.endswith("_bias")}
    assert biases == {"mlp.gate_up_bias": (32, 2 * 2880), "mlp.down_bias": (32, 2880)}
    assert model.parameters == model.published
