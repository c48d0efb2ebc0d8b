"""What a block of a Llama keeps for backward."""

from .registry import register
from .step import FLASH
from .symbols import A, A_kv, B, D, F, H, S, autocast, c, w

_stream = 2 * w * H + 2 * 4  # what each norm reads of the residual stream, and its one fp32 number a token
_normed = (
    (2 + 3 * autocast) * c * H
)  # q, k, v share a norm's output, gate and up another's; each autocast copy is its own
_attention = 2 * c * D * (A + A_kv)  # the turned queries and keys, the values, the heads' output
_mlp = 4 * c * F  # gate, SiLU of it, up, their product
LLAMA_BLOCK = register(
    "activations.llama", "what one block of a Llama keeps for backward",
    B * S * (_stream + _normed + _attention + _mlp) + FLASH.expr, "B",
    source="PyTorch, tools/autograd/derivatives.yaml: what each backward reads; Shazeer 2020, arXiv:2002.05202 (SwiGLU)",
    chapter="14_activations",
    assumptions=(
        "no checkpointing", "flash attention; in fp32, as many key heads as query heads",
        "heads that are a multiple of eight wide", "queries and keys are turned before heads and tokens change places",
    ),
)  # fmt: skip
