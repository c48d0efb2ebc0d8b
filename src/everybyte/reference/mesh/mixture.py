"""A mixture of which each GPU has some experts: what is routed, sent, multiplied and sent back."""

import math

import torch
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd

from ...ask.setup import Setup
from ...catalog import Model
from ..gpt import ACTIVATIONS
from ..mixtral import Experts, grouped_linear


class OwnExperts(nn.Module):
    """The experts of one GPU: a module of its own, since FSDP divides it among other GPUs than the rest."""

    def __init__(self, model: Model, count: int):
        super().__init__()
        self.gate_up = nn.Parameter(torch.empty(count, 2 * model.expert_width, model.width))
        self.down = nn.Parameter(torch.empty(count, model.width, model.expert_width))
        self.activation = ACTIVATIONS[model.activation]
        Experts.reset_parameters(self)

    def forward(self, rows, ends):  # (R, H), (E / e,)
        gate_up = grouped_linear(rows, self.gate_up, ends)  # (R, 2 F)
        gate, up = gate_up.chunk(2, dim=-1)
        return grouped_linear(self.activation(gate) * up, self.down, ends)  # (R, H)


class ParallelExperts(Experts):
    """A mixture of which this GPU has some experts: the router's choice is among all of them.

    Attributes:
        group: the GPUs that have all experts together.
    """

    group = None

    def __init__(self, model: Model, gpus: int):
        nn.Module.__init__(self)
        self.experts, self.visits, self.gpus = model.experts, model.experts_per_token, gpus
        self.own = OwnExperts(model, model.experts // gpus)
        self.router = nn.Linear(model.width, model.experts, bias=False)

    def visit(self, tokens, weights, chosen):
        weights, chosen = weights.reshape(-1), chosen.reshape(-1)  # (T K,) each: a row for each visit
        expert, order = torch.sort(chosen)  # so that one GPU's rows lie together
        rows = tokens[order // self.visits]  # (T K, H)
        weights = weights[order]
        counted = expert.float() if expert.is_cpu else expert.int()
        visitors = torch.histc(counted, bins=self.experts, min=0, max=self.experts - 1)  # (E,)
        coming = all_to_all_single(visitors, None, None, self.group)  # (E,): of each GPU, for each expert here
        sent, received = self.splits(visitors, coming)

        expert = all_to_all_single(expert, received, sent, self.group)  # (R,)
        rows = all_to_all_single_autograd(rows, received, sent, self.group)  # (R, H)
        _, by_expert = torch.sort(expert)
        ends = torch.cumsum(coming.view(self.gpus, -1).sum(dim=0), dim=0, dtype=torch.int32)  # (E / e,)
        outer = self.own(rows[by_expert], ends)  # (R, H)
        outer = outer[inverse(by_expert)]  # as they came
        outer = all_to_all_single_autograd(outer, sent, received, self.group)  # (T K, H)

        outer = outer * weights.unsqueeze(-1)
        outer = outer[inverse(order)].view(
            tokens.size(0), self.visits, -1
        )  # (T, K, H): each token's rows together again
        return outer.sum(dim=1).to(tokens.dtype)

    def splits(self, visitors, coming):
        """Rows to and from each GPU, as numbers: the GPU is waited for."""
        return tuple(counts.view(self.gpus, -1).sum(dim=1).long().tolist() for counts in (visitors, coming))


def told(model: Model, setup: Setup) -> type[ParallelExperts]:
    """A class of divided mixtures that is told how many rows arrive, as the mesh says: for one GPU without the others, or without data."""
    sent = setup.batch * setup.own_sequence * model.experts_per_token
    received = math.ceil(setup.mesh.routing * sent)

    class Told(ParallelExperts):
        def splits(self, visitors, coming):
            return _evenly(sent, self.gpus), _evenly(received, self.gpus)

    return Told


def _evenly(rows, gpus):
    return [rows // gpus + (i < rows % gpus) for i in range(gpus)]


def inverse(order):
    """Where each row went."""
    back = torch.empty_like(order)
    back[order] = torch.arange(order.size(0), device=order.device)
    return back
