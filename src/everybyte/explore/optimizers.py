"""Chapter 24's explorer: what each optimizer keeps, beside weights and gradients."""

from ..ask.choices import OPTIMIZERS, OptimizerName
from ..ask.setup import Setup
from ..catalog import Gpu, Model
from .beside import said
from .controls import OF_ACTIVATIONS, OF_STATES, Choice, asked, check_setup, opens, shared
from .explorer import Explorer, told
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
        *asked(setup, "precision"),
        Choice("small_optimizer", "optimizer", kinds, start),
        shared("gpu", gpu and gpu.name),
    ]
    own = sum(SYMBOLS[switch].symbol * formula(f"states.{name}").expr for name, switch in OWN.items())
    parts = [*said("states")["parts"][:3], ("optimizer", "optimizer states", n_s * s_b * P + own)]
    return told("optimizers", controls, Stack(parts, bars="small_optimizer"))
