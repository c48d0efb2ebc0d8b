"""Chapter 33's explorer says what the formula says, and the formula what a step keeps."""

import pytest

import everybyte as eb
from everybyte import explore, units


@pytest.mark.parametrize("sequence", [True, False])
def test_it_says_what_a_block_keeps(sequence):
    mesh = eb.Mesh(tensor=8, sequence_parallel=sequence)
    setup = eb.Setup(batch=1, sequence=2048, precision="bf16", dropout=0.1, gpus=8, mesh=mesh)
    width, heads = 6144, 64
    model = eb.Model(layers=2, width=width, heads=heads, vocabulary=51200, positions=2048)
    kept = [eb.budget(model.replace(layers=n), setup).parts_at("after_forward")["activations"] for n in (2, 3)]
    explorer = explore.tensor().at(plan="sequence parallel" if sequence else "tensor parallel alone")
    assert f"{units.text(kept[1] - kept[0])} in all" in explorer.describe(explorer.state)
    assert kept[1] - kept[0] == eb.formula("tensor.block").at(model, setup)
