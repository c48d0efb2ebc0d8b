"""Chapter 35's explorer: what ring attention keeps and takes on each of the GPUs that share a sequence."""

from ..mesh import Mesh
from ..setup import Setup
from .controls import Choice, opens
from .explorer import Explorer
from .pictures import Stack

#: Query heads, key and value heads, width of a head.
SIZES = {
    "Llama-3.1-8B": (32, 8, 128), "Llama-3.1-70B": (64, 8, 128), "Qwen2.5-7B": (28, 4, 128), "one key head for 32": (32, 1, 128),
}  # fmt: skip
_GPUS = (4, 8, 16, 32, 64, 128)
_TOKENS = (32_768, 131_072, 1_048_576, 4_194_304)
_PARTS = [
    ("activations", "kept for backward", "kept"),
    ("communication", "in backward, beside it", "backward"),
]


@opens
def ring(size: str = "Llama-3.1-8B", setup: Setup | None = None) -> Explorer:
    """Bytes of one layer's attention in 16 bits on one of 4 to 128 GPUs that share each sequence: kept, and what backward takes beside.

    Args:
        size: a model's heads, one of `SIZES`. setup: whose sequence and mesh it opens with.

    Raises:
        ValueError: another size, sequence or number of GPUs.
    """
    from sympy import floor

    from .. import checks
    from ..formulas.context import BACKWARD, KEPT

    checks.one_of("ring", "size", size, SIZES)
    setup = setup or Setup(batch=1, sequence=1_048_576, gpus=16, mesh=Mesh(context=16))
    for name, value, offered in (("mesh.context", setup.mesh.context, _GPUS), ("sequence", setup.sequence, _TOKENS)):
        if value not in offered:
            raise ValueError(f"ring.setup.{name}: {value} is not offered; allowed: {', '.join(map(str, offered))}")
    forms = dict(zip(("kept", "backward"), (KEPT, BACKWARD), strict=True))
    sizes = {name: {"heads": a, "kv_heads": k, "head_width": d} for name, (a, k, d) in SIZES.items()}
    ways = {"all-gather": {"gathers": 1}, "all-to-all": {"gathers": 0}}
    gpus = {f"{n} GPUs": {"context": n} for n in _GPUS}
    controls = [
        Choice("size", "model", sizes, size),
        Choice("rotation", "rotation", ways, setup.mesh.rotation),
        Choice("tokens", "sequence (tokens)", {f"{n:,}": {"sequence": n} for n in _TOKENS}, f"{setup.sequence:,}"),
        Choice("context", "GPUs", gpus, f"{setup.mesh.context} GPUs", kind="slider"),
    ]
    usual = {"size": "Llama-3.1-8B", "tokens": "1,048,576"}
    presets = {
        "a million tokens, gathered": usual | {"rotation": "all-gather", "context": "64 GPUs"},
        "a million tokens, around the ring": usual | {"rotation": "all-to-all", "context": "64 GPUs"},
        "as torchtitan trains, 131,072": usual | {"rotation": "all-gather", "tokens": "131,072", "context": "8 GPUs"},
    }
    return Explorer(
        "What one layer's attention takes on each GPU of a ring",
        controls,
        Stack([(part, label, floor(forms[kind].expr)) for part, label, kind in _PARTS], bars="context"),
        presets,
        base={"batch": 1, "compute_bytes": 2},
        subject=("size", "rotation", "tokens", "context"),
    )
