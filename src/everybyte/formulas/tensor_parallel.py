"""Tensor and sequence parallelism in closed form: what a GPT's block keeps, what stays whole, what goes from GPU to GPU.

What PyTorch's `DTensor` makes of it, operation by operation, is `theory/tensor_parallel.py`; these are its sums.
"""

from sympy import Add, Integer

from ..rules import formulas as rows
from .registry import register
from .symbols import (
    A,
    B,
    F,
    H,
    L,
    P,
    S,
    V,
    dropped,
    ffn_bias,
    final_norm,
    loss_parallel,
    norm_bias,
    out_bias,
    sequence_parallel,
    t,
    w,
)  # fmt: skip

_CHAPTER = "33_tensor_and_sequence_parallel"
_MEGATRON = "Korthikanti et al. 2022, arXiv:2205.05198"
_DTENSOR = "PyTorch, torch/distributed/tensor: parallel/style.py, placement_types.py"

#: The part of the tokens that a GPU has between the divided matrices.
TOKENS = sequence_parallel / t + (1 - sequence_parallel)


#: In a block, a token's numbers that stand between heads or in the MLP: query, key, value, what attention gives; up, activation.
WITHIN = 4 * H + 2 * F
#: Between them: what both norms are given.
BETWEEN = 2 * H
#: What the divided matrices are given, which each needs of every token.
GIVEN = 2 * H

#: The bytes of each kind that a block keeps, in 16 bits; norms' and attention's statistics, and dropout's masks, apart.
KEPT = {
    "within": w * B * S * WITHIN / t,
    "between": B * S * (w * BETWEEN + 2 * dropped * H) * TOKENS,
    "given": w * B * S * GIVEN,
    "statistics": B * S * (16 * TOKENS + 4 * A / t) + 24,
}
BLOCK = register(
    "tensor.block", "what one block of a GPT keeps for backward on one GPU", Add(*KEPT.values()), "B",
    source=_DTENSOR, chapter=_CHAPTER,
    assumptions=(
        "16 bits, flash attention, an activation that saves its input",
        "tokens are gathered once before attention and MLP, and kept gathered",
    ),
    refuses=rows.SIXTEEN_BITS,
)  # fmt: skip
MEGATRON = register(
    "tensor.block.megatron", "the same where tokens are gathered again in backward, without statistics",
    B * S * (w * (WITHIN / t + (BETWEEN + GIVEN) * TOKENS) + 2 * dropped * H * TOKENS), "B",
    source=f"{_MEGATRON}, equations 2 to 4", chapter=_CHAPTER,
    assumptions=("16 bits, flash attention; without sequence parallelism what stands between matrices is whole",),
    refuses=rows.SIXTEEN_BITS,
)  # fmt: skip


WHOLE = register(
    "tensor.whole", "parameters that every GPU has: norms, and biases that are added to sums",
    L * (2 * (1 + norm_bias) + out_bias + ffn_bias) * H + final_norm * (1 + norm_bias) * H, "parameters",
    source=_DTENSOR, chapter=_CHAPTER, refuses=rows.WHOLE,
)  # fmt: skip
HELD = register(
    "tensor.parameters", "parameters that one GPU holds", WHOLE.expr + (P - WHOLE.expr) / t, "parameters",
    source=_DTENSOR, chapter=_CHAPTER,
    assumptions=("heads, the MLP's units, vocabulary and positions divide by t",), refuses=rows.WHOLE,
)  # fmt: skip
SENT = register(
    "tensor.sent", "bytes that one GPU sends for one block, forward and backward", 8 * (t - 1) / t * w * B * S * H, "B",
    source=f"Shoeybi et al. 2019, arXiv:1909.08053, section 3; {_MEGATRON}, section 4.2.2", chapter=_CHAPTER,
    assumptions=(
        "collectives go round a ring, in which a sum on every GPU is a scatter and a gather",
        "nothing is recomputed; a query's, key's and value's gradients are added before they are sent",
    ),
)  # fmt: skip
LOSS = register(
    "tensor.loss", "the large tensors at the loss's peak",
    B * S * V * Add(16 * loss_parallel / t, 3 * w * (1 - loss_parallel)), "B",
    source="PyTorch, torch/distributed/tensor/parallel/loss.py", chapter=_CHAPTER,
    assumptions=("logits in the type of the weights; divided, the log-softmax computes in fp32",),
)  # fmt: skip
#: GPUs from which on a divided loss takes less than a gathered one: in fp32 from two, in 16 bits from three.
PAYS = Integer(16) / (3 * w)
