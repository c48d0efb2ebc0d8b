"""What Liger's kernels are compared with, as its benchmarks run it: one operation of PyTorch or Hugging Face, forward and backward.

`benchmark/scripts/utils.py` takes the median of ten peaks: from the second on, gradients stand and are added to.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    """Llama's, of Hugging Face: the scale is applied after the cast back."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.to(torch.float32)
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class MLP(nn.Module):
    def __init__(self, width, ffn, activation):
        super().__init__()
        self.gate, self.up = nn.Linear(width, ffn, bias=False), nn.Linear(width, ffn, bias=False)
        self.down, self.activation = nn.Linear(ffn, width, bias=False), activation

    def forward(self, x):
        return self.down(self.activation(self.gate(x)) * self.up(x))


def cross_entropy(size):
    x = torch.randn(8 * 2048, size, requires_grad=True, device="cuda")
    target = torch.zeros(8 * 2048, dtype=torch.int64, device="cuda")
    return lambda: F.cross_entropy(x, target), lambda y: y.backward()


def head(size):
    """A head of 4,096 x 128,256 in bf16 and its loss: beside it stands the head of the kernel that it is compared with."""
    layer, other = (nn.Linear(4096, 128256, bias=False, dtype=torch.bfloat16).to("cuda") for _ in range(2))
    x = torch.randn(size, 4096, requires_grad=True, dtype=torch.bfloat16, device="cuda")
    target = torch.zeros(size, dtype=torch.int64, device="cuda")
    return lambda: F.cross_entropy(layer(x), target), lambda y: y.backward(), other


def _normed(layer, rows, size, dtype):
    x = torch.randn(rows, size, dtype=dtype, device="cuda")
    grad = torch.randn_like(x)
    x.requires_grad_()
    other = torch.ones(size, device="cuda")  # the weight of the kernel that it is compared with
    return lambda: layer(x), lambda y: y.backward(grad, retain_graph=True), other


def rms_norm(size):
    return _normed(RMSNorm(size).to("cuda"), 2048, size, torch.bfloat16)


def layer_norm(size):
    return _normed(nn.LayerNorm(size).to("cuda"), 4096, size, torch.float32)


def _mlp(batch, length, activation, width=4096, ffn=11008):
    x = torch.randn(batch, length, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    layer = MLP(width, ffn, activation).to("cuda").to(torch.bfloat16)
    return lambda: layer(x), lambda y: y.backward(torch.randn_like(y), retain_graph=True)


def swiglu(size):
    return _mlp(4, size, F.silu)


def geglu(size):
    return _mlp(8, size, lambda x: F.gelu(x, approximate="tanh"))


def small_swiglu(size):
    return _mlp(2, size, F.silu, 2048, 4096)


def small_geglu(size):
    return _mlp(2, size, lambda x: F.gelu(x, approximate="tanh"), 2048, 4096)


def _divergence(rows, size, made, wanted, loss):
    x = made(torch.randn(rows, size, requires_grad=True, device="cuda"), -1)
    target = wanted(torch.randn(rows, size, device="cuda"), -1)
    return lambda: loss(x, target), lambda y: y.backward(retain_graph=True)


def kl_div(size):
    return _divergence(8 * 2048, size, torch.log_softmax, torch.softmax, nn.KLDivLoss(reduction="batchmean"))


def jsd(size):
    kl = nn.KLDivLoss(reduction="batchmean", log_target=True)

    def loss(q, p):
        middle = torch.lerp(torch.exp(p), torch.exp(q), 0.5)
        return 0.5 * kl(torch.log(middle), p) + 0.5 * kl(torch.log(middle), q)

    return _divergence(4 * 2048, size, torch.log_softmax, torch.log_softmax, loss)


def tvd(size):
    return _divergence(
        8 * 2048, size, torch.softmax, torch.softmax, lambda p, q: torch.sum(torch.abs(p - q) / 2.0) / p.size(0)
    )


KERNELS = {
    f.__name__: f
    for f in (cross_entropy, head, rms_norm, layer_norm, swiglu, geglu, small_swiglu, small_geglu, kl_div, jsd, tvd)
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kernel", choices=KERNELS)
    parser.add_argument("size", type=int)
    parser.add_argument("--mode", choices=("full", "forward", "backward"), default="full")
    given = parser.parse_args()
    if given.mode == "forward":  # its process has run both ways before, and what cuBLAS works in for backward stays
        x = torch.ones(8, 8, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        (x @ x).sum().backward()
        del x
    forward, backward, *_other = KERNELS[given.kernel](given.size)
    once = forward() if given.mode == "backward" else None
    for _ in range(3):
        if given.mode == "forward":
            forward()
        else:
            backward(once if given.mode == "backward" else forward())


main()
