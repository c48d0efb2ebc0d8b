"""Experts divided among GPUs: `reference/mesh/mixture.py` on the tape. How many rows come, the mesh says."""

import math

from .context import own_sequence
from .letters import Letter, over, product
from .programs import source
from .sharding import Cut

#: The weights that are divided.
OWN = ("mlp.gate_up", "mlp.down")


def received(model, setup) -> int:
    """Rows that come to one GPU's experts."""
    return math.ceil(setup.mesh.routing * (setup.batch * setup.own_sequence * model.experts_per_token))


def along(model, setup) -> int:
    """The dimension along which FSDP cuts the experts of one GPU: the experts, or where there are fewer than GPUs, their rows."""
    return int(setup.expert_shards * setup.mesh.expert > model.experts)


class Experts:
    """What one GPU has of experts that several divide.

    Attributes:
        parts: among how many. sent, rows: how many rows go from it, and come. cut: how FSDP cuts its own, if it does.
    """

    def __init__(self, model, setup):
        self.parts, self.rows = Letter(setup.mesh.expert, "E_p"), Letter(received(model, setup), "X")
        visits = Letter(setup.batch, "B"), own_sequence(setup), Letter(model.experts_per_token, "E_t")
        self.sent, self.cut = product(visits), None
        if setup.fsdp:
            self.cut = Cut(OWN, Letter(setup.expert_shards, "G_e"), along(model, setup))

    def shape(self, name, shape):
        """Of a weight of that shape what this GPU has."""
        return (over(shape[0], self.parts), *shape[1:]) if name.endswith(OWN) else shape

    def into(self, module, model):
        """Put them into the blocks of the reference's module of a model."""
        mixture = source("mesh.mixture").ParallelExperts
        for block in module.blocks:
            block.mlp = mixture(model, int(self.parts))
            block.mlp.gpus, block.mlp.splits = self.parts, lambda visitors, coming: (self.sent, self.rows)
