"""A training step of Megatron-LM's GPT, one GPU's part: its contiguous buffers, its optimizer, its divided matrices.

Said as Megatron's code has it: `core/models/gpt`, `core/transformer`, `core/tensor_parallel/cross_entropy.py`, and for what stands
`core/distributed/param_and_grad_buffer.py` and `core/optimizer/distrib_optimizer.py`. Collectives work in place and are left out.
Of a pipeline it is the last stage, by the order of `core/pipeline_parallel/schedules.py`, with what it receives.
"""

import argparse
import os
from collections import deque

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


class SwiGlu(torch.autograd.Function):
    """It keeps the product and the bias, and no half."""

    @staticmethod
    def forward(ctx, x, bias):
        ctx.save_for_backward(x, bias)
        return swiglu(x if bias is None else x + bias)

    @staticmethod
    def backward(ctx, grad):
        x, bias = ctx.saved_tensors
        with torch.enable_grad():
            y = (x if bias is None else x + bias).detach().requires_grad_()
            (grad,) = torch.autograd.grad(swiglu(y), y, grad)
        return grad, None if bias is None else grad.sum((0, 1))


def swiglu(x):
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


class Turn(torch.autograd.Function):
    """Rotary positions by one kernel, which keeps the angles alone."""

    @staticmethod
    def forward(ctx, x, angles):
        ctx.save_for_backward(angles)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx, grad):
        return torch.empty_like(grad), None


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
        bias, wide = not given.unbiased, 2 * ffn if given.swiglu else ffn
        self.qkv, self.fc1 = nn.Linear(width, sum(self.widths), bias=bias), nn.Linear(width, wide, bias=bias)
        self.normed = nn.ModuleList(nn.LayerNorm(self.size) for _ in range(2)) if given.normed else None
        self.proj, self.fc2 = nn.Linear(self.widths[0], width, bias=bias), nn.Linear(ffn, width, bias=bias)

    def forward(self, x, angles=None):  # (S, B, H)
        x = x + self.dropped(self.mixed(self.qkv(self.norm1(x)), angles), self.proj)
        return x + self.dropped(self.activated(F.linear(self.norm2(x), self.fc1.weight)), self.fc2)

    def activated(self, x):
        if self.given.swiglu:
            return SwiGlu.apply(x, self.fc1.bias)
        return F.gelu(x, approximate="tanh") if self.given.unbiased else BiasGelu.apply(x, self.fc1.bias)

    def dropped(self, x, layer):
        y = F.linear(x, layer.weight)
        return F.dropout(y if layer.bias is None else y + layer.bias, self.given.dropout)

    def mixed(self, qkv, angles):
        length, batch = qkv.shape[:2]
        q, k, v = (x.view(length, batch, -1, self.size).permute(1, 2, 0, 3) for x in qkv.split(self.widths, -1))
        if self.normed:
            q, k = (norm(x) for norm, x in zip(self.normed, (q, k), strict=True))
        if angles is not None:
            q, k = (Turn.apply(x, angles) for x in (q, k))
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
    """Some blocks; before the first of the model its embedding, after the last its head, which is the embedding or a copy of it."""

    def __init__(self, given, blocks, first, last):
        super().__init__()
        whole = 128 * given.tensor
        vocabulary = -(-given.vocabulary // whole) * whole // given.tensor
        self.token = nn.Embedding(vocabulary, given.width) if first else None
        self.position = nn.Embedding(given.positions, given.width) if first and not given.rope else None
        self.blocks = nn.ModuleList(Block(given) for _ in range(blocks))
        self.norm, self.given = nn.LayerNorm(given.width) if last else None, given
        self.head = nn.Linear(given.width, vocabulary, bias=False) if last and (given.untied or not first) else None

    def forward(self, x, labels):  # tokens (B, S), or the stage before's (S, B, H); labels (B, S)
        if self.token is not None:
            x = self.token(x)
            if self.position is not None:
                x = x + self.position(torch.arange(x.size(1), device=x.device))
            x = F.dropout(x.transpose(0, 1).contiguous(), self.given.dropout)
        else:
            self.input_tensor = x  # it keeps the last one, and so its gradient too: `TransformerBlock.set_input_tensor`
        size = self.given.width // self.given.heads
        angles = torch.zeros(x.size(0), 1, 1, size, device=x.device) if self.given.rope else None
        for block in self.blocks:
            x = checkpoint(block, x, angles, use_reentrant=False) if self.given.recompute else block(x, angles)
        if self.norm is None:
            return x
        weight = self.token.weight if self.head is None else self.head.weight
        logits = F.linear(self.norm(x), weight)
        return Loss.apply(logits, labels.transpose(0, 1).contiguous()).transpose(0, 1).mean()


class Optimizer(torch.optim.Optimizer):
    """Adam's fp32 weights and states: of a share of each chunk's contiguous buffer, or of each parameter."""

    def __init__(self, parts, given):
        super().__init__([p for params in parts for p in params], {})
        self.weights, self.gradients, self.mine, self.moments = [], [], [], None
        for params in parts:
            self.lay_out(list(reversed(params)), given)

    def lay_out(self, params, given):
        sizes = [p.numel() for p in params]
        shared = given.data if given.distributed else 1
        total = -(-sum(sizes) // (128 * shared)) * 128 * shared
        gradients, weights = torch.zeros(total, dtype=WIDE, device="cuda"), None
        self.gradients.append(gradients)
        if given.distributed:  # the weights are views of a buffer of the same shape
            weights = torch.zeros(total, dtype=torch.bfloat16, device="cuda")
            self.weights.append(weights)
        first, share = 0, range(total - total // shared, total)
        for p, size in zip(params, sizes, strict=True):
            here = slice(first, first + size)
            if given.distributed:
                p.data = weights[here].view_as(p)
            p.main_grad = gradients[here].view_as(p)
            p.register_post_accumulate_grad_hook(_added)
            part = range(max(first, share.start), min(first + size, share.stop))
            if len(part):
                shape = (len(part),) if given.distributed else p.shape
                self.mine.append(torch.zeros(shape, dtype=WIDE, device="cuda"))
            first += size

    @torch.no_grad()
    def step(self):
        if self.moments is None:
            self.moments = [(torch.zeros_like(w), torch.zeros_like(w)) for w in self.mine]
        for w, (m, v) in zip(self.mine, self.moments, strict=True):
            w.add_(m.mul_(0.9))
            v.mul_(0.95)

    def zero_grad(self):
        for gradients in self.gradients:
            gradients.zero_()


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
    sizes |= {"tensor": 1, "data": 8, "micro": 1, "steps": 2, "stages": 1, "chunks": 1, "group": 0, "owned": 0}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--attention", choices=("flash", "unfused"), default="flash")
    for name in ("distributed", "untied", "recompute", "normed", "rope", "swiglu", "unbiased"):
        parser.add_argument(f"--{name}", action="store_true")
    given = parser.parse_args()
    given.keys, given.group = given.keys or given.heads, given.group or given.stages
    given.ffn = given.ffn or (8 * given.width // 3 // 64 * 64 if given.swiglu else 4 * given.width)
    given.owned = given.owned or given.layers // given.stages
    return given


def passes(given):
    """Chunk and direction of each pass of the last stage: forward until `group` micro-batches of each chunk but the last are under way,
    then forward and backward in turn."""
    order = []
    for first in range(0, given.micro, given.group):
        count = min(given.group, given.micro - first)
        order += [chunk for chunk in range(given.chunks) for _ in range(count)]
    ahead = min((given.chunks - 1) * given.group, len(order))
    backward = [given.chunks - 1 - chunk for chunk in order]
    yield from ((chunk, True) for chunk in order[:ahead])
    for n, chunk in enumerate(order[ahead:]):
        yield chunk, True
        yield backward[n], False
    yield from ((chunk, False) for chunk in backward[len(order) - ahead :])


def received(given):
    """What the stage before sends."""
    shape = (given.positions, given.batch, given.width)
    return torch.zeros(shape, dtype=torch.bfloat16, device="cuda", requires_grad=True)


def step(parts, given):
    """Forward and backward of all micro-batches. What was sent on is freed, but for its graph."""
    under_way = [deque() for _ in parts]
    for chunk, forward in passes(given):
        last = chunk == len(parts) - 1
        if forward:
            tokens = torch.zeros(given.batch, given.positions, dtype=torch.int64).to("cuda")
            labels = torch.zeros(given.batch, given.positions, dtype=torch.int64).to("cuda")
            x = tokens if given.stages == 1 else received(given)
            y = parts[chunk](x, labels)
            if not last:
                y.data = torch.empty(1, dtype=y.dtype, device="cuda")
            under_way[chunk].append((x, y))
            del x, y, tokens, labels
        else:
            x, y = under_way[chunk].popleft()
            # Megatron calls the engine itself: the output is a scalar by now, and its gradient is not
            gradient = None if last else received(given).detach()
            torch.autograd.Variable._execution_engine.run_backward(
                (y,), (torch.ones_like(y) if gradient is None else gradient,), False, False, (), True, True
            )
            del x, y, gradient


def main():
    given = options()
    with torch.device("cuda"):
        blocks, alone = given.owned // given.chunks, given.stages == 1
        torch.set_default_dtype(torch.bfloat16)
        parts = [GPT(given, blocks, alone, n == given.chunks - 1) for n in range(given.chunks)]
        torch.set_default_dtype(torch.float32)
        # Transformer Engine's own cuBLAS workspace: 32 MiB from Hopper on, else 4 (`get_cublas_workspace_size_bytes`)
        _kept = torch.empty((32 if torch.cuda.get_device_capability()[0] >= 9 else 4) << 20, dtype=torch.uint8)
    torch.backends.cuda.enable_cudnn_sdp(False)
    adam = Optimizer([list(part.parameters()) for part in parts], given)
    for _ in range(given.steps):
        adam.zero_grad()
        step(parts, given)
        adam.step()


main()
