"""Chapter 35's explorer: what ring attention keeps and takes on each of the GPUs that share a sequence."""

from ..ask.mesh import Mesh
from ..ask.setup import Setup
from .beside import said
from .controls import Choice, gpus_label, opens, powers, steps
from .explorer import Explorer, told
from .pictures import Stack

_GPUS = powers(2, 7)
_TOKENS = (32_768, 131_072, 1_048_576, 4_194_304)


@opens
def ring(size: str = "Llama-3.1-8B", setup: Setup | None = None) -> Explorer:
    """Bytes of one layer's attention in 16 bits on one of 4 to 128 GPUs that share each sequence: kept, and what backward takes beside.

    Args:
        size: a model's heads, one of those in explorers.toml. setup: whose sequence and mesh it opens with.

    Raises:
        ValueError: another size, sequence or number of GPUs.
    """
    from sympy import floor

    from ..common import checks
    from ..formulas.context import BACKWARD, KEPT

    sizes = said("ring")["sizes"]
    checks.one_of("ring", "size", size, sizes)
    setup = setup or Setup(batch=1, sequence=1_048_576, gpus=16, mesh=Mesh(context=16))
    for name, value, offered in (("mesh.context", setup.mesh.context, _GPUS), ("sequence", setup.sequence, _TOKENS)):
        if value not in offered:
            raise ValueError(f"ring.setup.{name}: {value} is not offered; allowed: {', '.join(map(str, offered))}")
    tokens = {f"{n:,}": {"sequence": n} for n in _TOKENS}
    controls = [
        Choice("size", "model", sizes, size),
        Choice("rotation", "rotation", said("ring")["ways"], setup.mesh.rotation),
        Choice("tokens", "sequence (tokens)", tokens, f"{setup.sequence:,}"),
        steps("context", "GPUs", _GPUS, setup.mesh.context, said=gpus_label),
    ]
    parts = [
        ("activations", "kept for backward", floor(KEPT.expr)),
        ("communication", "in backward, beside it", floor(BACKWARD.expr)),
    ]
    return told("ring", controls, Stack(parts, bars="context"))
