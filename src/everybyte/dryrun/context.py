"""PyTorch's ring attention on tensors without data: one GPU of those that share sequences."""

from contextlib import contextmanager
from typing import cast
from unittest import mock

import torch

from ..catalog import Model
from ..reference.mesh.context import FAMILIES, ContextTrainer, placed
from ..reference.step import random_batch
from ..setup import Setup
from .collectives import in_flight
from .cuda import SCRATCH
from .modules import Workload

aten = torch.ops.aten


class Ring(Workload):
    """A step in which each GPU has a part of every sequence."""

    def trainer(self, module, setup, **options):
        trainer = ContextTrainer(module, setup, **options)
        trainer.forward = lambda inputs: self.call(trainer.called, inputs)
        return trainer


def workload(model: Model, setup: Setup) -> Ring:
    """The book's reference model, told where each token stands."""
    family = FAMILIES[cast(str, model.family)]
    first = model.learned_positions - model.positions if model.family == "gpt" else 0
    tokens = placed(random_batch(model.vocabulary, setup, "meta"), first)
    return Ring(
        lambda: family(model, setup), tokens, lambda batch: [batch[1]], lambda gpt, batch: gpt(*batch), setup, model
    )


@contextmanager
def as_on_cuda():
    """Within it, ring attention runs as on CUDA."""
    backward = aten._scaled_dot_product_flash_attention_backward.default
    with in_flight(), mock.patch.dict(SCRATCH, {backward: _copied}):
        yield


def _copied(grad, query, key, value, out, *_):
    """The kernel reads a token's heads side by side, and copies what does not lie so.

    Source: `_flash_attention_backward` in `native/transformers/cuda/attention_backward.cu`.
    """
    return tuple(x.numel() * x.itemsize for x in (grad, out) if not x.transpose(1, 2).is_contiguous())
