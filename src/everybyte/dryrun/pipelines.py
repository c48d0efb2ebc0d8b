"""PyTorch's pipelines in one process, on tensors without data."""

from contextlib import ExitStack, contextmanager, nullcontext
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining._utils import InferenceMode


@contextmanager
def on_meta():
    """A context in which PyTorch's pipelines run in one process on device meta, without peers and without CUDA."""

    def agreed(self, stages, *_):  # the ranks vote, by numbers that they read back: all said that shapes are known
        for stage in stages:
            stage._inference_mode = InferenceMode.STATIC

    def one_by_one(operations):  # no backend is named for meta
        return [
            o.op(o.tensor, group=o.group, **{"group_dst" if o.op is dist.isend else "group_src": o.group_peer})
            for o in operations
        ]

    with ExitStack() as stack:
        for owner, name, instead in (
            (schedules._PipelineSchedule, "_warmup_p2p", agreed),
            (dist, "batch_isend_irecv", one_by_one),
            (torch.random, "fork_rng", lambda **_: nullcontext()),
        ):
            stack.enter_context(mock.patch.object(owner, name, instead))
        yield


def tell(trainer, tracker):
    """Tell the tracker at each moment whether a forward, a backward or the optimizer runs."""
    trainer.pipeline.watch(lambda kind: setattr(tracker, "phase", kind))


def follow(tracker, module):
    """Tell the tracker of weights that were made outside of it: of a whole model, of which a stage was kept."""
    for name, parameter in module.named_parameters():
        tracker.assign(parameter, "parameters", name)
    for name, buffer in module.named_buffers():
        tracker.assign(buffer, "buffers", name)
