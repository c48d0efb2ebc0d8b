"""Chapter 31's explorer: what ZeRO's stages leave of a model's states on each of many GPUs, and what each sends."""

from ..ask.choices import Sharding
from ..ask.setup import Setup
from ..catalog import Model
from ..formulas.symbols import sharded_gradients, sharded_optimizer, sharded_weights
from .beside import said
from .controls import OF_ACTIVATIONS, OF_STATES, Choice, asked, check_setup, gpus_label, opens, powers, shared, steps
from .explorer import Explorer, told
from .pictures import Stack

STAGES: dict[Sharding, str] = {"none": "DDP", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "zero3": "ZeRO-3"}
_SWITCHES = (sharded_optimizer, sharded_gradients, sharded_weights)


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
    switches, counts = [BY_SYMBOL[z] for z in _SWITCHES], powers(0, 12)
    stages = {label: bindings(None, Setup(sharding=sharding), switches) for sharding, label in STAGES.items()}
    gpus = setup.gpus if setup else 8
    if gpus not in counts:
        raise ValueError(f"Setup.gpus: {gpus} is not offered; allowed: powers of two from 1 to 4,096")
    controls = [
        shared("model", model and model.name),
        *asked(setup, "precision", "optimizer"),
        Choice("stage", "stage", stages, STAGES[setup.sharding if setup else "none"]),
        steps("gpus", "GPUs", counts, gpus, "shards", gpus_label),
        shared("gpu"),
    ]
    sent = [(name, "zero.sent") for name in said("zero")["also"]]
    return told("zero", controls, Stack(said("zero")["parts"], bars="stage"), derived=sent)
