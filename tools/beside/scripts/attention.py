"""Which kernel PyTorch's attention takes, what it keeps for backward, and what it needs beside: JSON rows.

Each row: [what, kernel, bytes that forward leaves beside its result, the most of forward above its start, the most of backward above its end].
"""

import itertools
import json

import torch
from counted import now
from torch.nn.functional import scaled_dot_product_attention as attention

SHAPES = [(2, 16, 16, 1024, 64), (2, 32, 8, 2048, 128), (1, 12, 12, 4096, 64), (3, 5, 5, 333, 60), (2, 8, 2, 1024, 256)]


def kept(dtype, batch, heads, kv, length, width, masked, dropout):
    made = [
        torch.randn(batch, n, length, width, dtype=dtype, device="cuda", requires_grad=True) for n in (heads, kv, kv)
    ]
    mask = torch.ones(batch, 1, length, length, dtype=torch.bool, device="cuda").tril() if masked else None
    how = {"attn_mask": mask, "dropout_p": dropout, "is_causal": not masked, "enable_gqa": heads != kv}
    chosen = torch._fused_sdp_choice(*made, mask, dropout, not masked, enable_gqa=heads != kv)
    for _ in range(2):  # the first call makes what stays
        torch.cuda.reset_peak_memory_stats()
        before = now()[0]
        out = attention(*made, **how)
        current, peak = now()
        left, most = current - before - out.nbytes, peak - before
        grad = torch.randn_like(out)
        torch.cuda.reset_peak_memory_stats()
        torch.autograd.grad(out, made, grad)
        current, peak = now()
        above = peak - current
        del out, grad
    return chosen, left, most, above


rows = []
for dtype, shape, masked, dropout in itertools.product(
    (torch.bfloat16, torch.float32), SHAPES, (False, True), (0.0, 0.1)
):
    what = [str(dtype).removeprefix("torch."), *shape, "mask" if masked else "causal", dropout]
    try:
        rows.append([what, *kept(dtype, *shape, masked, dropout)])
    except RuntimeError as error:
        rows.append([what, str(error)[:200]])
print("FOUND", json.dumps(rows))
