"""Chapter 31's explorer: what ZeRO's stages leave of a model's states on each of many GPUs, and what each sends."""

from ..catalog import Model
from ..formulas.symbols import sharded_gradients, sharded_optimizer, sharded_weights
from ..setup import Setup, Sharding
from .controls import OF_ACTIVATIONS, OF_STATES, Choice, check_setup, opens, precision_label, shared
from .explorer import Explorer
from .pictures import Stack

STAGES: dict[Sharding, str] = {"none": "DDP", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "zero3": "ZeRO-3"}
_SWITCHES = (sharded_optimizer, sharded_gradients, sharded_weights)
_PARTS = [
    ("parameters", "weights", "zero.weights"),
    ("gradients", "gradients", "zero.gradients"),
    ("optimizer", "optimizer", "zero.optimizer"),
]


def _label(gpus):
    return f"{gpus:,} GPU{'s' * (gpus > 1)}"


@opens
def zero(model: Model | None = None, setup: Setup | None = None) -> Explorer:
    """Model states on each of 1 to 4,096 GPUs, stage by stage, and the bytes that each sends in a step.

    Args:
        model, setup: what it opens with; by default DDP on 8 GPUs, and what the notebook's other explorers show.

    Raises:
        ValueError: a model that is not in the catalog; a number of GPUs that is no power of two, or more than 4,096.
    """
    from ..formulas import bindings
    from ..formulas.symbols import BY_SYMBOL

    check_setup("zero", setup, *OF_ACTIVATIONS, *OF_STATES, "gpus", "sharding")
    switches = [BY_SYMBOL[z] for z in _SWITCHES]
    stages = {label: bindings(None, Setup(sharding=sharding), switches) for sharding, label in STAGES.items()}
    counts = {_label(2**i): {"shards": 2**i} for i in range(13)}
    gpus = setup.gpus if setup else 8
    start = _label(gpus)
    if start not in counts:
        raise ValueError(f"Setup.gpus: {gpus} is not offered; allowed: powers of two from 1 to 4,096")
    controls = [
        shared("model", model and model.name),
        shared("precision", setup and precision_label(setup)),
        shared("optimizer", setup and setup.optimizer),
        Choice("stage", "stage", stages, STAGES[setup.sharding if setup else "none"]),
        Choice("gpus", "GPUs", counts, start, kind="slider"),
        shared("gpu"),
    ]
    usual = {"precision": "bf16-master", "optimizer": "adamw", "gpu": "h100-80gb"}
    presets = {
        "Llama 2 7B, DDP on 8": usual | {"model": "llama-2-7b", "stage": "DDP", "gpus": _label(8)},
        "the same, ZeRO-1": usual | {"model": "llama-2-7b", "stage": "ZeRO-1", "gpus": _label(8)},
        "70B, ZeRO-2 on 4,096": usual | {"model": "llama-2-70b", "stage": "ZeRO-2", "gpus": _label(4096)},
        "405B, ZeRO-3 on 1,024": usual | {"model": "llama-3.1-405b", "stage": "ZeRO-3", "gpus": _label(1024)},
    }
    sent = "bytes sent in a step"
    return Explorer(
        "Model states on each GPU", controls, Stack(_PARTS, bars="stage"), presets, derived=[(sent, "zero.sent")],
        subject=("model", "precision", "optimizer", "stage", "gpus"), also=(sent,),
    )  # fmt: skip
