"""The training step on many GPUs: DDP, and the three stages of ZeRO.

| `sharding` | what the GPUs divide | by |
|---|---|---|
| `none`  | nothing | PyTorch's `DistributedDataParallel` |
| `zero1` | the optimizer's states | `ShardedOptimizer`, below |
| `zero2` | gradients and weights too; what was gathered for forward stays until backward has used it | PyTorch's `fully_shard` |
| `zero3` | the same; each unit is let go after forward and gathered again for backward | PyTorch's `fully_shard` |

Each GPU runs this same code on a batch of its own, in a process group that the caller has set up. The paper's ZeRO-2 keeps
the weights whole at all times; `fully_shard(reshard_after_forward=False)` divides them between steps as well.
Sources: Rajbhandari et al., ZeRO (2020); PyTorch, `torch/distributed/fsdp/_fully_shard` and `torch/nn/parallel/distributed.py`.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..ask.setup import Setup

#: As PyTorch has called them since 2.13; before, by the names that it keeps for now.
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class ShardedOptimizer:
    """ZeRO-1: each of N GPUs has all weights and gradients, and the optimizer's states for one N-th of them.

    Weights lie side by side in one buffer, gradients in another, both padded to a multiple of N, so that a GPU's share is a
    view, and reducing and gathering copy nothing. PyTorch's `ZeroRedundancyOptimizer` gives whole tensors to GPUs instead:
    the shares are then as uneven as the tensors, and on top of DDP's all-reduce it sends each weight once more.
    """

    def __init__(self, parameters, make: Callable):
        weights = list(parameters)
        self.gpus, rank = dist.get_world_size(), dist.get_rank()
        share = -(-sum(w.numel() for w in weights) // self.gpus)
        self.flat = weights[0].new_empty(share * self.gpus, requires_grad=False)
        self.buffers = [torch.zeros_like(self.flat)]  # the gradients
        self.offsets, start = [], 0
        with torch.no_grad():
            for weight in weights:
                view = self.flat[start : start + weight.numel()].view_as(weight)
                view.copy_(weight)
                weight.data = view
                weight.grad = self.buffers[0][start : start + weight.numel()].view_as(weight)
                start += weight.numel()
            self.flat[start:].zero_()  # the padding
        mine = slice(rank * share, (rank + 1) * share)
        self.share, self.share_of_gradients = self.flat.detach()[mine], self.buffers[0][mine]
        self.optimizer = make([self.share])

    @torch.no_grad()
    def step(self):
        reduce_scatter(self.share_of_gradients, self.buffers[0])  # the sum over GPUs, of this GPU's share
        self.share.grad = self.share_of_gradients.div_(self.gpus)
        self.optimizer.step()
        self.share.grad = None
        all_gather(self.flat, self.share)

    def zero_grad(self):
        self.buffers[0].zero_()  # the weights' gradients are views of it, so it stays


def distribute(module: nn.Module, setup: Setup) -> nn.Module:
    """What forward calls in place of the module; FSDP turns the module itself into one of shards.

    Raises:
        ValueError: where there is no process group of as many GPUs as the setup says.
    """
    if not setup.distributed:
        return module
    gpus = dist.get_world_size() if dist.is_initialized() else None
    if gpus != setup.gpus:
        there = "there is no process group" if gpus is None else f"the process group has {gpus}"
        raise ValueError(f"Setup.gpus: {setup.gpus}, and {there}; allowed: as many as torchrun started")
    mesh: Any = None
    if not setup.mesh.alone:
        mesh = device_mesh(setup, next(module.parameters()).device.type)
    if setup.mesh.tensor > 1:
        from .splitting import split

        split(module, mesh["tensor"], setup.mesh)
    if setup.fsdp:
        return shard(module, setup, mesh)
    return replicate(module, setup) if setup.ddp else module


def device_mesh(setup, device):
    """All GPUs by what they divide, from those that say least to each other to those that say most."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = setup.mesh
    sizes = {"pipeline": mesh.pipeline, "data": setup.data, "context": mesh.context, "tensor": mesh.tensor}
    return init_device_mesh(device, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def sharers(mesh):
    """Of all GPUs those with the same part of the model: of data and context."""
    return mesh["data", "context"]._flatten("sharers") if mesh["context"].size() > 1 else mesh["data"]


def replicate(module, setup):
    """DDP: while backward still runs, each bucket of gradients that is full is averaged over the GPUs."""
    fake = dist.get_backend() == "fake"  # rank 0 alone: nobody to compare weights with
    ddp = nn.parallel.DistributedDataParallel(
        module, init_sync=not fake, gradient_as_bucket_view=setup.buckets == "views"
    )
    ddp.broadcast_buffers = False  # causal masks: the same everywhere and always
    if fake:
        ddp.register_comm_hook(None, at_once)
    return ddp


def at_once(_state, bucket):
    """In place of an all-reduce with nobody: the bucket as it is."""
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def units(module: nn.Module) -> list[nn.Module]:
    """The blocks: what stands in the module's outermost lists of modules."""
    if isinstance(module, nn.ModuleList):
        return list(module)
    return [unit for child in module.children() for unit in units(child)]


def shard(module, setup, mesh=None):
    """FSDP: each parameter cut along its first dimension, a share a GPU; whole only while its unit is at work.

    `mesh`: of all GPUs, where more than the batch is divided among them.

    Under `bf16-mixed` the unit is gathered in bf16 and computes in it throughout, and gradients are summed in fp32: PyTorch's
    own policy for FSDP. Autocast would gather fp32, twice the bytes, and keep its bf16 copies beside.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    device = next(module.parameters()).device.type
    if setup.replicas > 1:  # in one group each weight has one share; the groups average their gradients
        shape, names = (setup.replicas, setup.gpus // setup.replicas), ("replicate", "shard")
    else:
        shape, names = (setup.gpus,), ("shard",)
    policy = MixedPrecisionPolicy(cast_forward_inputs=False)  # blocks are given what they would cast to
    if setup.dtypes.autocast:
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    options = {
        "mesh": sharers(mesh) if mesh else init_device_mesh(device, shape, mesh_dim_names=names),
        "mp_policy": policy,
        # None is PyTorch's default: let go of every unit but the root, which backward needs first.
        "reshard_after_forward": False if setup.sharding == "zero2" else None,
    }
    if setup.offload == "cpu":  # shares, their gradients, and so the optimizer's states and its work
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=device == "cuda")
    if setup.sharding_units == "block+ends":
        fully_shard(module.token, **options)
    if setup.sharding_units != "model":
        for unit in units(module):
            fully_shard(unit, **options)
    if setup.sharding_units == "block+ends":  # not let go after forward, as backward needs it first
        fully_shard([module.norm, module.head], **options | {"reshard_after_forward": False})
    return fully_shard(module, **options)  # the root: what no unit has
