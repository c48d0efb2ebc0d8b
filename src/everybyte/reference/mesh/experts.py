"""Expert parallelism: of E experts each of e GPUs has E / e, and rows travel to the GPU of the expert that they visit, and back.

The e GPUs are neighbors among those of data and context, so that E / e experts stand on every e-th of them. Under FSDP their
weights are divided among these, and all others among all; as torchtitan does, along their second dimension where there are
more GPUs than experts. Without FSDP everything else is averaged by DDP, which knows one group of GPUs: experts are averaged
by hand. The exchange is PyTorch's `all_to_all_single_autograd`, whose backward is the way back. How many rows come is the
routers' choice, step by step: nobody drops any.
Beside tensor parallelism each expert's gate and up are cut by columns, its down by rows, as where nobody else has experts
(`splitting.Mixture`): all t GPUs of a tensor group gather all tokens, route them alike and send the same rows, each to the GPU of
another group that has its part of the matrices; what comes back are parts of a sum, which is made over the tensor group after
rows have been weighted. This is torchtitan's `ExpertTensorParallel`, expert_tensor_parallel_degree = tensor_parallel_degree.
Sources: Lepikhin et al., GShard (2020), arXiv:2006.16668; Jiang et al., Mixtral of Experts (2024), arXiv:2401.04088;
PyTorch, torch/distributed/_functional_collectives.py; torchtitan, models/llama4/infra/parallelize.py, `apply_fsdp` and
`apply_moe_ep_tp`, and distributed/expert_parallel.py.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard


def average(blocks, same, gpus: int):
    """Experts' gradients, over the tokens of so many GPUs, which have all come to those of the group `same`."""
    for block in blocks:
        for weight in block.mlp.own.parameters():
            dist.all_reduce(weight.grad, group=same)
            weight.grad.div_(gpus)


def expert_mesh(setup, device):
    """All GPUs, of each stage of a pipeline, by the experts that they have: `same` ones, those of an `expert` group, parts of each."""
    mesh = setup.mesh
    sizes = {"pipeline": mesh.pipeline, "same": setup.expert_shards, "expert": mesh.expert, "tensor": mesh.tensor}
    return init_device_mesh(device, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def shard_experts(module, setup, same):
    """FSDP of each mixture's own experts, among the GPUs that have the same; what is around them is `parallel.shard`'s.

    Their gradients are divided by the number of all GPUs, since the tokens of all have come.
    """
    types = (torch.bfloat16, torch.float32) if setup.dtypes.autocast else ()
    policy = MixedPrecisionPolicy(*types, cast_forward_inputs=False)
    options = {"mesh": same, "mp_policy": policy, "reshard_after_forward": setup.sharding == "zero3"}
    if setup.offload == "cpu":
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=next(module.parameters()).device.type == "cuda")
    for block in module.blocks:
        if setup.expert_shards * setup.mesh.expert > block.mlp.experts:
            options["shard_placement_fn"] = lambda weight: Shard(1)
        own = fully_shard(block.mlp.own, **options)
        own.set_gradient_divide_factor(float(setup.sharers))
        if dist.get_backend() == "gloo" and setup.expert_shards > 1:  # which sums, and multiplies nothing before
            own.set_force_sum_reduction_for_comms(True)
