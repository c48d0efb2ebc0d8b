"""PyTorch's own MemTracker over the same training step: the tests hold ours against it, the benchmark races it."""

from unittest import mock

import torch
import torch.distributed as dist
from torch._subclasses import FakeTensorMode
from torch.distributed import device_mesh
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from everybyte.reference import GPT, Trainer
from everybyte.reference.step import random_batch

CPU = torch.device("cpu")


class Fp32(GPT):
    def to(self, dtype):
        return self if dtype is torch.float32 else super().to(dtype)  # a fake module cannot be swapped for itself


def mem_tracker(model, setup):
    """What PyTorch's MemTracker says of a second step on fake CPU tensors: phases and peak, in bytes."""
    phases = {}
    with FakeTensorMode():
        trainer = Trainer(Fp32(model, setup), setup)
        batch = random_batch(model.vocabulary, setup, "cpu")
        trainer.step(batch)
        with MemTracker() as tracker:
            tracker.track_external(trainer.module, trainer.optimizer)

            def at(phase):
                phases[phase] = tracker.get_tracker_snapshot("current")[CPU]["Total"]

            trainer.step(batch, at)
            at("rest")
        return phases, tracker.get_tracker_snapshot("peak")[CPU]["Total"]


def fsdp_mem_tracker(model, setup, rank=0):
    """What PyTorch's FSDPMemTracker says of one rank's second step on fake CPU tensors: phases and peak, in bytes."""
    phases = {}
    dist.init_process_group("fake", rank=rank, world_size=setup.gpus, store=FakeStore())
    try:
        shape = (setup.replicas, setup.gpus // setup.replicas)
        made = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))  # of real numbers, which it reads
        made = made if setup.replicas > 1 else made["shard"]
        with FakeTensorMode(), mock.patch.object(device_mesh, "init_device_mesh", lambda *_, **__: made):
            trainer = Trainer(Fp32(model, setup), setup)
            batch = random_batch(model.vocabulary, setup, "cpu")
            trainer.step(batch)
            tracker = FSDPMemTracker(trainer.module, trainer.optimizer)
            with tracker:

                def at(phase):
                    phases[phase] = tracker.get_tracker_snapshot("current")[CPU]["Total"]

                trainer.step(batch, at)
                at("rest")
            return phases, tracker.get_tracker_snapshot("peak")[CPU]["Total"]
    finally:
        dist.destroy_process_group()
