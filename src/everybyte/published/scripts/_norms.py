"""Llama's norm as it was written before PyTorch had it, for the scripts beside."""

import torch
from torch import nn


class RMSNorm(nn.Module):
    """The scale is applied after the cast back."""

    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return self.normed(x).type_as(x) * self.weight

    def normed(self, x):
        wide = x.float()
        return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
