"""Chapter 36's explorer says what the formulas say, and those what a ring takes."""

import pytest

import everybyte as eb
from everybyte import explore, units


@pytest.mark.parametrize("rotation", ["all-gather", "all-to-all"])
def test_it_says_what_a_ring_keeps_and_takes(rotation):
    mesh = eb.Mesh(context=32, rotation=rotation)
    setup = eb.Setup(batch=1, sequence=131_072, precision="bf16", gpus=32, mesh=mesh)
    model = eb.model("llama-3.1-8b", code="reference")
    said = explore.ring().at(rotation=rotation, tokens="131,072", context="32 GPUs")
    text = said.describe(said.state)
    for name in ("kept", "backward"):
        assert units.text(int(eb.formula(f"context.{name}").at(model, setup))) in text


@pytest.mark.parametrize(("gpus", "group"), [(8, 8), (32, 32), (128, 32)])
def test_heads_are_swapped_in_groups_that_divide_them(gpus, group):
    mesh = eb.Mesh(context=group, rotation="ulysses")
    setup = eb.Setup(batch=1, sequence=131_072, precision="bf16", gpus=group, mesh=mesh)
    said = explore.ring().at(rotation="ulysses", tokens="131,072", context=f"{gpus} GPUs")
    text = said.describe(said.state)
    kept = eb.formula("ulysses.kept").at(eb.model("llama-3.1-8b", code="reference"), setup)
    assert units.text(int(kept)) in text
