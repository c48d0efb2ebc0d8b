"""Muon under FSDP: updates are made whole, all of them on every GPU or one on each, and every GPU moves its own rows by them."""

import torch
from torch import distributed as dist
from torch.optim._muon import _adjust_lr, _zeropower_via_newtonschulz

from ...ask.setup import Setup
from ..parallel import all_gather


def gathering(trainer, setup: Setup):
    """Where FSDP divides what Muon moves, have its matrices gathered in 16 bits."""
    if setup.optimizer == "muon" and setup.fsdp:
        kind = {"each": GatheredMuon, "owner": OwnedMuon, "all-to-all": ExchangedMuon}[setup.muon_gather]
        muon = trainer.optimizer.optimizer if setup.dtypes.master else trainer.optimizer
        muon.both = [
            kind(one.param_groups[0]["params"], lr=one.param_groups[0]["lr"])
            if isinstance(one, torch.optim.Muon)
            else one
            for one in muon.both
        ]


class GatheredMuon(torch.optim.Muon):
    """PyTorch's Muon over shares of rows: momentum and weights stay divided, and the product's side is the whole matrix.

    Source: Liu et al. 2025, Muon is Scalable for LLM Training, arXiv:2502.16982, Algorithm 1, "Distributed Muon", in bf16.
    """

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                update = self.whole(weight, self.averaged(weight, group))
                update = self.orthogonal(update, group)
                self.move(weight, self.own(weight, update), group)
        update = None  # noqa: F841

    def orthogonal(self, update, group):
        return _zeropower_via_newtonschulz(update, group["ns_coefficients"], group["ns_steps"], group["eps"])

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

    def own(self, weight, update):
        """This GPU's rows of a whole update, and those after them."""
        shards = weight.device_mesh.get_group("shard")
        return update[shards.rank() * -(-weight.size(0) // shards.size()) :]

    def move(self, weight, rows, group):
        """Decay, and move this GPU's rows by the first of these."""
        mine = weight.to_local()
        mine.mul_(1 - group["lr"] * group["weight_decay"])
        mine.add_(rows[: mine.size(0)], alpha=-_adjust_lr(group["lr"], group["adjust_lr_fn"], weight.shape))


class OwnedMuon(GatheredMuon):
    """Of as many matrices of one shape as there are GPUs each is gathered on one GPU, made orthogonal there, and scattered.

    Shares are filled up to the largest. Sources: Megatron-LM, `megatron/core/optimizer/fully_shard_v2_muon.py`, `FullyShardV2Muon`, which
    gathers all matrices before the first is made orthogonal; samsja/muon_fsdp_2, `src/muon_fsdp2/__init__.py`, `Muon`, which keeps eight.
    """

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            alike = {}
            for weight in group["params"]:
                alike.setdefault(weight.shape, []).append(weight)
            for weights in alike.values():
                gpus = weights[0].device_mesh.get_group("shard").size()
                for first in range(0, len(weights), gpus):
                    self.together(weights[first : first + gpus], group)

    def together(self, weights, group):
        """Move these weights, of one shape, at most as many as there are GPUs."""
        whole = None
        for owner, weight in enumerate(weights):
            found = self.gathered(weight, group, owner)
            whole = whole if found is None else found
        if whole is not None:
            mine = whole.flatten(0, 1)[: weights[0].size(0)]
            mine.copy_(self.orthogonal(mine, group))
        for owner, weight in enumerate(weights):
            self.scattered(weight, group, owner, whole)

    def gathered(self, weight, group, owner):
        """All GPUs' rows of an update, on its owner; None on others."""
        shards, sent = weight.device_mesh.get_group("shard"), self.empty(weight).zero_()
        self.put(sent, weight, group)
        whole = sent.new_empty((shards.size(), *sent.shape)) if shards.rank() == owner else None
        dist.gather(sent, whole if whole is None else list(whole), group=shards, group_dst=owner)
        return whole

    def scattered(self, weight, group, owner, whole):
        """Move a weight by the rows that its owner gives."""
        shards, rows = weight.device_mesh.get_group("shard"), self.empty(weight)
        dist.scatter(rows, list(whole) if shards.rank() == owner else None, group=shards, group_src=owner)
        self.move(weight, rows, group)

    def put(self, rows, weight, group):
        """This GPU's rows of an update into the first of these."""
        found = self.averaged(weight, group)
        rows[: found.size(0)].copy_(found)

    def empty(self, weight, *parts):
        """So many times the largest share of a matrix, in bf16."""
        (count, width), gpus = weight.shape, weight.device_mesh.get_group("shard").size()
        return weight.to_local().new_empty((*parts, -(-count // gpus), width), dtype=torch.bfloat16)


class ExchangedMuon(OwnedMuon):
    """The same by one all-to-all there and one back for all of them; zeros stand for matrices where fewer are left.

    What is sent is kept for what comes back. Source: Microsoft's Dion, `dion/megabatch_base.py`, `megabatch_orthogonalize_async`, with
    one matrix a GPU at a time as in torchtitan's `experiments/dion_optimizer/muon.py`. There the shards that come are concatenated, which
    here is no copy, and up to three batches are under way at once.
    """

    def together(self, weights, group):
        """Move these weights, of one shape, at most as many as there are GPUs."""
        shards = weights[0].device_mesh.get_group("shard")
        sent = self.empty(weights[0], shards.size()).zero_()
        for weight, rows in zip(weights, sent, strict=False):
            self.put(rows, weight, group)
        whole = torch.empty_like(sent)
        dist.all_to_all_single(whole, sent, group=shards)
        mine = whole.flatten(0, 1)[: weights[0].size(0)]
        mine.copy_(self.orthogonal(mine, group))
        dist.all_to_all_single(sent, whole, group=shards)
        for weight, rows in zip(weights, sent, strict=False):
            self.move(weight, rows, group)
