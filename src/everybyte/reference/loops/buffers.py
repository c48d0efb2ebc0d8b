"""Megatron-LM's distributed optimizer: weights in one buffer, fp32 gradients in another, and of both a GPU moves its own part."""

from collections.abc import Callable
from math import lcm

import torch
import torch.distributed as dist

from ..parallel import all_gather, reduce_scatter
from ..step import move

#: Numbers at multiples of which a weight begins in a buffer; its end is at a multiple of both the second and the GPUs.
BEGIN, END = 64, 128


class DistributedBuffers:
    """What `Megatron` is on one GPU, on several: each keeps all 16-bit weights and fp32 gradients, and its share of masters and states.

    The buffers hold the weights from the last to the first. Gradients are reduced, weights gathered in place, so that nothing is
    copied. Megatron has a master for each weight of its share, here there is one for all; gradients are not clipped here.
    Sources: Megatron-LM, megatron/core/distributed/param_and_grad_buffer.py; megatron/core/optimizer/param_layout.py,
    distrib_optimizer.py, with one bucket, as without `overlap_grad_reduce`.
    """

    @torch.no_grad()
    def __init__(self, parameters, make: Callable):
        self.weights, starts, end = list(parameters)[::-1], [], 0
        for weight in self.weights:
            starts.append(-(-end // BEGIN) * BEGIN)
            end = starts[-1] + weight.numel()
        self.gpus, rank = dist.get_world_size(), dist.get_rank()
        multiple = lcm(self.gpus, END)
        self.flat = self.weights[0].new_zeros(-(-end // multiple) * multiple, requires_grad=False)
        self.buffers = [torch.zeros_like(self.flat, dtype=torch.float32)]
        for weight, start in zip(self.weights, starts, strict=True):
            place = slice(start, start + weight.numel())
            weight.data = self.flat[place].view_as(weight).copy_(weight)
            main_grad, weight.grad = self.buffers[0][place].view_as(weight), None
            weight.register_post_accumulate_grad_hook(lambda w, main_grad=main_grad: move(w, main_grad))
        share = len(self.flat) // self.gpus
        mine = slice(rank * share, (rank + 1) * share)
        self.share, self.share_of_gradients = self.flat[mine], self.buffers[0][mine]
        self.master = self.share.float()
        self.optimizer = make([self.master])

    @torch.no_grad()
    def step(self):
        reduce_scatter(self.share_of_gradients, self.buffers[0])
        self.master.grad = self.share_of_gradients.div_(self.gpus)
        self.optimizer.step()
        self.master.grad = None
        self.share.copy_(self.master)
        all_gather(self.flat, self.share)

    def zero_grad(self):
        for weight in self.weights:
            weight.grad = None
        self.buffers[0].zero_()
