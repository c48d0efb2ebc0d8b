"""Expert parallelism: of E experts each of e GPUs has E / e, and rows travel to the GPU of the expert that they visit, and back.

Everything else stands on every GPU and is averaged by DDP. The exchange is PyTorch's `all_to_all_single_autograd`, whose
backward is the way back. How many rows come is the routers' choice, step by step: nobody drops any.
Sources: Lepikhin et al., GShard (2020), arXiv:2006.16668; Jiang et al., Mixtral of Experts (2024), arXiv:2401.04088;
PyTorch, torch/distributed/_functional_collectives.py.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd
from torch.nn.parallel import DistributedDataParallel

from ...catalog import Model
from ...setup import Setup
from ..gpt import ACTIVATIONS
from ..llama import Llama
from ..mixtral import Experts, grouped_linear
from ..step import Trainer


class ParallelExperts(Experts):
    """A mixture of which this GPU has some experts: the router's choice is among all of them."""

    def __init__(self, model: Model, gpus: int):
        nn.Module.__init__(self)
        self.experts, self.visits, self.gpus, own = model.experts, model.experts_per_token, gpus, model.experts // gpus
        self.router = nn.Linear(model.width, model.experts, bias=False)
        self.gate_up = nn.Parameter(torch.empty(own, 2 * model.expert_width, model.width))
        self.down = nn.Parameter(torch.empty(own, model.width, model.expert_width))
        self.activation = ACTIVATIONS[model.activation]
        self.reset_parameters()

    def visit(self, tokens, weights, chosen):
        weights, chosen = weights.reshape(-1), chosen.reshape(-1)  # (T K,) each: a row for each visit
        expert, order = torch.sort(chosen)  # so that one GPU's rows lie together
        rows = tokens[order // self.visits]  # (T K, H)
        weights = weights[order]
        counted = expert.float() if expert.is_cpu else expert.int()
        visitors = torch.histc(counted, bins=self.experts, min=0, max=self.experts - 1)  # (E,)
        coming = all_to_all_single(visitors, None, None, dist.group.WORLD)  # (E,): of each GPU, for each expert here
        sent, received = self.splits(visitors, coming)

        expert = all_to_all_single(expert, received, sent, dist.group.WORLD)  # (R,)
        rows = all_to_all_single_autograd(rows, received, sent, dist.group.WORLD)  # (R, H)
        _, by_expert = torch.sort(expert)
        ends = torch.cumsum(coming.view(self.gpus, -1).sum(dim=0), dim=0, dtype=torch.int32)  # (E / e,)
        gate_up = grouped_linear(rows[by_expert], self.gate_up, ends)  # (R, 2 F)
        gate, up = gate_up.chunk(2, dim=-1)
        outer = grouped_linear(self.activation(gate) * up, self.down, ends)  # (R, H)
        outer = outer[inverse(by_expert)]  # as they came
        outer = all_to_all_single_autograd(outer, sent, received, dist.group.WORLD)  # (T K, H)

        outer = outer * weights.unsqueeze(-1)
        outer = outer[inverse(order)].view(
            tokens.size(0), self.visits, -1
        )  # (T, K, H): each token's rows together again
        return outer.sum(dim=1).to(tokens.dtype)

    def splits(self, visitors, coming):
        """Rows to and from each GPU, as numbers: the GPU is waited for."""
        return tuple(counts.view(self.gpus, -1).sum(dim=1).long().tolist() for counts in (visitors, coming))


def inverse(order):
    """Where each row went."""
    back = torch.empty_like(order)
    back[order] = torch.arange(order.size(0), device=order.device)
    return back


class ExpertLlama(Llama):
    """A Llama whose mixtures are divided. DDP leaves their weights alone."""

    mixture = ParallelExperts

    def __init__(self, model: Model, setup: Setup):
        super().__init__(model, setup)
        for block in self.blocks:
            block.mlp = self.mixture(model, setup.mesh.expert)
        own = [name for name, _ in self.named_parameters() if name.endswith(("mlp.gate_up", "mlp.down"))]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(self, own)


class ExpertTrainer(Trainer):
    """A step in which an expert's gradient is the sum over all GPUs' tokens: it is averaged where it is."""

    def update(self):
        for block in self.module.blocks:
            for weight in (block.mlp.gate_up, block.mlp.down):
                weight.grad.div_(dist.get_world_size())
        super().update()
