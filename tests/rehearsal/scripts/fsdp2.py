"""Trains a Llama under FSDP2, after the manner of torchtitan: meta init, a mesh, mixed precision, checkpointed blocks.

It knows nothing of rehearsals.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F

SIZES = {  # layers, width, heads, key heads, inner width, vocabulary
    "debug": (4, 256, 16, 4, 768, 2048),
    "1b": (16, 2048, 32, 8, 8192, 128_256),
    "70b": (80, 8192, 64, 8, 28672, 128_256),
}
layers, width, heads, kv_heads, inner, vocabulary = SIZES[sys.argv[1]]
batch, length = int(sys.argv[2]), int(sys.argv[3])


def rotated(x):
    d = x.size(-1)
    angles = torch.outer(
        torch.arange(x.size(1), device=x.device), 500_000.0 ** -(torch.arange(0, d, 2, device=x.device) / d)
    )
    turned = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2)) * torch.polar(
        torch.ones_like(angles), angles
    ).view(1, x.size(1), 1, d // 2)
    return torch.view_as_real(turned).flatten(3).type_as(x)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        d = width // heads
        self.wq, self.wo = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.wk, self.wv = (nn.Linear(width, kv_heads * d, bias=False) for _ in range(2))

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = (
            self.wq(x).view(b, s, heads, -1),
            self.wk(x).view(b, s, kv_heads, -1),
            self.wv(x).view(b, s, kv_heads, -1),
        )
        q, k = rotated(q), rotated(k)
        k, v = (y.repeat_interleave(heads // kv_heads, dim=2) for y in (k, v))
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(b, s, -1))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.norm1, self.norm2 = Attention(), nn.RMSNorm(width), nn.RMSNorm(width)
        self.w1, self.w3 = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.w2 = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.w2(F.silu(self.w1(y)) * self.w3(y))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.output = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))

    def init_weights(self):
        for p in self.parameters():
            nn.init.trunc_normal_(p, std=0.02) if p.dim() > 1 else nn.init.ones_(p)


rank, world = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("cuda:nccl,cpu:gloo" if len(sys.argv) > 4 else "nccl")
mesh = init_device_mesh("cuda", (world,), mesh_dim_names=("dp_shard",))
torch.manual_seed(0)
with torch.device("meta"):  # no weight is ever whole, on the host or on a GPU
    model = Llama()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for number, block in enumerate(model.layers):
    block = model.layers[number] = checkpoint_wrapper(block, preserve_rng_state=False)
    fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
fully_shard([model.norm, model.output], mesh=mesh, mp_policy=policy, reshard_after_forward=False)
fully_shard(model, mesh=mesh, mp_policy=policy)
model.to_empty(device="cuda")
with torch.no_grad():
    model.init_weights()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
for _ in range(3):
    tokens = torch.randint(vocabulary, (batch, length + 1), device="cuda")
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
    del logits
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad()
    seen = loss.detach().clone()
    dist.all_reduce(seen, op=dist.ReduceOp.AVG)
if rank == 0:
    print("loss", seen.item())
dist.destroy_process_group()
