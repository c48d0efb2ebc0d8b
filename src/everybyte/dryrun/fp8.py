"""A product in fp8 as in training libraries, to see what it saves: one scale per tensor, factors are cast when it runs."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

#: Types of forward's factors, and of backward's gradients.
E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2


def _product(left: Tensor, right: Tensor, out: torch.dtype, wide: torch.dtype = E4) -> Tensor:
    """`left @ right` in the type `out`: the kernel takes the one by rows and the other by columns."""
    scale = torch.ones((), device=left.device)
    low = right.t().contiguous().to(E4).t()
    return torch._scaled_mm(left.to(wide), low, scale, scale, out_dtype=out)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, low):
        kept = x.to(E4) if low else x
        ctx.save_for_backward(kept, weight)
        return _product(kept, weight.t(), x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        of_x = _product(gradient, weight, gradient.dtype, E5)
        return of_x, _product(gradient.t().contiguous(), x, gradient.dtype, E5), None


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """`torch.nn.functional.linear` without a bias, all three products in 8 bits, as torchao's `Float8Linear` makes them.

    x: (tokens, in), in 16 bits. weight: (out, in), as wide. All sizes are multiples of 16.
    """
    return _Linear.apply(x, weight, False)


def saving(x: Tensor, weight: Tensor) -> Tensor:
    """`linear`, but what is saved for backward is the input in 8 bits, as Transformer Engine saves it. Of the same shapes."""
    return _Linear.apply(x, weight, True)


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
