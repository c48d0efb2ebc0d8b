"""LoRA of Lit-GPT in October 2023, on one GPU: the first iteration, which has the longest sample. Everything is bf16, but what Fabric
gives back: the model's logits, in fp32.

Said as `lit_gpt/model.py`, `lit_gpt/lora.py` and `finetune/lora.py` have it at commit 8641822: rank 8 on queries and values, dropout of
0.05 before it, head and loss in chunks of 128 tokens. Llama's norms are in fp32, as they are from 6178c7c, a week later, on.
"""

import argparse
from dataclasses import dataclass

import torch
from _norms import RMSNorm
from torch import nn
from torch.nn import functional as F


@dataclass
class Shape:
    width: int
    blocks: int
    heads: int
    vocabulary: int
    turned: float  # share of a head that rotary positions turn
    ffn: int = 0
    shared: bool = False  # attention and MLP have one norm
    llama: bool = False
    norm: type = nn.LayerNorm


MODELS = {
    "phi-1.5": Shape(2048, 24, 32, 51200, 0.5, shared=True),
    "stablelm-3b": Shape(4096, 16, 32, 50688, 0.25),
    "llama-2-7b": Shape(4096, 32, 32, 32000, 1.0, 11008, llama=True),
    "llama-2-13b": Shape(5120, 40, 40, 32000, 1.0, 13824, llama=True),
}


class WideNorm(RMSNorm):
    def forward(self, x):
        return (self.normed(x) * self.weight).type_as(x)


class NarrowNorm(RMSNorm):
    def forward(self, x):
        return self.weight * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps))


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        width, self.shape = shape.width, shape
        self.attn = nn.Linear(width, 3 * width, bias=not shape.llama)
        self.proj = nn.Linear(width, width, bias=not shape.llama)
        self.a, self.b = nn.Parameter(torch.zeros(16, width)), nn.Parameter(torch.zeros(2 * width, 8))
        self.places = torch.cat([torch.arange(width), torch.arange(2 * width, 3 * width)]).tolist()

    def adapted(self, x):  # queries and values; keys get zeros
        down = F.linear(F.dropout(x, 0.05), self.a)
        up = F.conv1d(down.transpose(-2, -1), self.b.unsqueeze(-1), groups=2).transpose(-2, -1)
        up = up.transpose(0, 1)
        wide = up.new_zeros(up.size(0) * up.size(1), 3 * self.shape.width)
        wide = wide.index_copy(1, torch.tensor(self.places, device=wide.device), up.reshape(-1, 2 * self.shape.width))
        return self.attn(x) + wide.view(*up.shape[:-1], -1).transpose(0, 1) * 2.0

    def forward(self, x, cos, sin):
        batch, length, width = x.shape
        heads, size = self.shape.heads, width // self.shape.heads
        qkv = self.adapted(x).view(batch, length, heads, 3, size).permute(0, 2, 3, 1, 4)
        q, k, v = (part.reshape(batch, heads, length, size) for part in qkv.split(1, 2))
        q, k = (self.turn(t, cos, sin) for t in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, length, width))

    def turn(self, x, cos, sin):
        turned = x[..., : cos.size(-1)]
        left, right = turned.chunk(2, -1)
        turned = (turned * cos + torch.cat((-right, left), -1) * sin).type_as(x)
        return torch.cat((turned, x[..., cos.size(-1) :]), -1)


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        width, self.shape = shape.width, shape
        norm = shape.norm
        self.norm1, self.attention = norm(width), Attention(shape)
        self.norm2 = None if shape.shared else norm(width)
        ffn = shape.ffn or 4 * width
        self.fc = nn.ModuleList(nn.Linear(width, ffn, bias=not shape.llama) for _ in range(1 + shape.llama))
        self.proj = nn.Linear(ffn, width, bias=not shape.llama)

    def mlp(self, x):
        if self.shape.llama:
            return self.proj(F.silu(self.fc[0](x)) * self.fc[1](x))
        return self.proj(F.gelu(self.fc[0](x), approximate="tanh" if self.shape.shared else "none"))

    def forward(self, x, cos, sin):
        normed = self.norm1(x)
        h = self.attention(normed, cos, sin)
        if not self.shape.llama:
            return x + h + self.mlp(normed if self.norm2 is None else self.norm2(x))
        x = x + h
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.embed = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.blocks))
        self.norm = shape.norm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=shape.shared)

    def forward(self, ids, cos, sin):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, cos, sin)
        return [self.head(part) for part in self.norm(x).split(128, dim=1)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("length", type=int)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--narrow", action="store_true", help="logits stay in bf16")
    parser.add_argument("--narrow-norms", action="store_true", help="and so do Llama's norms")
    given = parser.parse_args()
    shape = MODELS[given.model]
    if shape.llama:
        shape.norm = NarrowNorm if given.narrow_norms else WideNorm
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = GPT(shape)
    torch.set_default_dtype(torch.float32)
    for name, p in model.named_parameters():
        p.requires_grad_(name.endswith((".a", ".b")))
    cos, sin = (
        torch.zeros(given.length, int(shape.turned * shape.width // shape.heads), device="cuda") for _ in range(2)
    )
    for _ in range(2):
        ids, targets = (torch.zeros(given.batch, given.length, dtype=torch.int64).to("cuda") for _ in range(2))
        logits = model(ids, cos, sin)
        if not given.narrow:
            logits = [part.float() for part in logits]
        logits[-1] = logits[-1][..., :-1, :]
        parts = zip(logits, targets[..., 1:].split(128, dim=1), strict=True)
        losses = [
            F.cross_entropy(some.reshape(-1, some.size(-1)), wanted.reshape(-1), reduction="none")
            for some, wanted in parts
        ]
        (torch.cat(losses).mean() / 32).backward()
        del losses


main()
