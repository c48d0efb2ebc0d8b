"""A GPT and its training loop in one file, after the manner of nanoGPT: memmapped tokens, micro-steps, a scaler, estimates.

It knows nothing of rehearsals.
"""

import math
import os
import sys
from contextlib import nullcontext

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

batch_size, block_size, micro_steps, eval_iters = 8, 1024, 1, 2
n_layer, n_head, n_embd, vocab_size = 12, 12, 768, 50257
max_iters, eval_interval, grad_clip, learning_rate = 4, 2, 1.0, 6e-4
device, dtype, fused, compile = "cuda", "bfloat16", False, False
for word in sys.argv[2:]:  # as its configurator: --name=value
    name, value = word.removeprefix("--").split("=")
    globals()[name] = type(globals()[name])(eval(value) if value[0].isdigit() or value in ("True", "False") else value)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.c_fc, self.c_out, self.gelu = nn.Linear(n_embd, 4 * n_embd), nn.Linear(4 * n_embd, n_embd), nn.GELU()

    def attention(self, x):
        B, T, C = x.size()
        q, k, v = (y.view(B, T, n_head, C // n_head).transpose(1, 2) for y in self.c_attn(x).split(n_embd, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.c_out(self.gelu(self.c_fc(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.h, self.ln_f = nn.ModuleList(Block() for _ in range(n_layer)), nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits, loss


np.random.default_rng(0).integers(vocab_size, size=200_000, dtype=np.uint16).tofile(
    os.path.join(sys.argv[1], "train.bin")
)


def get_batch():
    data = np.memmap(os.path.join(sys.argv[1], "train.bin"), dtype=np.uint16, mode="r")
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix])
    return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = torch.zeros(eval_iters)
    for k in range(eval_iters):
        x, y = get_batch()
        with ctx:
            _, loss = model(x, y)
        losses[k] = loss.item()
    model.train()
    return losses.mean()


def get_lr(it):
    return learning_rate * 0.5 * (1.0 + math.cos(math.pi * it / max_iters))


torch.manual_seed(1337)
torch.backends.cuda.matmul.allow_tf32 = True
ptdtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
ctx = nullcontext() if dtype == "float32" else torch.amp.autocast(device_type="cuda", dtype=ptdtype)
model = GPT().to(device)
scaler = torch.amp.GradScaler("cuda", enabled=dtype == "float16")
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), fused=fused)
if compile:
    model = torch.compile(model)
X, Y = get_batch()
for it in range(max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(it)
    if it % eval_interval == 0:
        print(f"step {it}: loss {estimate_loss():.4f}")
    for _ in range(micro_steps):
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / micro_steps
        X, Y = get_batch()
        scaler.scale(loss).backward()
    if grad_clip != 0.0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
