"""Adapters by the library that people use: peft puts them into a module, and the book's own step trains them.

A step without adapters passes through here untouched.
"""

import logging
import warnings
from contextlib import contextmanager
from importlib import import_module
from unittest import mock

import torch
from torch import nn

from ..ask.choices import OWN
from ..ask.setup import Setup
from .step import DTYPES


def adapted(module: nn.Module, setup: Setup) -> nn.Module:
    """The module in its data type, frozen, with the setup's adapters, which alone train; the module itself where there are none.

    Raises:
        ValueError: where a target matches no linear layer, the rank is over a layer's width, or peft is not installed.
    """
    lora = setup.adapters
    if lora is None:
        return module
    peft = package("peft", f"Setup.adapters: {lora}")
    module = module.to(DTYPES[setup.base_dtype])
    widths = {path: layer.in_features for path, layer in _linears(module).items()}
    targets = lora.chosen(widths, f"of {type(module).__name__} but its head")
    if setup.quantization == "nf4":
        quantize(module, DTYPES[setup.dtypes.compute])
    config = peft.LoraConfig(r=lora.rank, lora_alpha=2 * lora.rank, lora_dropout=lora.dropout, target_modules=targets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tied ends, though neither is a target
        return peft.get_peft_model(module, config, autocast_adapter_dtype=lora.dtype == "fp32")


def package(name: str, why: str, extra: str = "adapters"):
    """A package of an extra; ValueError that begins with `why` where it is not installed."""
    logging.getLogger("bitsandbytes").setLevel(
        logging.ERROR
    )  # peft imports it, and it says which kernels the CPU has not
    try:
        return import_module(name)
    except ImportError as error:
        raise ValueError(f"{why} needs {name}, which is not installed: pip install 'everybyte[{extra}]'") from error


def quantize(module: nn.Module, compute: torch.dtype) -> None:
    """Have each linear layer but the output head keep its weight in NF4 with double quantization, as bitsandbytes does.

    Args:
        compute: the data type of matrix products, from which weights are quantized; a layer's bias gets it, as in its first forward.
    """
    bnb = package("bitsandbytes", "Setup.quantization: 'nf4'")
    functional = bnb.functional
    with mock.patch.dict(functional.name2qmap):
        functional.name2qmap.pop("dynamic", None)  # on another device, perhaps
        for path, child in _linears(module).items():
            bias = child.bias is not None
            layer = bnb.nn.Linear4bit(
                child.in_features, child.out_features, bias, compute, quant_type="nf4", device="meta"
            )
            codes, state = functional.quantize_4bit(
                child.weight.data.to(compute), compress_statistics=True, quant_type="nf4"
            )
            layer.weight = bnb.nn.Params4bit(
                codes, quant_state=state, quant_type="nf4", bnb_quantized=True, module=layer
            )
            layer.quant_state = state
            if bias:
                layer.bias = nn.Parameter(child.bias.data.to(compute), requires_grad=False)
            parent, _, name = path.rpartition(".")
            setattr(module.get_submodule(parent), name, layer)
        module.quantization_table = functional.name2qmap.get("dynamic")  # lives as long as the process
    module.is_loaded_in_4bit = True  # what peft asks


def _linears(module):
    """Path -> linear layer, without the output head."""
    head = getattr(module, "get_output_embeddings", lambda: getattr(module, "head", None))()
    return {p: child for p, child in module.named_modules() if isinstance(child, nn.Linear) and child is not head}


def base_parameters(module: nn.Module) -> int:
    """How many parameters a module has without its adapters, shared ones once."""
    found = ((p, getattr(p, "quant_state", None)) for name, p in module.named_parameters() if ".lora_" not in name)
    return sum(state.shape.numel() if state else p.numel() for p, state in found)


@contextmanager
def as_it_is(module: nn.Module, setup: Setup):
    """Within it, a module with adapters, or with data types of its own, keeps them where a trainer would give all of it one."""
    if setup.adapters is None and setup.precision not in OWN:
        yield
        return
    module.to = lambda *_: module
    yield
    del module.to
