"""The book's models whose sequences or experts several GPUs divide, on tensors without data, made ready."""

import math
from typing import cast

from ..ask.setup import Setup
from ..catalog import Model
from ..reference import FAMILIES
from ..reference.mesh.context import ContextExpertTrainer, ContextTrainer, placed
from ..reference.mesh.experts import ExpertTrainer
from ..reference.mesh.mixture import ExpertLlama, ParallelExperts
from ..reference.step import random_batch
from .workload import Workload, of_reference


def workload(model: Model, setup: Setup) -> Workload:
    """The book's reference model: told where each token stands, and what its routers choose."""
    context, expert = setup.mesh.context > 1, setup.mesh.expert > 1
    tokens = random_batch(model.vocabulary, setup, "meta")
    if context:
        tokens = placed(tokens, model.learned_positions - model.positions if model.family == "gpt" else 0)
    family = FAMILIES[cast(str, model.family)]
    if expert:
        family = told(ExpertLlama, model, setup)
    trains = ContextExpertTrainer if context and expert else ContextTrainer if context else ExpertTrainer
    return of_reference(family, tokens, setup, model, trains=trains)


def told(family, model, setup):
    """A Llama of divided mixtures that are told how many rows come to this GPU, as the mesh says."""
    return type("Told", (family,), {"mixture": told_mixture(model, setup)})


def told_mixture(model, setup):
    """A divided mixture that is told how many rows come."""
    sent = setup.batch * setup.own_sequence * model.experts_per_token
    received = math.ceil(setup.mesh.routing * sent)

    class Told(ParallelExperts):
        def splits(self, visitors, coming):
            return _evenly(sent, self.gpus), _evenly(received, self.gpus)

    return Told


def _evenly(rows, gpus):
    return [rows // gpus + (i < rows % gpus) for i in range(gpus)]
