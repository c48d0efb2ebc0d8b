"""Chapter 36's explorer says what the formulas say, and those what a ring takes."""

import pytest

import everybyte as eb
from everybyte import explore, units


@pytest.mark.parametrize("rotation", ["all-gather", "all-to-all"])
def test_it_says_what_a_ring_keeps_and_takes(rotation):
    mesh = eb.Mesh(context=32, rotation=rotation)
    setup = eb.Setup(batch=1, sequence=131_072, precision="bf16", gpus=32, mesh=mesh)
    model = eb.model("llama-3.1-8b", code="reference")
    said = explore.ring(setup=setup)
    text = said.describe(said.state)
    for name in ("kept", "backward"):
        assert units.text(int(eb.formula(f"context.{name}").at(model, setup))) in text


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"^ring\.size: '7B'"):
        explore.ring("7B")
    with pytest.raises(ValueError, match=r"^ring\.setup\.mesh\.context: 3"):
        explore.ring(setup=eb.Setup(sequence=6 * 1024, gpus=3, mesh=eb.Mesh(context=3)))


@pytest.mark.parametrize(("gpus", "group"), [(8, 8), (32, 32), (128, 32)])
def test_heads_are_swapped_in_groups_that_divide_them(gpus, group):
    def setup(parts):
        return eb.Setup(
            batch=1, sequence=131_072, precision="bf16", gpus=parts, mesh=eb.Mesh(context=parts, rotation="ulysses")
        )

    said = explore.ring(setup=setup(gpus))
    text = said.describe(said.state)
    kept = eb.formula("ulysses.kept").at(eb.model("llama-3.1-8b", code="reference"), setup(group))
    assert units.text(int(kept)) in text
