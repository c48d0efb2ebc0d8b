"""A training step of Megatron-LM's GPT, one GPU's part: its contiguous buffers, its optimizer, its divided matrices.

Said as Megatron's code has it: `core/models/gpt`, `core/transformer`, `core/tensor_parallel/cross_entropy.py`, and for what stands
`core/distributed/param_and_grad_buffer.py` and `core/optimizer/distrib_optimizer.py`. Collectives work in place and are left out.
"""

import argparse
import os

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # in the environment of each of its tests: 32 MiB a cuBLAS handle

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

WIDE = torch.float32


class BiasGelu(torch.autograd.Function):
    """It keeps the product and the bias, not their sum."""

    @staticmethod
    def forward(ctx, x, bias):
        ctx.save_for_backward(x, bias)
        return F.gelu(x + bias, approximate="tanh")

    @staticmethod
    def backward(ctx, grad):
        x, bias = ctx.saved_tensors
        with torch.enable_grad():
            y = (x + bias).detach().requires_grad_()
            (grad,) = torch.autograd.grad(F.gelu(y, approximate="tanh"), y, grad)
        return grad, grad.sum((0, 1))


class Loss(torch.autograd.Function):
    """One fp32 copy of the logits becomes the softmax, and then the gradient, in place."""

    @staticmethod
    def forward(ctx, logits, labels):  # (S, B, V / t), (S, B)
        scores = logits.float()
        scores -= scores.amax(-1, keepdim=True)
        picked = scores.gather(-1, labels[..., None])[..., 0]
        total = scores.exp_().sum(-1)
        scores /= total[..., None]
        ctx.save_for_backward(scores, labels)
        return total.log() - picked

    @staticmethod
    def backward(ctx, grad):
        scores, labels = ctx.saved_tensors
        scores.scatter_add_(-1, labels[..., None], torch.full_like(labels, -1, dtype=scores.dtype)[..., None])
        return scores.mul_(grad[..., None]), None


class Softmax(torch.autograd.Function):
    """A kernel that masks as well: it keeps what it gives."""

    @staticmethod
    def forward(ctx, scores):
        y = scores.softmax(-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return torch._softmax_backward_data(grad, y, -1, y.dtype)


class Block(nn.Module):
    def __init__(self, given):
        super().__init__()
        width, self.size, self.given = given.width, given.width // given.heads, given
        self.widths = [n // given.tensor * self.size for n in (given.heads, given.keys, given.keys)]
        ffn = given.ffn // given.tensor
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.fc1 = nn.Linear(width, sum(self.widths)), nn.Linear(width, ffn)
        self.normed = nn.ModuleList(nn.LayerNorm(self.size) for _ in range(2)) if given.normed else None
        self.proj, self.fc2 = nn.Linear(self.widths[0], width), nn.Linear(ffn, width)

    def forward(self, x):  # (S, B, H)
        x = x + self.dropped(self.mixed(self.qkv(self.norm1(x))), self.proj)
        y = BiasGelu.apply(F.linear(self.norm2(x), self.fc1.weight), self.fc1.bias)
        return x + self.dropped(y, self.fc2)

    def dropped(self, x, layer):
        return F.dropout(F.linear(x, layer.weight) + layer.bias, self.given.dropout)

    def mixed(self, qkv):
        length, batch = qkv.shape[:2]
        q, k, v = (x.view(length, batch, -1, self.size).permute(1, 2, 0, 3) for x in qkv.split(self.widths, -1))
        if self.normed:
            q, k = (norm(x) for norm, x in zip(self.normed, (q, k), strict=True))
        if self.given.attention == "flash":
            y = F.scaled_dot_product_attention(
                q, k, v, is_causal=True, dropout_p=self.given.dropout, enable_gqa=self.widths[0] != self.widths[1]
            )
        else:
            y = self.unfused(q, k, v)
        return y.permute(2, 0, 1, 3).reshape(length, batch, -1)

    def unfused(self, q, k, v):
        flat, none = (x.reshape(-1, x.size(2), self.size) for x in (q, k)), q.new_empty(())
        scores = torch.baddbmm(none, next(flat), next(flat).transpose(1, 2), beta=0, alpha=self.size**-0.5)
        return F.dropout(Softmax.apply(scores.view(*q.shape[:3], -1)), self.given.dropout) @ v


class GPT(nn.Module):
    def __init__(self, given):
        super().__init__()
        whole = 128 * given.tensor
        vocabulary = -(-given.vocabulary // whole) * whole // given.tensor
        self.token, self.position = nn.Embedding(vocabulary, given.width), nn.Embedding(given.positions, given.width)
        self.blocks = nn.ModuleList(Block(given) for _ in range(given.layers))
        self.norm, self.given = nn.LayerNorm(given.width), given
        self.head = nn.Linear(given.width, vocabulary, bias=False) if given.untied else None

    def forward(self, tokens, labels):  # (B, S) each
        x = self.token(tokens) + self.position(torch.arange(tokens.size(1), device=tokens.device))
        x = F.dropout(x.transpose(0, 1).contiguous(), self.given.dropout)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.given.recompute else block(x)
        weight = self.token.weight if self.head is None else self.head.weight
        logits = F.linear(self.norm(x), weight)
        return Loss.apply(logits, labels.transpose(0, 1).contiguous()).transpose(0, 1).mean()


class Optimizer(torch.optim.Optimizer):
    """Adam's fp32 weights and states: of a share of the contiguous buffer, or of each parameter."""

    def __init__(self, params, given):
        super().__init__(params, {})
        params = list(reversed(params))
        sizes = [p.numel() for p in params]
        shared = given.data if given.distributed else 1
        total = -(-sum(sizes) // (128 * shared)) * 128 * shared
        self.weights, self.gradients = None, torch.zeros(total, dtype=WIDE, device="cuda")
        if given.distributed:  # the weights are views of a buffer of the same shape
            self.weights = torch.zeros(total, dtype=torch.bfloat16, device="cuda")
        first, share = 0, range(total - total // shared, total)
        self.mine = []
        for p, size in zip(params, sizes, strict=True):
            here = slice(first, first + size)
            if given.distributed:
                p.data = self.weights[here].view_as(p)
            p.main_grad = self.gradients[here].view_as(p)
            p.register_post_accumulate_grad_hook(_added)
            part = range(max(first, share.start), min(first + size, share.stop))
            if len(part):
                shape = (len(part),) if given.distributed else p.shape
                self.mine.append(torch.zeros(shape, dtype=WIDE, device="cuda"))
            first += size
        self.moments = None

    @torch.no_grad()
    def step(self):
        if self.moments is None:
            self.moments = [(torch.zeros_like(w), torch.zeros_like(w)) for w in self.mine]
        for w, (m, v) in zip(self.mine, self.moments, strict=True):
            w.add_(m.mul_(0.9))
            v.mul_(0.95)

    def zero_grad(self):
        self.gradients.zero_()


@torch.no_grad()
def _added(p):
    p.main_grad.add_(p.grad)
    p.grad = None


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    sizes = {
        "layers": 12,
        "width": 512,
        "heads": 8,
        "keys": 0,
        "ffn": 0,
        "vocabulary": 50257,
        "positions": 1024,
        "batch": 4,
    }
    sizes |= {"tensor": 1, "data": 8, "micro": 1, "steps": 2}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--attention", choices=("flash", "unfused"), default="flash")
    for name in ("distributed", "untied", "recompute", "normed"):
        parser.add_argument(f"--{name}", action="store_true")
    given = parser.parse_args()
    given.keys, given.ffn = given.keys or given.heads, given.ffn or 4 * given.width
    return given


def main():
    given = options()
    with torch.device("cuda"):
        model = GPT(given).to(torch.bfloat16)
        # Transformer Engine's own cuBLAS workspace: 32 MiB from Hopper on, else 4 (`get_cublas_workspace_size_bytes`)
        _kept = torch.empty((32 if torch.cuda.get_device_capability()[0] >= 9 else 4) << 20, dtype=torch.uint8)
    torch.backends.cuda.enable_cudnn_sdp(False)
    adam = Optimizer(list(model.parameters()), given)
    for _ in range(given.steps):
        adam.zero_grad()
        for _ in range(given.micro):
            tokens = torch.zeros(given.batch, given.positions, dtype=torch.int64).to("cuda")
            labels = torch.zeros(given.batch, given.positions, dtype=torch.int64).to("cuda")
            model(tokens, labels).backward()
        adam.step()


main()
