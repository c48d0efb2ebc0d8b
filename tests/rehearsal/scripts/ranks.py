"""Trains blocks of two matrices that ranks share in the way that is named. It knows nothing of rehearsals."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.nn.functional import all_to_all_single
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

WIDTH, ROWS, BATCHES, BLOCKS = 512, 256, 4, 8
how = sys.argv[1]
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", torch.cuda.current_device())


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):  # (rows, width)
        if how == "experts":  # each rank sends as many rows to each
            x = all_to_all_single(torch.empty_like(x), x)
        return x + self.down(nn.functional.gelu(self.up(x)))


def net_of(blocks):
    with torch.device(device):
        return nn.Sequential(*(Block() for _ in range(blocks)))


def shard(net, mesh=None):
    for block in net:
        fully_shard(block, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def divide(net, mesh):
    for block in net:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return net


def whole():
    """The model as this rank has it, and its optimizer."""
    net = net_of(BLOCKS)
    if how in ("ddp", "zero1"):
        net = DistributedDataParallel(net)
    elif how == "fsdp1":
        net = FullyShardedDataParallel(
            net, auto_wrap_policy=lambda module, recurse, **_: recurse or isinstance(module, Block)
        )
    elif how == "fsdp2":
        net = shard(net)
    elif how == "hsdp":
        net = shard(net, init_device_mesh("cuda", (2, world // 2), mesh_dim_names=("copies", "shards")))
    elif how == "tensor":
        net = divide(net, init_device_mesh("cuda", (world,)))
    elif how == "tensor-fsdp2":
        mesh = init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("data", "tensor"))
        net = shard(divide(net, mesh["tensor"]), mesh["data"])
    if how == "zero1":
        return net, ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, foreach=False)
    return net, torch.optim.AdamW(net.parameters(), foreach=False)


def pipeline():
    """The stages of this rank as a schedule, and their optimizer."""
    count = 2 * world if how == "pipeline-interleaved" else world
    stages = []
    for index in range(rank, count, world):
        net, piece = net_of(BLOCKS // count), torch.empty(ROWS, WIDTH, device=device)
        said = {"input_args": (piece.requires_grad_(index > 0),), "output_args": (piece.detach().requires_grad_(),)}
        said = {} if how == "pipeline-asking" else said  # they ask one another for shapes
        stages.append(PipelineStage(net, index, count, device, **said))
    schedule = (
        Schedule1F1B(stages[0], BATCHES, loss_of)
        if count == world
        else ScheduleInterleaved1F1B(stages, BATCHES, loss_of)
    )
    return schedule, torch.optim.AdamW([p for stage in stages for p in stage.submod.parameters()], foreach=False)


def loss_of(y, _target):
    return y.square().sum()


in_turn = how.startswith("pipeline")
net, optimizer = pipeline() if in_turn else whole()
for _ in range(3):
    x = torch.randn(BATCHES * ROWS, WIDTH, device=device)
    if not in_turn:
        loss_of(net(x), None).backward()
    elif rank == 0:
        net.step(x)
    else:
        net.step(target=x, return_outputs=False)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
