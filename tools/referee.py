"""PyTorch's own MemTracker over the same training step: the tests hold ours against it, the benchmark races it."""

import torch
from torch._subclasses import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

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
