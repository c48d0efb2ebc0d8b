"""Collectives as on CUDA: what is sent lives until somebody waits for what comes; and what the ring's kernel copies is counted."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as collectives
from torch.testing._internal.distributed.fake_pg import FakeStore

import everybyte as eb
from everybyte.dryrun.mesh import in_flight, on_meta
from everybyte.dryrun.tracker import Tracker

MODEL = eb.Model(name="small", layers=2, width=32, heads=4, vocabulary=101, positions=64)


def _live(tracker):
    return sum(a.bytes for a in tracker.allocations if a.death is None)


@pytest.mark.parametrize(
    ("send", "parts"),
    [
        (lambda x: collectives.all_gather_single(x, 0, dist.group.WORLD), 4),
        (lambda x: collectives.permute_tensor(x, [1, 2, 3, 0], dist.group.WORLD), 1),
        (lambda x: collectives.all_to_all_single_autograd(x, [2] * 4, [2] * 4, dist.group.WORLD), 1),
    ],
)
def test_what_is_sent_lives_until_what_comes_is_waited_for(send, parts):
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    tracker = Tracker()
    try:
        with on_meta(tracker), in_flight(), tracker:
            given = torch.empty(8, device="meta")
            made = send(given)
            del given
            assert _live(tracker) == 32 + 32 * parts
            made = made.wait()
            assert _live(tracker) == 32 * parts and made.shape == (8 * parts,)
            del made
            assert _live(tracker) == 0
    finally:
        dist.destroy_process_group()


def test_gpus_of_a_ring_differ_by_what_of_the_sequence_they_have():
    setup = eb.Setup(batch=2, sequence=64, precision="bf16", gpus=4, mesh=eb.Mesh(context=4))
    peaks = [max(eb.dry_run(MODEL, setup, rank=rank).live) for rank in range(4)]
    kept = [eb.dry_run(MODEL, setup, rank=rank).phases["after_forward"] for rank in range(4)]
    assert len(set(peaks)) > 1
    assert kept[:3] == [kept[0]] * 3 and kept[3] < kept[0]  # the last one's results lie token by token


def test_the_rotation_is_the_mesh_s_own_whatever_ran_before():
    setup = eb.Setup(batch=2, sequence=64, precision="bf16", gpus=4, mesh=eb.Mesh(context=4, rotation="all-to-all"))
    gathered = setup.replace(mesh=eb.Mesh(context=4))

    def names(setup):
        return {name for name, phase, _ in eb.dry_run(MODEL, setup).operations if phase == "forward"}

    for _ in range(2):
        assert "all_gather_into_tensor" in names(gathered) and "all_to_all_single" not in names(gathered)
        assert "all_to_all_single" in names(setup) and "all_gather_into_tensor" not in names(setup)
