"""Muon under FSDP: each matrix's update is gathered whole, one after another, and every GPU moves its own rows by it."""

import torch
from torch.optim._muon import _adjust_lr, _zeropower_via_newtonschulz

from ...ask.setup import Setup
from ..parallel import all_gather


def gathering(trainer, setup: Setup):
    """The trainer; where FSDP divides what Muon moves, its matrices are gathered in 16 bits. Returns it."""
    if setup.optimizer == "muon" and setup.fsdp:
        muon = trainer.optimizer.optimizer if setup.dtypes.master else trainer.optimizer
        muon.both = [
            GatheredMuon(one.param_groups[0]["params"], lr=one.param_groups[0]["lr"])
            if isinstance(one, torch.optim.Muon)
            else one
            for one in muon.both
        ]
    return trainer


class GatheredMuon(torch.optim.Muon):
    """PyTorch's Muon over shares of rows: momentum and weights stay divided, and the product's side is the whole matrix.

    Source: Liu et al. 2025, Muon is Scalable for LLM Training, arXiv:2502.16982, Algorithm 1, "Distributed Muon", in bf16.
    """

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                update = self.whole(weight, self.averaged(weight, group))
                update = _zeropower_via_newtonschulz(update, group["ns_coefficients"], group["ns_steps"], group["eps"])
                self.move(weight, update, group)
        update = None  # noqa: F841

    def averaged(self, weight, group):
        """Momentum of this GPU's rows, as Nesterov has it."""
        gradient, state = weight.grad.to_local(), self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
        return gradient.lerp(state["momentum_buffer"], group["momentum"])

    def whole(self, weight, rows):
        """All GPUs' rows of an update, in bf16; shares are filled up to the largest."""
        (count, width), group = weight.shape, weight.device_mesh.get_group("shard")
        share = -(-count // group.size())
        sent = rows.new_zeros((share, width), dtype=torch.bfloat16)
        sent[: rows.size(0)].copy_(rows)
        found = sent.new_empty((group.size() * share, width))
        all_gather(found, sent, group=group)
        return found[:count]

    def move(self, weight, update, group):
        """Decay, and move this GPU's rows."""
        (count, _), shards = weight.shape, weight.device_mesh.get_group("shard")
        first = min(count, shards.rank() * -(-count // shards.size()))
        mine = weight.to_local()
        mine.mul_(1 - group["lr"] * group["weight_decay"])
        mine.add_(
            update[first : first + mine.size(0)], alpha=-_adjust_lr(group["lr"], group["adjust_lr_fn"], weight.shape)
        )
