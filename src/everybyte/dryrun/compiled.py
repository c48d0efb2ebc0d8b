"""What forward saves under `torch.compile`: the partitioner's choice, without a GPU and without compiling a kernel."""

import torch

from ..ask.setup import Setup
from ..catalog import Model
from ..reference import GPT
from ..rules import CUT, check
from . import saving


def partitioned(model: Model, setup: Setup, budget: float = 1.0) -> tuple[int, int]:
    """(bytes that forward saves for backward without weights and inputs, FLOPs of backward's products) of a compiled GPT.

    PyTorch's min-cut partitioner divides AOTAutograd's joint graph, as `torch.compile` does on a GPU. The peak of a compiled step
    depends on Inductor's buffers, and is not given. FLOPs are those of `torch.utils.flop_counter`: matrix products and attention.

    Args:
        model, setup: a GPT in fp32 with flash attention; the setup's batch and sequence are used.
        budget: `torch._functorch.config.activation_memory_budget`, from 1 (no matrix product is recomputed) to 0 (only inputs are
            saved).

    Raises:
        ValueError: for other precisions or attentions, and a budget out of range.
    """
    check(CUT, setup)
    tokens = torch.zeros(setup.batch, setup.sequence, dtype=torch.int64)
    found, flops = saving.compiled(lambda: GPT(model, setup), tokens, tokens, budget=budget)
    return sum(one.bytes for one in found if one.made not in ("parameter", "input")), flops
