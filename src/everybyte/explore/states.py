"""Chapter 13's explorer: what each parameter costs before any activation."""

from ..ask.setup import Setup
from ..catalog import Gpu, Model
from .beside import said
from .controls import OF_ACTIVATIONS, OF_STATES, Choice, asked, check_setup, opens, shared
from .explorer import Explorer, told
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
    if own:
        sizes[own.name] = {"parameters": int(own.parameters)}
    controls = [
        shared("model", None if own or model is None else model.name),
        Choice("size", "size", sizes, own.name if own else None, kind="slider", instead_of="model"),
        *asked(setup, "precision", "optimizer"),
        shared("gpu", gpu and gpu.name),
    ]
    return told("states", controls, Stack(said("states")["parts"], bars="precision"))
