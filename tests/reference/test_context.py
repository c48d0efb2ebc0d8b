"""Two and four processes that share every sequence train as one does on the whole."""

from pathlib import Path

import pytest
import torch
from processes import loaded, together

import everybyte as eb
from everybyte.reference.llama import turns

SCRIPT = Path(__file__).with_name("rings.py")
rings = loaded(SCRIPT)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("gpus", [2, 4])
def test_processes_that_share_sequences_train_as_one_on_the_whole(gpus):
    seen = together(SCRIPT, gpus)
    for name, (model, setup) in rings.setups(gpus).items():
        expected = rings.alone(model, setup)
        mean = [sum(losses) / gpus for losses in zip(*(rank[name] for rank in seen), strict=True)]
        assert mean == pytest.approx(expected, rel=3e-6), name  # sums in another order, in fp32
        assert len({rank[name][0] for rank in seen}) == gpus // setup.mesh.tensor, name  # each on tokens of its own
        assert abs(expected[-1] - expected[0]) > 1e-3


def test_positions_turn_as_where_they_are_counted():
    here = turns(4, 8, "cpu", torch.tensor([0, 1, 6, 7]))
    assert all(torch.equal(a, b[[0, 1, 6, 7]]) for a, b in zip(here, turns(8, 8, "cpu"), strict=True))


def test_a_ring_is_only_for_sequences_that_make_two_equal_pieces_a_gpu():
    for sequence, near in ((1000, "992 or 1008"), (3, "16")):
        with pytest.raises(ValueError, match=f"{sequence % 16} tokens are left; allowed: a multiple of 16, as {near}"):
            eb.Setup(sequence=sequence, gpus=8, mesh=eb.Mesh(context=8))
