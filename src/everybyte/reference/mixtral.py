"""Mixtral's experts: of E gated MLPs, each token visits the K that its router prefers. None is ever full: no token is dropped.

The operations and their order are those of Hugging Face transformers 5.23: `models/mixtral/modeling_mixtral.py`, and
`grouped_mm_experts_forward` in `integrations/moe.py`. T = B S tokens make T K rows, whatever the router says.
"""

import torch
from torch import nn
from torch.nn import functional as F

from ..catalog import Model
from .gpt import ACTIVATIONS


class Experts(nn.Module):
    """A router, and the experts' matrices stacked: gate and up in one tensor, down in another."""

    def __init__(self, model: Model):
        super().__init__()
        self.experts, self.visits = model.experts, model.experts_per_token
        self.router = nn.Linear(model.width, model.experts, bias=False)
        self.gate_up = nn.Parameter(torch.empty(model.experts, 2 * model.expert_width, model.width))
        self.down = nn.Parameter(torch.empty(model.experts, model.width, model.expert_width))
        self.activation = ACTIVATIONS[model.activation]
        self.reset_parameters()

    def reset_parameters(self):
        for weight in (self.gate_up, self.down):
            nn.init.uniform_(weight, -(weight.size(-1) ** -0.5), weight.size(-1) ** -0.5)  # as nn.Linear's

    def forward(self, x):  # (B, S, H)
        tokens = x.view(-1, x.size(-1))  # (T, H)
        _logits, weights, chosen = self.route(tokens)  # kept for a loss that balances the experts, not taken here
        return self.visit(tokens, weights, chosen).view(x.shape)

    def route(self, tokens):
        logits = self.router(tokens)  # (T, E)
        scores = F.softmax(logits.float(), dim=-1)
        weights, chosen = torch.topk(scores, self.visits, dim=-1)  # (T, K) each
        weights /= weights.sum(dim=-1, keepdim=True)
        return logits, weights, chosen

    def visit(self, tokens, weights, chosen):
        weights, chosen = weights.reshape(-1), chosen.reshape(-1)  # (T K,) each: a row for each visit
        expert, order = torch.sort(chosen)  # so that an expert's rows lie together
        rows = tokens[order // self.visits]  # (T K, H)
        weights = weights[order]
        counted = expert.float() if expert.is_cpu else expert.int()  # what histc takes there
        visitors = torch.histc(counted, bins=self.experts, min=0, max=self.experts - 1)
        ends = torch.cumsum(visitors, dim=0, dtype=torch.int32)  # (E,): where each expert's rows end

        gate_up = grouped_linear(rows, self.gate_up, ends)  # (T K, 2 F)
        gate, up = gate_up.chunk(2, dim=-1)
        inner = self.activation(gate) * up  # (T K, F)
        outer = grouped_linear(inner, self.down, ends) * weights.unsqueeze(-1)  # (T K, H)

        back = torch.empty_like(order)
        back[order] = torch.arange(order.size(0), device=order.device)
        outer = outer[back].view(tokens.size(0), self.visits, -1)  # (T, K, H): each token's rows together again
        return outer.sum(dim=1).to(tokens.dtype)


def grouped_linear(rows, weight, ends):
    """Each group of rows times its own matrix. No operation of autocast's: it runs in the weights' data type."""
    return F.grouped_mm(rows.to(weight.dtype), weight.transpose(-2, -1), offs=ends)
