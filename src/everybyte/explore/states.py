"""Chapter 13's explorer: what each parameter costs before any activation."""

from ..catalog import Gpu, Model
from ..setup import Setup
from .controls import OF_ACTIVATIONS, OF_STATES, Choice, check_setup, opens, precision_label, shared
from .explorer import Explorer
from .pictures import Stack

_SIZES = [n * 10**k for k in range(6, 13) for n in (1, 2, 3, 5, 7)]


def _size(count):
    k = len(str(count)) - 1
    suffix, base = (("M", 6), ("B", 9), ("T", 12))[(k - 6) // 3]
    return f"{count // 10**base} {suffix} parameters"


@opens
def states(model: Model | None = None, setup: Setup | None = None, gpu: Gpu | None = None) -> Explorer:
    """Weights, gradients, master weights and optimizer states for every precision, against a GPU's memory.

    Args:
        model, setup, gpu: what it opens with; by default what the notebook's other explorers show. A model of your own
            opens as its parameter count.

    Raises:
        ValueError: a GPU that is not in the catalog.
    """
    from ..catalog import models

    check_setup("states", setup, *OF_ACTIVATIONS, *OF_STATES)
    own = model if model is not None and models().get(model.name) != model else None
    sizes = {"(the model's)": {}} | {_size(n): {"parameters": n} for n in _SIZES}
    start = "(the model's)"
    if own:
        start = own.name
        sizes[start] = {"parameters": int(own.parameters)}
    controls = [
        shared("model", None if own or model is None else model.name),
        Choice("size", "size", sizes, start, kind="slider", instead_of="model"),
        shared("precision", setup and precision_label(setup)),
        shared("optimizer", setup and setup.optimizer),
        shared("gpu", gpu and gpu.name),
    ]
    parts = [
        ("parameters", "weights", "weights"),
        ("gradients", "gradients", "gradients"),
        ("master", "master weights", "optimizer.master"),
        ("optimizer", "optimizer states", "optimizer.states"),
    ]
    standard = {"precision": "fp32", "optimizer": "adamw", "size": "(the model's)"}
    presets = {
        "GPT-2 XL on an RTX 4090": standard | {"model": "gpt2-xl", "gpu": "rtx-4090"},
        "Llama 2 7B on an A100": standard | {"model": "llama-2-7b", "gpu": "a100-80gb", "precision": "bf16-master"},
        "7 B, all in bf16": standard | {"size": "7 B parameters", "precision": "bf16"},
    }
    return Explorer(
        "Bytes of every parameter, after backward", controls, Stack(parts, bars="precision"), presets,
        subject=("model", "size", "precision", "optimizer"),
    )  # fmt: skip
