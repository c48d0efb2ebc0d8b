"""A product in fp8 as in training libraries, to see what it saves: one scale per tensor, factors are cast when it runs."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

#: Types of forward's factors, and of backward's gradients.
E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2


def _product(left: Tensor, right: Tensor, wide: torch.dtype = E4) -> Tensor:
    """`left @ right` in the type of `left`. The kernel reads `left` by rows and `right` by columns."""
    scale = torch.ones((), device=left.device)
    low = right.t().contiguous().to(E4).t()
    return torch._scaled_mm(left.to(wide), low, scale, scale, out_dtype=left.dtype)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return _product(x, weight.t())

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return _product(gradient, weight, E5), _product(gradient.t().contiguous(), x, E5)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """`torch.nn.functional.linear` without a bias, all three products in 8 bits, as torchao's `Float8Linear` makes them.

    x: (tokens, in), in 16 bits. weight: (out, in), as wide. All sizes are multiples of 16.
    """
    return _Linear.apply(x, weight)


class Mlp(nn.Module):
    """Two matrices around a SiLU, on a residual stream with a gradient. Its loss is the sum. multiply: such as `linear`."""

    def __init__(self, multiply: Callable[[Tensor, Tensor], Tensor], tokens: int, width: int, ffn: int):
        super().__init__()
        self.multiply = multiply
        shapes = (tokens, width), (ffn, width), (width, ffn)
        self.stream, self.up, self.down = (nn.Parameter(torch.empty(shape)) for shape in shapes)

    def forward(self, x: Tensor) -> Tensor:
        """The loss of x, (tokens, width)."""
        return self.multiply(nn.functional.silu(self.multiply(x + self.stream, self.up)), self.down).sum()
