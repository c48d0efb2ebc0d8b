"""Chapter 24's explorer: what each optimizer keeps, beside weights and gradients."""

from ..catalog import Gpu, Model
from ..setup import OPTIMIZERS, OptimizerName, Setup
from .controls import OF_ACTIVATIONS, OF_STATES, Choice, check_setup, opens, precision_label, shared
from .explorer import Explorer
from .pictures import Stack

#: Optimizer -> the switch of the formula of its states, where these are no number of tensors as large as the weights.
OWN = {"adafactor": "adafactor", "adamw8bit": "adam8bit", "muon": "muon"}
_NAMES: tuple[OptimizerName, ...] = ("sgd", "adafactor", "adamw8bit", "momentum", "lion", "muon", "adamw")


@opens
def optimizers(
    model: Model | None = None, setup: Setup | None = None, gpu: Gpu | None = None, optimizer: str | None = None
) -> Explorer:
    """Weights, gradients and states under every optimizer, against a GPU's memory.

    Args:
        model, setup, gpu: what it opens with; by default what the notebook's other explorers show. optimizer: the one that is
            marked; by default the setup's.

    Raises:
        ValueError: a model or a GPU that is not in the catalog, an optimizer that it does not show.
    """
    from ..formulas import formula
    from ..formulas.symbols import SYMBOLS, P, n_s, s_b

    check_setup("optimizers", setup, *OF_ACTIVATIONS, *OF_STATES)
    start = optimizer or (setup.optimizer if setup else "adamw")
    kinds: dict[str, dict[str, object]] = {}
    for name in _NAMES:
        kinds[name] = {"states": OPTIMIZERS[name].states or 0, **{switch: int(name == o) for o, switch in OWN.items()}}
    controls = [
        shared("model", model and model.name),
        shared("precision", setup and precision_label(setup)),
        Choice("small_optimizer", "optimizer", kinds, start),
        shared("gpu", gpu and gpu.name),
    ]
    states = n_s * s_b * P
    for own, switch in OWN.items():
        states += SYMBOLS[switch].symbol * formula(f"states.{own}").expr
    parts = [
        ("parameters", "weights", "weights"),
        ("gradients", "gradients", "gradients"),
        ("master", "master weights", "optimizer.master"),
        ("optimizer", "optimizer states", states),
    ]
    standard = {"precision": "bf16", "small_optimizer": "adamw"}
    presets = {
        "Llama 3.1 8B, all in bf16, on an RTX 4090": standard | {"model": "llama-3.1-8b", "gpu": "rtx-4090"},
        "the same in 8 bits, on an A100": standard
        | {"model": "llama-3.1-8b", "gpu": "a100-80gb", "small_optimizer": "adamw8bit"},
        "GPT-2 with Muon": {"precision": "fp32", "model": "gpt2", "small_optimizer": "muon"},
    }
    return Explorer(
        "What each optimizer keeps, beside weights and gradients", controls, Stack(parts, bars="small_optimizer"), presets,
        subject=("model", "precision", "small_optimizer"),
    )  # fmt: skip
