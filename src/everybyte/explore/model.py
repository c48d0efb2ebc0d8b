"""The explorer of a derived formula: any model's parts at the peak, by batch, sequence and GPU."""

from .. import draw
from ..catalog import Gpu
from .controls import Choice, shared
from .explorer import Explorer
from .pictures import Stack

_TITLE = "What a step of {name} takes at its peak"


def model(derivation, gpu: Gpu | None = None) -> Explorer:
    """The parts at the peak of a `Derivation`, for every batch and sequence, computed in the browser from its formula.

    Args:
        derivation: what `everybyte.derive` returns. gpu: the one that it opens with.

    Raises:
        ValueError: for what is no derivation, or a GPU that is not in the catalog.
    """
    if not hasattr(derivation, "cases"):
        raise ValueError(f"explore.model: a {type(derivation).__name__}; allowed: what everybyte.derive returns")
    controls = []
    for name, letter, start in (("batch", "B", 8), ("sequence", "S", 1024)):
        if letter not in derivation.letters:
            continue
        low, high = derivation.range(name)
        most = min(high, 512 if name == "batch" else 2**17)
        steps = [2**k for k in range(18) if low <= 2**k <= most] or [low]
        label = "batch" if name == "batch" else "sequence (tokens)"
        controls.append(
            Choice(
                name,
                label,
                {f"{n:,}": {name: n} for n in steps},
                f"{min(steps, key=lambda n: abs(n - start)):,}",
                "slider",
            )
        )
    controls.append(shared("gpu", gpu and gpu.name))
    parts = [
        (part, draw.part(part).label, expression) for part, expression in derivation.parts.items() if expression != 0
    ]
    said = [c.name for c in controls if c.name != "gpu"]
    base = {name: 1 for name, letter in (("batch", "B"), ("sequence", "S")) if letter not in derivation.letters}
    return Explorer(_TITLE.format(name=derivation.name), controls, Stack(parts), base=base, subject=[], also=said)
