"""The book's reference models with the losses of alignment (`reference/objectives`): a step, and a frozen model's pass."""

import warnings
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import cast

import torch
from torch import Tensor, nn

from ..ask.objectives import Objective, Scorer
from ..ask.setup import Setup
from ..catalog import Model
from ..reference import FAMILIES
from ..reference.objectives.losses import LOSSES, Scores, TokenLogProbabilities, WithReference
from ..reference.step import DTYPES
from .autocast import autocast_as_on_cuda
from .cuda import Kernels
from .inference import Counted, counted, lived
from .tracker import Tracker
from .workload import Workload


def workload(objective: Objective, setup: Setup) -> Workload:
    """The step of an objective, made ready."""
    objective.check(setup)
    in_step = objective.reference != "before"

    def make():
        if not in_step:
            return _ending(objective.trained, setup, LOSSES[objective.method]())
        policy, reference = _ending(objective.model, setup, TokenLogProbabilities()), None
        if setup.adapters is None:
            reference = _ending(objective.model, setup, TokenLogProbabilities())
            reference = reference.to(DTYPES[setup.dtypes.compute]).requires_grad_(False)
        return WithReference(policy, reference, objective.reference == "first")

    return Workload(
        make,
        lambda: _batch(objective, setup, in_step),
        lambda batch: [_targets(batch)],
        _call,
        setup,
        cast(Model, objective),
    )


def _ending(model, setup, loss):
    """The reference's module of a model, or of a `Scorer`, with another loss."""
    body = model.model if isinstance(model, Scorer) else model
    build: Callable = FAMILIES[cast(str, body.family)]
    module = build(body.replace(tied=False) if body is not model else body, setup)
    if body is not model:
        module.head = nn.Linear(body.width, 1, bias=False)
    module.loss = loss
    return module


def _batch(objective, setup, in_step):
    """(tokens, targets, mask) with a reference in the step; else (tokens, (targets, mask, what is known from before))."""
    sequences, length = objective.sequences * setup.batch, setup.sequence

    def known(*shape):
        return torch.empty(shape, dtype=torch.float32, device="meta")

    tokens, targets = (torch.empty(sequences, length, dtype=torch.int64, device="meta") for _ in range(2))
    mask = torch.empty(sequences, length, dtype=torch.bool, device="meta")
    if in_step:
        return tokens, targets, mask
    given = {
        "dpo": lambda: (known(sequences),),
        "ppo": lambda: (known(sequences, length), known(sequences, length)),
        "value": lambda: (known(sequences, length), known(sequences, length)),
        "grpo": lambda: (known(sequences, length), known(sequences, 1), known(sequences, length)),
    }[objective.method]()
    return tokens, (targets, mask, *given)


def _targets(batch):
    return batch[1] if isinstance(batch[1], Tensor) else batch[1][0]


def _call(module, batch):
    return module(*batch)


def dry_score(model: Model | Scorer, setup: Setup) -> Counted:
    """A frozen model's pass over a batch, without gradients: each token's log-probability, or by a `Scorer` its score.

    model: its weights have the data type of matrix products. setup: of one GPU; its batch, sequence, precision and attention count.
    """
    tracker = Tracker()
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(torch.no_grad())
        stack.enter_context(Kernels(tracker.loss_of))
        stack.enter_context(autocast_as_on_cuda())
        stack.enter_context(tracker)
        with torch.device("meta"):
            loss = Scores() if isinstance(model, Scorer) else TokenLogProbabilities()
            module = _ending(model, setup, loss).to(DTYPES[setup.dtypes.compute]).requires_grad_(False)
        tracker.restart()
        stack.enter_context(tracker.watching(module))
        tracker.phase, start = "forward", tracker.now
        shape = setup.batch, setup.sequence
        tokens, targets = (torch.empty(shape, dtype=torch.int64, device="meta") for _ in range(2))
        with torch.autocast("cuda", DTYPES[setup.dtypes.compute]) if setup.dtypes.autocast else nullcontext():
            found = module(tokens, targets)  # noqa: F841  lives to the end
        tracker.mark("end")
    return counted(tracker, lived(tracker), "scoring", start, tracker.now)
