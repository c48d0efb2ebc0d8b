"""Chapter 33's explorer: what one block keeps on each of the GPUs that divide its matrices."""

from ..ask.mesh import Mesh
from ..ask.setup import Setup
from .beside import said
from .controls import Choice, asked, dropout_of, gpus_label, opens, powers, steps
from .explorer import Explorer, told
from .pictures import Stack

_GPUS = powers(0, 4)


@opens
def tensor(size: str = "22B", setup: Setup | None = None) -> Explorer:
    """Bytes that one block of a GPT keeps for backward in bf16 with flash attention, on each of 1 to 16 GPUs that divide it.

    Args:
        size: of Megatron's, `22B`, `175B`, `530B` or `1T`. setup: whose batch, sequence, dropout and mesh it opens with.

    Raises:
        ValueError: another size; a batch or a sequence that is no power of two; more than 16 GPUs, or no power of two.
    """
    from sympy import floor

    from ..common import checks
    from ..formulas.tensor_parallel import KEPT

    sizes, plans = said("tensor")["sizes"], said("tensor")["plans"]
    checks.one_of("tensor", "size", size, sizes)
    setup = setup or Setup(batch=1, sequence=2048, dropout=0.1, gpus=8, mesh=Mesh(tensor=8))
    if setup.mesh.tensor not in _GPUS:
        raise ValueError(
            f"tensor.setup.mesh.tensor: {setup.mesh.tensor} is not offered; allowed: {', '.join(map(str, _GPUS))}"
        )
    controls = [
        Choice("size", "model", sizes, size),
        Choice("plan", "plan", plans, list(plans)[not setup.mesh.sequence_parallel]),
        dropout_of(setup),
        *asked(setup, "batch", "sequence"),
        steps("tensor", "GPUs", _GPUS, setup.mesh.tensor, said=gpus_label),
    ]
    parts = [(part, label, floor(KEPT[kind])) for part, label, kind in said("tensor")["parts"]]
    return told("tensor", controls, Stack(parts, bars="tensor"))
