"""Ways to save memory that a model does not know of: each changes how its modules are called."""

from torch import nn

from ...ask.setup import Setup
from ...catalog import Model
from .. import FAMILIES
from ..adapters import adapted
from ..step import DTYPES
from .blocks import checkpointed
from .packing import packed


def built(model: Model, setup: Setup) -> nn.Module:
    """The book's module of a model, checkpointed as the setup says."""
    return checkpointed(FAMILIES[str(model.family)](model, setup), setup)


def with_adapters(module: nn.Module, setup: Setup) -> nn.Module:
    """`adapted`, with adapters over 4-bit weights in the setup's type: peft makes them in fp32, and TRL casts them to bf16.

    Where FSDP divides the module, these weights are `packed`. Source: TRL, trainer/sft_trainer.py, where the model is loaded in 4 bits.
    """
    module = adapted(module, setup)
    if setup.adapters and setup.quantization != "none":
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(DTYPES[setup.adapters.dtype])
        if setup.fsdp:
            packed(module, DTYPES[setup.dtypes.compute], DTYPES[setup.base_dtype])
    return module
