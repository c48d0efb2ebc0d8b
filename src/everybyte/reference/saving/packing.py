"""Weights in 4 bits that FSDP divides: bitsandbytes' codes as numbers of forward's type (`bnb_4bit_quant_storage`).

So peft's guide and accelerate ask: all parameters that are gathered together are then of one data type. Codes in bytes accelerate
leaves whole on every GPU. Source: accelerate, utils/fsdp_utils.py, `fsdp2_prepare_model`.
"""

import torch
from torch import nn

from ..adapters import package


def packed(module: nn.Module, storage: torch.dtype, base: torch.dtype) -> nn.Module:
    """The module with the codes of each linear layer in 4 bits as a column of numbers of type `storage`.

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
