"""What convolutions need beside their results: JSON rows of [what, the most of forward above its end, that of backward].

The sizes are of ResNets and of a UNet of Stable Diffusion's.
"""

import itertools
import json

import torch
from counted import now
from torch import nn

CASES = [  # batch, in, out, size, kernel, stride, groups
    (8, 3, 64, 224, 7, 2, 1), (8, 64, 64, 56, 1, 1, 1), (8, 64, 64, 56, 3, 1, 1), (8, 128, 256, 28, 3, 2, 1),
    (4, 320, 320, 64, 3, 1, 1), (4, 640, 640, 32, 3, 1, 1), (4, 1280, 1280, 16, 3, 1, 1), (4, 4, 320, 64, 3, 1, 1),
    (8, 128, 128, 28, 3, 1, 128), (2, 512, 512, 64, 3, 1, 1),
]  # fmt: skip


def needed(dtype, layout, batch, inner, outer, size, kernel, stride, groups):
    layer = nn.Conv2d(inner, outer, kernel, stride, kernel // 2, groups=groups, device="cuda", dtype=dtype)
    layer = layer.to(memory_format=layout)
    x = torch.randn(batch, inner, size, size, device="cuda", dtype=dtype).to(memory_format=layout).requires_grad_()
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        out = layer(x)
        current, peak = now()
        forward = peak - current
        grad = torch.randn_like(out)
        torch.cuda.reset_peak_memory_stats()
        found = torch.autograd.grad(out, [x, layer.weight, layer.bias], grad)
        current, peak = now()
        backward = peak - current
        del found, out, grad
    return forward, backward


rows = []
for dtype, layout, case in itertools.product(
    (torch.float32, torch.bfloat16), (torch.contiguous_format, torch.channels_last), CASES
):
    what = [str(dtype).removeprefix("torch."), str(layout).removeprefix("torch."), *case]
    rows.append([what, *needed(dtype, layout, *case)])
print("FOUND", json.dumps(rows))
