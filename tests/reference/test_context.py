"""Two and four processes that share every sequence train as one does on the whole."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import everybyte as eb
from everybyte.reference.llama import turns
from everybyte.reference.mesh.context import turns_at

SCRIPT = Path(__file__).with_name("rings.py")
_spec = importlib.util.spec_from_file_location("rings", SCRIPT)
rings = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(rings)


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """GPUs -> what each of so many processes saw, by the name of its setup."""
    found = {}

    def of(gpus):
        if gpus not in found:
            folder = tmp_path_factory.mktemp(f"rings{gpus}")
            command = [sys.executable, str(SCRIPT), str(folder)]
            there = [
                subprocess.Popen([*command, str(rank), str(gpus)], stderr=subprocess.PIPE, text=True)
                for rank in range(gpus)
            ]
            try:
                errors = [process.communicate(timeout=600)[1] for process in there]
            finally:
                for process in there:
                    process.kill()
                    process.wait()
            assert [process.returncode for process in there] == [0] * gpus, errors
            found[gpus] = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(gpus)]
        return found[gpus]

    return of


@pytest.mark.parametrize("gpus", [2, 4])
def test_processes_that_share_sequences_train_as_one_on_the_whole(seen, gpus):
    for name, (model, setup) in rings.setups(gpus).items():
        expected = rings.alone(model, setup)
        together = [sum(losses) / gpus for losses in zip(*(rank[name] for rank in seen(gpus)), strict=True)]
        assert together == pytest.approx(expected, rel=3e-6), name  # sums in another order, in fp32
        assert len({rank[name][0] for rank in seen(gpus)}) == gpus, name  # each on tokens of its own
        assert abs(expected[-1] - expected[0]) > 1e-3


def test_positions_turn_as_where_they_are_counted():
    here = turns_at(torch.tensor([0, 1, 6, 7]), 8)
    assert all(torch.equal(a, b[[0, 1, 6, 7]]) for a, b in zip(here, turns(8, 8, "cpu"), strict=True))


def test_a_ring_is_only_for_sequences_that_make_two_equal_pieces_a_gpu():
    for sequence, near in ((1000, "992 or 1008"), (3, "16")):
        with pytest.raises(ValueError, match=f"{sequence % 16} tokens are left; allowed: a multiple of 16, as {near}"):
            eb.Setup(sequence=sequence, gpus=8, mesh=eb.Mesh(context=8))
