"""Layers of a product, a norm and a GELU, checkpointed and compiled or not: `python layers.py WORD ...`, words of `checkpoint`, `compile`,
`reduce-overhead`, `budget=0.5`, `layers=5`; with `gpt` or `llama` blocks of these, in `gpt=float32` or another type.

It prints, after FOUND, of each of four steps what PyTorch's allocator had over the step's start after forward and at most, and what it had
reserved. It knows nothing of rehearsals.
"""

import json
import sys

import torch
import torch._functorch.config
from torch import nn
from torch.utils.checkpoint import checkpoint

words = dict(word.partition("=")[::2] for word in sys.argv[1:])
width, rows, layers = 2048, 8192, int(words.get("layers", 5))


def layer():
    """A product, a norm and a GELU."""
    return nn.Sequential(nn.Linear(width, width), nn.LayerNorm([width]), nn.GELU())


class Layers(nn.Module):
    """One after the other."""

    def __init__(self):
        super().__init__()
        made = Gpt if "gpt" in words else Llama if "llama" in words else layer
        self.layers = nn.ModuleList(made() for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if "checkpoint" in words else layer(x)
        return x


def attended(q, k, v, heads):
    """Attention of (1, rows, .) tensors."""
    q, k, v = (t.view(1, t.shape[1], -1, width // heads).transpose(1, 2) for t in (q, k, v))
    y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] > k.shape[1])
    return y.transpose(1, 2).reshape(1, -1, width)


class Gpt(nn.Module):
    """GPT-2's block."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.out(attended(*self.qkv(self.norms[0](x)).chunk(3, dim=2), 16))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


class Llama(nn.Module):
    """Llama's block, without rotary positions."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        sizes = {"q": width, "k": width // 4, "v": width // 4, "out": width}
        self.attention = nn.ModuleDict({name: nn.Linear(width, n, bias=False) for name, n in sizes.items()})
        self.gate, self.up, self.down = (
            nn.Linear(a, b, bias=False) for a, b in ((width, 7168), (width, 7168), (7168, width))
        )

    def forward(self, x):
        y, of = self.norms[0](x), self.attention
        x = x + of["out"](attended(of["q"](y), of["k"](y), of["v"](y), 16))
        y = self.norms[1](x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def counted(name="current", what="requested"):
    """Bytes of the allocator's."""
    return torch.cuda.memory_stats()[f"{what}_bytes.all.{name}"]


if "budget" in words:
    torch._functorch.config.activation_memory_budget = float(words["budget"])
dtype = getattr(torch, words.get("gpt") or words.get("llama") or "bfloat16")
model = Layers().to(dtype).cuda()
if "compile" in words or "reduce-overhead" in words:
    model = torch.compile(model, mode="reduce-overhead" if "reduce-overhead" in words else "default")
shape = (1, 2048, width) if {"gpt", "llama"} & set(words) else (rows, width)
x = torch.zeros(shape, device="cuda", dtype=dtype)
found = []
for _ in range(4):
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = counted()
    loss = model(x).sum()
    left = counted() - start
    loss.backward()
    model.zero_grad()
    del loss
    found.append([left, counted("peak") - start, counted("peak", "reserved")])
print("FOUND", json.dumps(found))
