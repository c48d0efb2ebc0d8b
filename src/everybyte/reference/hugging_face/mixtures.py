"""Experts as Hugging Face's mixtures have them: Mixtral's, and DeepSeek-V3's with experts that every token visits."""

import torch
from torch import nn
from torch.nn import functional as F

from ..llama import GatedMLP
from ..mixtral import Experts as Mixture
from ..mixtral import grouped_linear


class Experts(Mixture):
    """The book's, which keep no more than Hugging Face's where no gradient is wanted: `grouped_mm_experts_forward`."""

    biased = False

    def visit(self, tokens, weights, chosen):
        weights, chosen = weights.reshape(-1), chosen.reshape(-1)
        expert, order = torch.sort(chosen)
        rows = tokens[order // self.visits]
        own = weights[order]
        counted = expert.float() if expert.is_cpu else expert.int()
        visitors = torch.histc(counted, bins=self.experts, min=0, max=self.experts - 1)
        ends = torch.cumsum(visitors, dim=0, dtype=torch.int32)
        bias = own_bias(self.gate_up_bias, expert) if self.biased else None
        made = grouped_linear(rows, self.gate_up, ends)
        made = made.add_(bias) if self.biased else made
        made = self.gated(made)
        bias = own_bias(self.down_bias, expert) if self.biased else None
        made = grouped_linear(made, self.down, ends)
        made = made.add_(bias) if self.biased else made
        outer = made * own.unsqueeze(-1)
        back = torch.empty_like(order)
        back[order] = torch.arange(order.size(0), device=order.device)
        outer = outer[back]
        total = outer.view(tokens.size(0), self.visits, -1).sum(dim=1)
        return total.to(tokens.dtype)

    def gated(self, made):
        gate, up = made.chunk(2, dim=-1)
        return self.activation(gate) * up


class NarrowExperts(Experts):
    """Qwen 3's, whose weights of a token's experts are in the type of its numbers."""

    def route(self, tokens):
        logits = self.router(tokens)
        scores = F.softmax(logits, dim=-1, dtype=torch.float32)
        weights, chosen = torch.topk(scores, self.visits, dim=-1)
        weights /= weights.sum(dim=-1, keepdim=True)
        weights = weights.to(logits.dtype)
        return logits, weights, chosen


def own_bias(biases, expert):  # (E, F), (T K,) -> (T K, F)
    return biases[expert]


class Everybody(nn.Module):
    """Llama 4's: each expert reads all tokens, of which it gets those that visit it times their weight, and others times 0."""

    def __init__(self, model):
        super().__init__()
        self.experts, self.visits, self.width = model.experts, model.experts_per_token, model.width
        self.gate_up = nn.Parameter(torch.zeros(model.experts, model.width, 2 * model.expert_width))
        self.down = nn.Parameter(torch.zeros(model.experts, model.expert_width, model.width))
        self.router = nn.Linear(model.width, model.experts, bias=False)
        self.shared = GatedMLP(model.replace(ffn_width=model.expert_width))

    def forward(self, x):
        tokens = x.reshape(-1, self.width)
        scores, logits = self.route(tokens)
        rows = tokens.repeat(self.experts, 1)
        rows = rows * scores.transpose(0, 1).reshape(-1, 1)
        routed = self.visit(rows)
        out = self.shared(tokens)
        out = out.add_(routed.reshape(self.experts, -1, self.width).sum(dim=0))
        return out, logits

    def route(self, tokens):
        logits = self.router(tokens)
        best, chosen = torch.topk(logits, self.visits, dim=1)
        scores = torch.full_like(logits, float("-inf")).scatter_(1, chosen, best)
        scores = torch.sigmoid(scores.float()).to(scores.dtype)
        return scores, logits

    def visit(self, rows):
        rows = rows.view(self.experts, -1, self.width)
        made = torch.bmm(rows, self.gate_up)
        gate, up = made.chunk(2, dim=-1)
        out = torch.bmm(up * F.silu(gate), self.down)
        return out.view(-1, self.width)


class BiasedExperts(Experts):
    """gpt-oss's: with biases, and the function of the gate clamped. Gate and up alternate."""

    biased = True

    def __init__(self, model):
        super().__init__(model.replace(activation="silu"))  # its own function is `gated`
        # On the theory's tape letters, which a model that is replaced has not.
        self.experts, self.visits = model.experts, model.experts_per_token
        self.router = nn.Linear(model.width, model.experts)
        self.gate_up_bias = nn.Parameter(torch.zeros(model.experts, 2 * model.expert_width))
        self.down_bias = nn.Parameter(torch.zeros(model.experts, model.width))

    def forward(self, x):
        tokens = x.reshape(-1, x.size(-1))
        _logits, weights, chosen = self.route(tokens)
        out = self.visit(tokens, weights, chosen)
        return out.reshape(x.shape), weights

    def route(self, tokens):
        logits = self.router(tokens)
        best, chosen = torch.topk(logits, self.visits, dim=-1)
        weights = F.softmax(best, dim=1, dtype=best.dtype)
        return logits, weights, chosen

    def gated(self, made):
        gate, up = made[..., ::2], made[..., 1::2]
        gate = gate.clamp(None, 7.0)
        up = up.clamp(-7.0, 7.0)
        inner = gate * torch.sigmoid(gate * 1.702)
        return (up + 1) * inner


class Router(nn.Module):
    """DeepSeek-V3's: a score for each expert, and a bias by which it is chosen. type: the bias's; None: the module's."""

    def __init__(self, model, type):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(model.experts, model.width))
        self.register_buffer("bias", torch.zeros(model.experts, dtype=type))


class SharedExperts(Experts):
    """Groups of experts are chosen before experts, and beside them each token visits one that all share.

    Args:
        type: of the router's biases.
    """

    def __init__(self, model, type):
        super().__init__(model)
        self.router = Router(model, type)
        self.shared = GatedMLP(model.replace(ffn_width=model.expert_width * model.shared_experts))
        self.groups, self.best = model.expert_groups or 1, model.groups_per_token or 1

    def forward(self, x):
        _logits, weights, chosen = self.route(x.view(-1, x.size(-1)))
        out = self.visit(x.view(-1, x.size(-1)), weights, chosen).view(x.shape)
        return out + self.shared(x)

    def route(self, tokens):
        each = self.experts // self.groups
        logits = F.linear(tokens.float(), self.router.weight.float())
        scores = logits.sigmoid()
        choice = scores + self.router.bias
        best = choice.view(tokens.size(0), self.groups, each).topk(2, dim=-1)[0].sum(dim=-1)
        groups = torch.topk(best, self.best, dim=-1, sorted=False)[1]
        mask = torch.zeros_like(best)
        mask.scatter_(1, groups, 1)
        spread = mask.unsqueeze(-1).expand(-1, self.groups, each).reshape(*choice.shape)
        choice = choice.masked_fill(~spread.bool(), float("-inf"))
        chosen = torch.topk(choice, self.visits, dim=-1, sorted=False)[1]
        weights = scores.gather(1, chosen)
        total = weights.sum(dim=-1, keepdim=True) + 1e-20
        weights /= total
        return logits, weights * 2.5, chosen
