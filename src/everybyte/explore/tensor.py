"""Chapter 33's explorer: what one block keeps on each of the GPUs that divide its matrices."""

from ..mesh import Mesh
from ..setup import Setup
from .controls import Choice, opens, shared
from .explorer import Explorer
from .pictures import Stack

#: Megatron's own sizes: width, heads. Source: Korthikanti et al. 2022, arXiv:2205.05198, table 3.
SIZES = {"22B": (6144, 64), "175B": (12288, 96), "530B": (20480, 128), "1T": (25600, 160)}
_GPUS = (1, 2, 4, 8, 16)
_PARTS = [
    ("buffers", "statistics", "statistics"),
    ("activations", "within heads and MLP", "within"),
    ("communication", "gathered for the matrices", "given"),
    ("other", "between the matrices", "between"),
]


def _label(gpus):
    return f"{gpus} GPU{'s' * (gpus > 1)}"


@opens
def tensor(size: str = "22B", setup: Setup | None = None) -> Explorer:
    """Bytes that one block of a GPT keeps for backward in bf16 with flash attention, on each of 1 to 16 GPUs that divide it.

    Args:
        size: of Megatron's, `22B`, `175B`, `530B` or `1T`. setup: whose batch, sequence, dropout and mesh it opens with.

    Raises:
        ValueError: another size; a batch or a sequence that is no power of two; more than 16 GPUs, or no power of two.
    """
    from sympy import floor

    from .. import checks
    from ..formulas.tensor_parallel import KEPT

    checks.one_of("tensor", "size", size, SIZES)
    setup = setup or Setup(batch=1, sequence=2048, dropout=0.1, gpus=8, mesh=Mesh(tensor=8))
    if setup.mesh.tensor not in _GPUS:
        raise ValueError(
            f"tensor.setup.mesh.tensor: {setup.mesh.tensor} is not offered; allowed: {', '.join(map(str, _GPUS))}"
        )
    sizes = {name: {"width": width, "heads": heads, "ffn_width": 4 * width} for name, (width, heads) in SIZES.items()}
    plans = {"sequence parallel": {"sequence_parallel": 1}, "tensor parallel alone": {"sequence_parallel": 0}}
    masks = {"no dropout": {"dropout": 0}, "dropout": {"dropout": 1}}
    controls = [
        Choice("size", "model", sizes, size),
        Choice("plan", "plan", plans, list(plans)[not setup.mesh.sequence_parallel]),
        Choice("dropout", "dropout", masks, list(masks)[setup.dropout > 0]),
        shared("batch", f"{setup.batch:,}"),
        shared("sequence", f"{setup.sequence:,}"),
        Choice("tensor", "GPUs", {_label(n): {"tensor": n} for n in _GPUS}, _label(setup.mesh.tensor), kind="slider"),
    ]
    usual = {"size": "22B", "dropout": "dropout", "batch": "1", "sequence": "2,048", "tensor": _label(8)}
    presets = {
        "22B, sequence parallel": usual | {"plan": "sequence parallel"},
        "175B, tensor parallel alone": usual | {"plan": "tensor parallel alone", "size": "175B"},
        "1T on 16 GPUs": usual | {"plan": "sequence parallel", "size": "1T", "tensor": _label(16)},
    }
    return Explorer(
        "What one block keeps on each GPU",
        controls,
        Stack([(part, label, floor(KEPT[kind])) for part, label, kind in _PARTS], bars="tensor"),
        presets,
        base={"weight_bytes": 2},
        subject=("size", "plan", "dropout", "batch", "sequence", "tensor"),
    )
