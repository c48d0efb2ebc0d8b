"""The book's reference models with the losses of alignment (`reference/objectives`): a step, and a frozen model's pass."""

from contextlib import nullcontext
from functools import partial
from typing import cast

import torch
from torch import nn

from ..ask.objectives import Objective, Scorer
from ..ask.setup import Setup
from ..catalog import Model
from ..reference.objectives.losses import LOSSES, Scores, TokenLogProbabilities, WithReference
from ..reference.saving import built
from ..reference.step import DTYPES
from .inference import Counted, counted, without_gradients
from .tracker import Tracker
from .workload import Workload, of_reference


def _built(model: Model | Scorer, setup: Setup, loss: nn.Module) -> nn.Module:
    """The reference's module of a model, or of a `Scorer`, with another loss."""
    body = model.model if isinstance(model, Scorer) else model
    module = built(body if body is model else body.replace(tied=False), setup)
    if body is not model:
        module.head = nn.Linear(body.width, 1, bias=False)
    module.loss = loss
    return module


def workload(objective: Objective, setup: Setup) -> Workload:
    """The `Workload` of an objective's step."""
    objective.check(setup)
    return of_reference(_module, partial(_batch, objective, setup), setup, cast(Model, objective))


def _module(objective, setup):
    if not objective.in_step:
        return _built(objective.trained, setup, LOSSES[objective.method]())
    policy, reference = _built(objective.model, setup, TokenLogProbabilities()), None
    if setup.adapters is None:
        reference = _built(objective.model, setup, TokenLogProbabilities())
        reference = reference.to(DTYPES[setup.dtypes.compute]).requires_grad_(False)
    return WithReference(policy, reference, objective.reference == "first")


def _batch(objective, setup):
    """(tokens, targets, mask) with a reference in the step; else (tokens, (targets, mask, values computed before))."""
    sequences, length = objective.sequences * setup.batch, setup.sequence
    tokens, targets = (_empty(torch.int64, sequences, length) for _ in range(2))
    mask = _empty(torch.bool, sequences, length)
    if objective.in_step:
        return tokens, targets, mask
    each, token = (sequences, 1), (sequences, length)
    shapes = {
        "dpo": [(sequences,)],
        "ppo": [token, token],
        "value": [token, token],
        "grpo": [token, each, *([token] if objective.reference == "before" else [])],
    }
    return tokens, (targets, mask, *(_empty(torch.float32, *shape) for shape in shapes[objective.method]))


def _empty(dtype, *shape):
    return torch.empty(shape, dtype=dtype, device="meta")


def dry_score(model: Model | Scorer, setup: Setup) -> Counted:
    """A frozen model's pass over a batch, without gradients: each token's log-probability, or a `Scorer`'s score.

    Args:
        model: its weights have the data type of matrix products.
        setup: of one GPU; its batch, sequence, precision and attention are used.
    """
    tracker, compute = Tracker(), DTYPES[setup.dtypes.compute]
    loss = Scores() if isinstance(model, Scorer) else TokenLogProbabilities()
    with without_gradients(tracker):
        with torch.device("meta"):
            module = _built(model, setup, loss).to(compute).requires_grad_(False)
        tracker.restart()
        with tracker.watching(module), torch.autocast("cuda", compute) if setup.dtypes.autocast else nullcontext():
            tracker.phase = "forward"
            tokens, targets = (_empty(torch.int64, setup.batch, setup.sequence) for _ in range(2))
            found = module(tokens, targets)  # noqa: F841  lives to the end
            end = tracker.mark("end")
    return counted(tracker, [("rest", 0), ("scoring", end)])[0]
