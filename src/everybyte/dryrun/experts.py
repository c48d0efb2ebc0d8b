"""Experts on several GPUs, on tensors without data: how many rows come to this one, the mesh says."""

import math

from ..catalog import Model
from ..reference.mesh.experts import ExpertLlama, ExpertTrainer, ParallelExperts
from ..reference.step import random_batch
from ..setup import Setup
from .modules import Workload


class Divided(Workload):
    """A step whose mixtures are divided."""

    def trainer(self, module, setup, **options):
        trainer = ExpertTrainer(module, setup, **options)
        trainer.forward = lambda inputs: self.call(trainer.called, inputs)
        return trainer


def workload(model: Model, setup: Setup) -> Divided:
    """The book's reference model, its routers told what they choose."""
    sent = setup.batch * setup.sequence * model.experts_per_token
    received = math.ceil(setup.mesh.routing * sent)

    class Told(ParallelExperts):
        def splits(self, visitors, coming):
            return _evenly(sent, self.gpus), _evenly(received, self.gpus)

    class ToldLlama(ExpertLlama):
        mixture = Told

    tokens = random_batch(model.vocabulary, setup, "meta")
    return Divided(
        lambda: ToldLlama(model, setup),
        tokens,
        lambda batch: [batch[1]],
        lambda llama, batch: llama(*batch),
        setup,
        model,
    )


def _evenly(rows, gpus):
    return [rows // gpus + (i < rows % gpus) for i in range(gpus)]
