"""FSDP1, PyTorch's older FSDP: each unit's weights lie in one flat tensor, of which each GPU has an equal piece.

A unit is gathered into its own flat buffer, of which the weights are views; so are their gradients of one flat gradient.
Source: PyTorch, `torch/distributed/fsdp/fully_sharded_data_parallel.py`.
"""

from contextlib import contextmanager, nullcontext
from unittest import mock

import torch
from torch import nn

from ...ask.setup import Setup
from .. import parallel
from ..step import Trainer


@contextmanager
def in_flat_units(setup: Setup):
    """Within it FSDP of a setup with `fsdp_version` 1 is FSDP1."""
    shard = flattened if setup.fsdp_version == 1 else parallel.shard
    with mock.patch.object(parallel, "shard", shard):
        yield


def flattened(module: nn.Module, setup: Setup, mesh: None = None) -> nn.Module:
    """What forward calls in place of the module: the units are wrapped, and with the rest the module itself.

    Under `bf16-mixed` the policy is `shard`'s: units are gathered in bf16, and gradients summed in fp32.
    """
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import CustomPolicy

    units = parallel.units(module)
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


def averaging_once(trainer: Trainer) -> None:
    """FSDP1 averages gradients after each batch, or within `no_sync`, as DDP's, after the last one alone."""
    once = trainer.no_sync

    def averaging(last):
        return trainer.called.no_sync() if once and not last else nullcontext()

    vars(trainer).update(no_sync=False, averaging=averaging)
