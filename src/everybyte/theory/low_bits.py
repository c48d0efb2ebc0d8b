"""torchao's AdamW with states in 8 or 4 bits: what it keeps of a tensor, and what its compiled step makes.

Sources: torchao 0.18, `optim/adam.py`, `subclass_8bit.py`, `subclass_4bit.py`, `subclass_fp8.py`; the code that PyTorch 2.13's Inductor
writes for `single_param_adam`, which `tests/dryrun/test_lowered.py` reads.

Under FSDP2 a state is made of what this GPU has of the weight, and the step is compiled for that alone, as if it were all: the `DTensor`s
around it ask for nothing, and no GPU is asked for anything.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from .letters import over


class Form(NamedTuple):
    """How a state is quantized. block: numbers with one scale in fp32. codes: how many in a byte. table: of fp32, what codes mean."""

    block: int
    codes: int
    table: int


FORMS = {"torchao-adamw8bit": Form(256, 1, 256), "adamw4bit": Form(128, 2, 16), "adamwfp8": Form(256, 1, 0)}
#: Numbers in a tensor from which on its states are quantized.
QUANTIZED = 4096


def quantized(optimizer: str, numbers: int) -> bool:
    """Whether the states of a tensor of so many numbers are; others are as the tensor is."""
    return numbers >= QUANTIZED and numbers % FORMS[optimizer].block == 0


def state(optimizer: str, numbers, width) -> list[tuple]:
    """(numbers, bytes of each) of the tensors that one of the two states is made of. width: of the tensor's own numbers."""
    if not quantized(optimizer, numbers):
        return [(numbers, width)]
    form = FORMS[optimizer]
    return [(over(numbers, form.codes), 1), (over(numbers, form.block), 4), *[(form.table, 4)] * (form.table > 0)]


def made(optimizer: str, shape: Sequence[int]) -> tuple[str, ...]:
    """Which buffers the compiled step makes of each state, to be dropped when it has moved the tensor.

    The step is one kernel for each block that has its largest number, and what follows, where both have the same loops. Else numbers
    wait: `scales`, `wide` for what is to be quantized, in fp32, `places` for 4-bit codes before two are packed, in int64, and `codes`.
    """
    form, shape = FORMS[optimizer], [n for n in shape if n != 1]
    if not quantized(optimizer, prod(shape)):
        return ()
    row, block = len(shape) <= 1, form.block
    before = next(
        (i for i in range(1, len(shape)) if prod(shape[i:]) == block), None
    )  # dimensions that count whole blocks
    counted = before == 1  # by one dimension alone
    if optimizer == "adamw4bit":
        return ("wide", "places") if counted else ("scales", "wide", "places")
    if optimizer == "adamwfp8":
        split = not row and before is None and block % shape[-1] == 0
        return () if counted else ("scales", "codes") if split else ("scales",)
    if row or (before is not None and not (counted and len(shape) > 2)):
        return ()
    return ("wide",) if counted else ("scales", "wide")


def temporaries(optimizer: str, shape: Sequence[int], numbers) -> list[tuple]:
    """(numbers, bytes of each) of all that the compiled step makes; `numbers` are the shape's product."""
    sizes = {
        "scales": (over(numbers, FORMS[optimizer].block), 4), "wide": (numbers, 4), "places": (numbers, 8), "codes": (numbers, 1),
    }  # fmt: skip
    return [sizes[name] for name in made(optimizer, shape) for _ in range(2)]
