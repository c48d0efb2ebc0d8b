"""Two processes that share a model of eight blocks: each block's matrices, or four blocks each in a pipeline of 1F1B."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH, ROWS, BATCHES, BLOCKS = 512, 256, 4, 8

how = sys.argv[1]
dist.init_process_group("nccl")
rank = dist.get_rank()
device = torch.device("cuda", rank)
torch.cuda.set_device(device)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):  # (rows, width)
        return x + self.down(nn.functional.gelu(self.up(x)))


blocks = BLOCKS if how == "tensor" else BLOCKS // 2
with torch.device(device):
    net = nn.Sequential(*(Block() for _ in range(blocks)))
if how == "tensor":
    mesh = init_device_mesh("cuda", (2,))
    for block in net:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
optimizer = torch.optim.AdamW(net.parameters(), foreach=False)


def loss_of(y, _target):
    return y.square().sum()


if how == "pipeline":
    piece = torch.empty(ROWS, WIDTH, device=device, requires_grad=rank == 1)
    stage = PipelineStage(net, rank, 2, device, input_args=(piece,), output_args=(piece.detach().requires_grad_(),))
    schedule = Schedule1F1B(stage, BATCHES, loss_fn=loss_of)
for _ in range(3):
    x = torch.randn(BATCHES * ROWS, WIDTH, device=device)
    if how == "tensor":
        loss_of(net(x), None).backward()
    elif rank == 0:
        schedule.step(x)
    else:
        schedule.step(target=x, return_outputs=False)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
