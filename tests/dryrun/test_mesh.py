"""A device mesh on meta: any shape, seen from any rank, one after another in one process; what DTensor allocates is counted once."""

from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from everybyte.dryrun.mesh import on_meta
from everybyte.dryrun.tracker import Tracker

NAMES = ("pipeline", "data", "context", "tensor")


@contextmanager
def mesh_of(shape, rank, tracker):
    size = 1
    for dimension in shape:
        size *= dimension
    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        with on_meta(tracker), tracker:
            yield init_device_mesh("meta", shape, mesh_dim_names=NAMES[-len(shape) :])
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("shape", "rank", "place"), [((2, 3, 1, 4), 0, [0, 0, 0, 0]), ((2, 3, 1, 4), 23, [1, 2, 0, 3]), ((8,), 5, [5])]
)
def test_every_rank_has_its_place(shape, rank, place):
    with mesh_of(shape, rank, Tracker()) as mesh:
        assert list(mesh.get_coordinate()) == place
        assert mesh["tensor"].get_local_rank() == place[-1]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("parts", [2, 4])
def test_a_gather_takes_what_arrives_and_where_tokens_are_not_outermost_a_copy(batch, parts):
    """Twice in one process: what the first left in DTensor's caches must not be found."""
    tracker = Tracker()
    with mesh_of((parts,), 1, tracker) as mesh:
        local = torch.empty(batch, 8 // parts, 5, device="meta")
        tracker.restart()
        x = DTensor.from_local(local, mesh, [Shard(1)], run_check=False)
        whole = x.redistribute(placements=[Replicate()]).to_local()
        assert whole.shape == (batch, 8, 5)
        taken = [a.bytes for a in tracker.allocations if a.birth]
        assert taken == [4 * batch * 8 * 5] * (1 if batch == 1 else 2)
        assert sum(a.bytes for a in tracker.allocations if a.birth and a.death is None) == 4 * batch * 8 * 5
