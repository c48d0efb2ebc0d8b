"""The book's reference models with the losses of alignment: DPO's, PPO's two, GRPO's, as their papers and trainers write them."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import cast

import torch
from torch import nn
from torch.nn import functional as F

from ..ask.objectives import Objective, Scorer
from ..ask.setup import Setup
from ..catalog import Model
from ..reference import FAMILIES
from ..reference.step import DTYPES
from .inference import Counted, counted, without_gradients
from .tracker import Tracker
from .workload import Workload, of_reference

BETA, CLIP = 0.1, 0.2


def log_probabilities(logits, targets):  # (B, S, V), (B, S) -> (B, S)
    """Each token's log-probability."""
    return logits.log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def of_sequences(log_p, mask):  # (B, S), (B, S) -> (B,)
    """Each sequence's log-probability: the sum over the tokens of the answer."""
    return (log_p * mask).sum(-1)


def preference(policy, reference):  # (2B,), (2B,), the chosen first
    """DPO's loss. Source: Rafailov et al. 2023, equation 7."""
    chosen, rejected = (policy - reference).chunk(2)
    return -F.logsigmoid(BETA * (chosen - rejected)).mean()


def surrogate(log_p, mask, old, advantages, reference=None):  # (B, S) each; GRPO's advantages (B, 1)
    """The clipped surrogate; with a reference, less a divergence from it.

    Sources: Schulman et al. 2017, equation 7; Shao et al. 2024, equation 4.
    """
    ratio = (log_p - old).exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    if reference is not None:
        ahead = reference - log_p
        gain = gain - BETA * (ahead.exp() - ahead - 1)
    return -(gain * mask).sum() / mask.sum()


def clipped_square(values, mask, old, returns):  # (B, S) each
    """The value model's loss. Source: trl, trainer/ppo_trainer.py; openai/baselines, ppo2."""
    clipped = old + (values - old).clamp(-CLIP, CLIP)
    worse = torch.maximum((values - returns).square(), (clipped - returns).square())
    return 0.5 * (worse * mask).sum() / mask.sum()


# In the place of a model's loss: given logits (B, S, V), or scores (B, S, 1), and the targets (B, S) with what is known from before.


def known_preference(logits, known):
    targets, mask, reference = known
    return preference(of_sequences(log_probabilities(logits, targets), mask), reference)


def known_surrogate(logits, known):
    targets, *others = known
    return surrogate(log_probabilities(logits, targets), *others)


def known_values(scores, known):
    _, *others = known
    return clipped_square(scores.squeeze(-1), *others)


def both_preferences(log_p, reference, mask):  # the tokens' log-probabilities by both models
    return preference(of_sequences(log_p, mask), of_sequences(reference, mask))


LOSSES = {"dpo": known_preference, "ppo": known_surrogate, "grpo": known_surrogate, "value": known_values}


class Loss(nn.Module):
    """A function as a module, by whose name an operation is known to belong to the loss."""

    def __init__(self, function: Callable):
        super().__init__()
        self.function = function

    def forward(self, *given):
        return self.function(*given)


def built(model: Model, setup: Setup, loss: Callable, scores: bool = False) -> nn.Module:
    """The book's reference model with another loss. scores: with a head of one number a token, as value and reward models have."""
    family: Callable = FAMILIES[cast(str, model.family)]
    module = family(model.replace(tied=False) if scores else model, setup)
    if scores:
        module.head = nn.Linear(model.width, 1, bias=False)
    module.loss = Loss(loss)
    return module


class WithReference(nn.Module):
    """DPO's step with its reference: a second model, frozen, or the policy with its adapters switched off."""

    def __init__(self, objective: Objective, setup: Setup):
        super().__init__()
        model = cast(Model, objective.model)
        self.first, self.reference = objective.reference == "first", None
        self.policy = built(model, setup, log_probabilities)
        if setup.adapters is None:
            # A frozen model keeps the data type in which it was loaded.
            reference = built(model, setup, log_probabilities).to(DTYPES[setup.dtypes.compute])
            self.reference = reference.requires_grad_(False)
        self.loss = Loss(both_preferences)

    def to(self, *args):
        if self.reference is None:
            return super().to(*args)
        self.policy.to(*args)
        return self

    def get_output_embeddings(self):  # by which adapters know the head
        return self.policy.head

    def forward(self, tokens, targets, mask):
        reference = self.by_reference(tokens, targets) if self.first else None
        log_p = self.policy(tokens, targets)
        if not self.first:
            reference = self.by_reference(tokens, targets)
        return self.loss(log_p, reference, mask)

    @torch.no_grad()
    def by_reference(self, tokens, targets):
        if self.reference is not None:
            return self.reference(tokens, targets)
        adapted = [layer for layer in self.modules() if hasattr(layer, "enable_adapters")]
        for layer in adapted:
            layer.enable_adapters(False)
        try:
            return self.policy(tokens, targets)
        finally:
            for layer in adapted:
                layer.enable_adapters(True)


def workload(objective: Objective, setup: Setup) -> Workload:
    """The step of an objective, made ready."""
    objective.check(setup)
    return of_reference(_module, partial(_batch, objective, setup), setup, cast(Model, objective))


def _module(objective, setup):
    if objective.reference != "before":
        return WithReference(objective, setup)
    return built(objective.model, setup, LOSSES[objective.method], objective.method == "value")


def _batch(objective, setup):
    """(tokens, targets, mask) with a reference in the step; else (tokens, (targets, mask, what is known from before))."""
    sequences, length = objective.sequences * setup.batch, setup.sequence
    tokens, targets = (_empty(torch.int64, sequences, length) for _ in range(2))
    mask = _empty(torch.bool, sequences, length)
    if objective.reference != "before":
        return tokens, targets, mask
    each, token = (sequences, 1), (sequences, length)
    shapes = {"dpo": [(sequences,)], "ppo": [token, token], "value": [token, token], "grpo": [token, each, token]}
    return tokens, (targets, mask, *(_empty(torch.float32, *shape) for shape in shapes[objective.method]))


def _empty(dtype, *shape):
    return torch.empty(shape, dtype=dtype, device="meta")


def dry_score(model: Model | Scorer, setup: Setup) -> Counted:
    """A frozen model's pass over a batch, without gradients: each token's log-probability, or by a `Scorer` its score.

    model: its weights have the data type of matrix products. setup: of one GPU; its batch, sequence, precision and attention count.
    """
    tracker, scores, compute = Tracker(), isinstance(model, Scorer), DTYPES[setup.dtypes.compute]
    body, loss = (model.model, lambda scores, _: scores.squeeze(-1)) if scores else (model, log_probabilities)
    with without_gradients(tracker):
        with torch.device("meta"):
            module = built(body, setup, loss, scores).to(compute).requires_grad_(False)
        tracker.restart()
        with tracker.watching(module), torch.autocast("cuda", compute) if setup.dtypes.autocast else nullcontext():
            tracker.phase = "forward"
            tokens, targets = (_empty(torch.int64, setup.batch, setup.sequence) for _ in range(2))
            found = module(tokens, targets)  # noqa: F841  lives to the end
            end = tracker.mark("end")
    return counted(tracker, [("rest", 0), ("scoring", end)])[0]
