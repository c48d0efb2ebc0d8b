"""Adapters by the library that people use: peft puts them into a module, and the book's own step trains them.

A step without adapters passes through here untouched.
"""

import logging
import warnings
from contextlib import contextmanager

from torch import nn

from .reference.step import DTYPES
from .setup import Lora, Setup


def adapted(module: nn.Module, setup: Setup) -> nn.Module:
    """The module in its data type, frozen, with the setup's adapters, which alone train; the module itself where there are none.

    Raises:
        ValueError: where a target matches no linear layer, the rank is over a layer's width, or peft is not installed.
    """
    lora = setup.adapters
    if lora is None:
        return module
    logging.getLogger("bitsandbytes").setLevel(
        logging.ERROR
    )  # peft imports it, and it says which kernels the CPU has not
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ValueError(
            f"Setup.adapters: {lora} needs peft, which is not installed: pip install everybyte[adapters]"
        ) from error
    module = module.to(DTYPES[setup.base_dtype])
    config = LoraConfig(r=lora.rank, lora_alpha=2 * lora.rank, target_modules=_targets(lora, module))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tied ends, though neither is a target
        return get_peft_model(module, config, autocast_adapter_dtype=lora.dtype == "fp32")


def _targets(lora: Lora, module: nn.Module) -> list[str]:
    """Whole paths of the linear layers that adapters stand beside."""
    linears = {path: child for path, child in module.named_modules() if isinstance(child, nn.Linear)}
    head = getattr(module, "get_output_embeddings", lambda: getattr(module, "head", None))()
    linears = {path: child for path, child in linears.items() if child is not head}
    names = lora.targets if isinstance(lora.targets, tuple) else ("",)
    for name in names:
        if not any(_ends(path, name) for path in linears):
            short = ", ".join(dict.fromkeys(path.rpartition(".")[2] for path in linears))
            raise ValueError(
                f"Lora.targets: {name!r} matches no linear layer of {type(module).__name__} but its head; allowed: {short}"
            )
    found = [path for path in linears if any(_ends(path, name) for name in names)]
    width, path = min((linears[path].in_features, path) for path in found)
    if lora.rank > width:
        raise ValueError(f"Lora.rank: {lora.rank} is more than the width {width} of {path}; allowed: 1 to {width}")
    return found


def _ends(path, name):
    return not name or f".{path}".endswith(f".{name}")


def base_parameters(module: nn.Module) -> int:
    """How many parameters a module has without its adapters, shared ones once."""
    return sum(p.numel() for name, p in module.named_parameters() if ".lora_" not in name)


@contextmanager
def as_it_is(module: nn.Module, setup: Setup):
    """Within it, a module with adapters keeps its data types where a trainer would give all of it one."""
    if setup.adapters is None:
        yield
        return
    module.to = lambda *_: module
    yield
    del module.to
