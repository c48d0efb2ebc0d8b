"""PyTorch's FSDP otherwise than `parallel.shard` has it: which units are freed after forward, and FSDP1.

FSDP1, the older one, has each unit's weights in one flat tensor, of which each GPU has an equal piece. A unit is gathered into its own
flat buffer, of which the weights are views; so are their gradients of one flat gradient.
Source: PyTorch, `torch/distributed/fsdp/fully_sharded_data_parallel.py`.
"""

from contextlib import nullcontext
from unittest import mock

import torch
from torch import nn
from torch.distributed import fsdp

from ...ask.setup import Setup
from .. import parallel
from ..step import Trainer


def resharded(module: nn.Module, setup: Setup) -> nn.Module:
    """The module that `shard` made, whose units are told what the setup says of them. Returns it.

    Sources: PyTorch, `torch/distributed/fsdp/_fully_shard/_fully_shard.py`, `set_reshard_after_forward`; torchtitan,
    models/llama3/infra/parallelize.py, `apply_fsdp`; torchtune, training/_distributed.py, `shard_model`; accelerate,
    utils/fsdp_utils.py, `fsdp2_prepare_model`.
    """
    if setup.resharding == "root":
        module.set_reshard_after_forward(True, recurse=False)
    elif setup.resharding == "ends":
        module.head.set_reshard_after_forward(True, recurse=False)
    elif setup.resharding == "not-last":
        parallel.units(module)[-1].set_reshard_after_forward(False)
    return module


def into_groups(setup: Setup):
    """Within it each unit is told how many GPUs hold it from forward to backward: PyTorch asks that where a unit is made."""

    def told(module, reshard_after_forward=None, **options):
        return fully_shard(module, reshard_after_forward=setup.resharding_gpus, **options)

    fully_shard = fsdp.fully_shard
    return mock.patch.object(fsdp, "fully_shard", told if setup.resharding == "group" else fully_shard)


def in_flat_units(setup: Setup):
    """Within it FSDP of a setup with `fsdp_version` 1 is FSDP1."""
    return mock.patch.object(parallel, "shard", flattened if setup.fsdp_version == 1 else parallel.shard)


def flattened(module: nn.Module, setup: Setup, mesh: None = None) -> nn.Module:
    """What forward calls in place of the module: the units are wrapped, and with the rest the module itself.

    Under `bf16-mixed` the policy is `shard`'s: units are gathered in bf16, and gradients summed in fp32.
    """
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import CustomPolicy

    units = parallel.units(module)
    types = (torch.bfloat16, torch.float32) if setup.dtypes.autocast else ()
    policy = MixedPrecision(*types, cast_forward_inputs=False, cast_root_forward_inputs=False)
    return FullyShardedDataParallel(
        module,
        sharding_strategy=ShardingStrategy.FULL_SHARD if setup.sharding == "zero3" else ShardingStrategy.SHARD_GRAD_OP,
        mixed_precision=policy,
        auto_wrap_policy=CustomPolicy(lambda part: part in units),
        use_orig_params=True,
    )


def averaging_once(trainer: Trainer) -> None:
    """FSDP1 averages gradients after each batch, or within `no_sync`, as DDP's, after the last one alone."""
    once = trainer.no_sync

    def averaging(last):
        return trainer.called.no_sync() if once and not last else nullcontext()

    vars(trainer).update(no_sync=False, averaging=averaging)
