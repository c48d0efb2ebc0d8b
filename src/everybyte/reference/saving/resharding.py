"""Which of FSDP's units are freed after forward, where it is not as PyTorch has it by default."""

from contextlib import contextmanager
from unittest import mock

from torch import nn
from torch.distributed import fsdp

from ...ask.setup import Setup
from ..parallel import units


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
        units(module)[-1].set_reshard_after_forward(False)
    return module


@contextmanager
def into_groups(setup: Setup):
    """Within it each unit is told how many GPUs hold it from forward to backward: PyTorch asks that where a unit is made."""

    def told(module, reshard_after_forward=None, **options):
        return fully_shard(module, reshard_after_forward=setup.resharding_gpus, **options)

    fully_shard = fsdp.fully_shard
    with mock.patch.object(fsdp, "fully_shard", told if setup.resharding == "group" else fully_shard):
        yield
