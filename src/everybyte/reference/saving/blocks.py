"""Checkpointing as torchtitan applies it to a model that is made: of some blocks, or of a part of each block's operations.

Source: torchtitan, distributed/activation_checkpoint.py, `_apply_layer_sac` and `_apply_op_sac`.
"""

from collections import Counter
from functools import partial

import torch
from torch.utils import checkpoint

from ..gpt import PRODUCTS

aten = torch.ops.aten
#: What is saved beside every second product: what attention's kernels give, and a sum over GPUs of which each has some tokens.
ALWAYS = [*PRODUCTS[4:7], torch.ops._c10d_functional.reduce_scatter_tensor.default]


def checkpointed(module, setup):
    """The module, with the blocks that backward recomputes called by `checkpoint`, if the setup says some. Returns it."""
    for i, block in enumerate(module.blocks, 1):
        if setup.checkpointing == "one-in-k" and i % setup.checkpoint_every == 0:
            block.forward = partial(checkpoint.checkpoint, block.forward, use_reentrant=False)
        if setup.checkpointing == "second-products":
            how = {"use_reentrant": False, "context_fn": second_products}
            block.forward = partial(checkpoint.checkpoint, block.forward, **how)
    return module


def second_products():
    """Contexts of a checkpoint that saves what `ALWAYS` names, and of products without a bias the first, the third, the fifth."""
    seen = Counter()

    def policy(context, op, *_, **__):
        if op == aten.mm.default:
            seen[context.is_recompute] += 1
            saved = seen[context.is_recompute] % 2 == 1
        else:
            saved = op in ALWAYS
        return checkpoint.CheckpointPolicy.MUST_SAVE if saved else checkpoint.CheckpointPolicy.PREFER_RECOMPUTE

    return checkpoint.create_selective_checkpoint_contexts(policy)
