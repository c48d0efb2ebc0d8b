"""Ways to save memory that a model does not know of: each changes how its modules are called."""

import torch
from torch import nn

from ...ask.setup import Setup
from ...catalog import Model
from .. import FAMILIES
from ..adapters import adapted, package
from ..step import DTYPES
from .blocks import checkpointed


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


def packed(module: nn.Module, storage: torch.dtype, base: torch.dtype) -> nn.Module:
    """The module with the codes of each linear layer in 4 bits as a column of numbers of type `storage` (`bnb_4bit_quant_storage`).

    So peft's guide and accelerate ask where FSDP divides them: all parameters that are gathered together are then of one data type. Codes
    in bytes accelerate leaves whole on every GPU. Source: accelerate, utils/fsdp_utils.py, `fsdp2_prepare_model`.

    Args:
        base: the data type of biases between steps; FSDP gathers them in forward's.

    Raises:
        ValueError: where such numbers do not hold a weight's codes; bitsandbytes would write past their end.
    """
    layers = package("bitsandbytes", "Setup.quantization: 'nf4'").nn
    for path, layer in module.named_modules():
        if not isinstance(layer, layers.Linear4bit):
            continue
        codes, state = layer.weight.data, layer.quant_state
        if codes.numel() % storage.itemsize:
            raise ValueError(
                f"Setup.quantization: {path} has {state.shape.numel()} numbers, whose codes do not fill numbers of {storage}; "
                f"allowed: a multiple of {2 * storage.itemsize}"
            )
        codes = codes.view(-1).view(storage).view(-1, 1)
        said = {"quant_state": state, "quant_type": state.quant_type, "quant_storage": storage, "bnb_quantized": True}
        layer.weight, layer.quant_storage = layers.Params4bit(codes, module=layer, **said), storage
        if layer.bias is not None:
            layer.bias.data = layer.bias.data.to(base)
    return module
