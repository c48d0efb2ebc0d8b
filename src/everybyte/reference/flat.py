"""FSDP1, PyTorch's older FSDP: each unit's weights lie in one flat tensor, of which each GPU has an equal piece.

A unit is gathered into its own flat buffer, of which the weights are views; so are their gradients of one flat gradient.
Source: PyTorch, `torch/distributed/fsdp/fully_sharded_data_parallel.py`.
"""

import torch
from torch import nn

from ..ask.setup import Setup


def flattened(module: nn.Module, setup: Setup, units: list[nn.Module]) -> nn.Module:
    """What forward calls in place of the module: the units are wrapped, and with the rest the module itself.

    Under `bf16-mixed` the policy is `shard`'s: units are gathered in bf16, and gradients summed in fp32.
    """
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import CustomPolicy

    policy = MixedPrecision(cast_forward_inputs=False, cast_root_forward_inputs=False)
    if setup.dtypes.autocast:
        policy = MixedPrecision(
            torch.bfloat16, torch.float32, cast_forward_inputs=False, cast_root_forward_inputs=False
        )
    return FullyShardedDataParallel(
        module,
        sharding_strategy=ShardingStrategy.FULL_SHARD if setup.sharding == "zero3" else ShardingStrategy.SHARD_GRAD_OP,
        mixed_precision=policy,
        auto_wrap_policy=CustomPolicy(lambda part: part in units),
        use_orig_params=True,
    )
