"""A training step as torchtune takes it on one GPU: Llama 3 with weights, activations and states in bf16.

Said as its code has it: `torchtune/modules/transformer.py`, `modules/loss/ce_chunked_output_loss.py`, `recipes/*_single_device.py`.
A packed dataset's mask is said as causal attention: both keep what FlashAttention keeps.
"""

import argparse

import torch
from _norms import RMSNorm
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

#: width, blocks, query heads, key heads, feed-forward's width, whether the head is the embedding
MODELS = {"3b": (3072, 28, 24, 8, 8192, True), "8b": (4096, 32, 32, 8, 14336, False)}
VOCABULARY = 128256


class Lora(nn.Module):
    def __init__(self, wide, narrow, rank):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(narrow, wide), requires_grad=False)
        self.a, self.b = nn.Linear(wide, rank, bias=False), nn.Linear(rank, narrow, bias=False)

    def forward(self, x):
        return F.linear(x, self.weight) + 2.0 * self.b(self.a(x))


def turned(x, turns):  # (B, S, A, D), (S, D / 2, 2)
    pairs, turns = x.float().reshape(*x.shape[:-1], -1, 2), turns[None, :, None]
    even = pairs[..., 0] * turns[..., 0] - pairs[..., 1] * turns[..., 1]
    odd = pairs[..., 1] * turns[..., 0] + pairs[..., 0] * turns[..., 1]
    return torch.stack([even, odd], -1).flatten(3).type_as(x)


class Block(nn.Module):
    def __init__(self, given):
        super().__init__()
        width, _, heads, keys, ffn, _ = MODELS[given.model]
        self.size = width // heads
        made = (lambda a, b: Lora(a, b, given.rank)) if given.rank else (lambda a, b: nn.Linear(a, b, bias=False))
        plain = made if given.rank == 0 else _frozen
        self.q, self.v, self.out = made(width, width), made(width, keys * self.size), made(width, width)
        self.k = plain(width, keys * self.size)
        self.gate, self.up, self.down = made(width, ffn), made(width, ffn), made(ffn, width)
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)

    def forward(self, x, turns):
        batch, length = x.shape[:2]
        y = self.norm1(x)
        q, k, v = (layer(y).view(batch, length, -1, self.size) for layer in (self.q, self.k, self.v))
        q, k = turned(q, turns).transpose(1, 2), turned(k, turns).transpose(1, 2)
        groups = q.size(1) // k.size(1)
        k, v = (t[:, :, None].expand(-1, -1, groups, -1, -1).flatten(1, 2) for t in (k, v.transpose(1, 2)))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).contiguous().view(batch, length, -1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def _frozen(wide, narrow):
    return nn.Linear(wide, narrow, bias=False).requires_grad_(False)


class Llama(nn.Module):
    def __init__(self, given):
        super().__init__()
        width, blocks, _, _, _, tied = MODELS[given.model]
        self.embed, self.given = nn.Embedding(VOCABULARY, width), given
        self.blocks = nn.ModuleList(Block(given) for _ in range(blocks))
        self.norm = RMSNorm(width)
        self.head = None if tied else nn.Linear(width, VOCABULARY, bias=False)
        if given.rank:
            for module in (self.embed, self.norm, self.head, *(n for b in self.blocks for n in (b.norm1, b.norm2))):
                if module is not None:
                    module.requires_grad_(False)

    def forward(self, tokens, turns):
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, turns, use_reentrant=False) if self.given.checkpoint else block(x, turns)
        x, weight = self.norm(x), self.embed.weight if self.head is None else self.head.weight
        if self.given.chunks:
            return [F.linear(part, weight) for part in x.tensor_split(self.given.chunks, dim=1)]
        return F.linear(x, weight).float()


def summed(logits, labels):
    return F.cross_entropy(logits.float(), labels, reduction="sum")


def loss_of(outputs, labels, summed):
    if not isinstance(outputs, list):
        return F.cross_entropy(outputs.reshape(-1, VOCABULARY), labels.reshape(-1))
    labels = [part.reshape(-1) for part in labels.tensor_split(len(outputs), dim=1)]
    outputs = [part.reshape(-1, VOCABULARY) for part in outputs]
    total = 0.0
    for some, wanted in zip(outputs, labels, strict=True):
        total += summed(some, wanted)
    return total


def optimizer_of(model, given):
    """AdamW, or one for each parameter that steps when its gradient is there."""
    mine = [p for p in model.parameters() if p.requires_grad]
    if not given.backward:
        return torch.optim.AdamW(mine, fused=True)
    for p in mine:
        own = torch.optim.AdamW([p], fused=True)

        def step(_, own=own):
            own.step()
            own.zero_grad()

        p.register_post_accumulate_grad_hook(step)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="3b")
    for name, default in (("batch", 2), ("sequence", 4096), ("chunks", 0), ("rank", 0), ("steps", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name in ("checkpoint", "backward", "offload", "compile"):
        parser.add_argument(f"--{name}", action="store_true")
    given = parser.parse_args()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Llama(given)
        width, _, heads, *_ = MODELS[given.model]
        turns = torch.empty(given.sequence, width // heads // 2, 2, dtype=torch.float32)
    one = torch.compile(summed) if given.compile else summed
    for block in model.blocks if given.compile else ():
        block.compile()
    adam = optimizer_of(model, given)
    for _ in range(given.steps):
        tokens, labels = (torch.zeros(given.batch, given.sequence, dtype=torch.int64).to("cuda") for _ in range(2))
        with torch.autograd.graph.save_on_cpu(pin_memory=True) if given.offload else torch.enable_grad():
            outputs = model(tokens, turns)
        loss = loss_of(outputs, labels, one)
        del outputs
        loss.backward()
        if adam is not None:
            adam.step()
            adam.zero_grad(set_to_none=True)


main()
