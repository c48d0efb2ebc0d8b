"""Experts divided among GPUs: `reference/mesh/mixture.py` on the tape. How many rows come, the mesh says."""

import math
from dataclasses import replace

from .context import own_sequence
from .letters import Letter, over, product
from .programs import Network, source
from .sharding import Cut
from .training import Step

#: The weights that are divided.
OWN = ("mlp.gate_up", "mlp.down")


def received(model, setup) -> int:
    """Rows that come to one GPU's experts."""
    return math.ceil(setup.mesh.routing * setup.batch * setup.own_sequence * model.experts_per_token)


def along(model, setup) -> int:
    """The dimension along which FSDP cuts the experts of one GPU: the experts, or where there are fewer than GPUs, their rows."""
    return int(setup.expert_shards * setup.mesh.expert > model.experts)


class ExpertNetwork(Network):
    """A network of which one GPU has some experts. `parts`, `sent`, `rows`: among how many they are divided, how many rows go and come."""

    parts: Letter
    sent: Letter
    rows: Letter

    def _add(self, name, shape, *rest):
        super()._add(name, (over(shape[0], self.parts), *shape[1:]) if name.endswith(OWN) else shape, *rest)

    def _built(self, model, setup):
        module = super()._built(model, setup)
        kind, number = source("mesh.mixture").ParallelExperts, int(self.parts)
        for block in module.blocks:
            block.mlp = kind(model, number)
            block.mlp.gpus, block.mlp.splits = self.parts, lambda visitors, coming: (self.sent, self.rows)
        module.on(self)
        return module


class ExpertStep(Step):
    """The step of one GPU of those that divide experts; of those that share sequences too, a `RingStep` is before it."""

    def __init__(self, model, setup, *others):
        self.groups, self.rows = Letter(setup.mesh.expert, "E_p"), Letter(received(model, setup), "X")
        visits = Letter(setup.batch, "B"), own_sequence(setup), Letter(model.experts_per_token, "E_t")
        self.visits = product(visits)
        if setup.fsdp:
            self.own = Cut(OWN, Letter(setup.expert_shards, "G_e"), along(model, setup))
        super().__init__(model, setup, *others)

    def kind(self, network):
        beside = () if network is Network else (network,)
        return type("Divided", (*beside, ExpertNetwork), {"parts": self.groups, "sent": self.visits, "rows": self.rows})

    def _counted(self, weights):
        mine = (
            replace(w, shape=(over(w.shape[0], self.groups), *w.shape[1:])) if w.name in OWN else w for w in weights
        )
        return super()._counted(mine)
