"""The book's reference models with the losses of alignment: DPO's, PPO's two, GRPO's, as their papers and trainers write them."""

import warnings
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..ask.objectives import Objective, Scorer
from ..ask.setup import Setup
from ..catalog import Model
from ..reference import FAMILIES
from ..reference.step import DTYPES
from .autocast import autocast_as_on_cuda
from .cuda import Kernels
from .inference import Counted, counted, lived
from .tracker import Tracker
from .workload import Workload

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
    """The clipped surrogate; with a reference less a divergence from it. Sources: Schulman et al. 2017, equation 7; Shao et al. 2024, equation 4."""
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


class TokenLogProbabilities(nn.Module):
    """In the place of a model's loss."""

    def forward(self, logits, targets):
        return log_probabilities(logits, targets)


class Preference(nn.Module):
    """DPO's, with the reference's log-probabilities given: in the place of a model's loss."""

    def forward(self, logits, known):
        targets, mask, reference = known
        return preference(of_sequences(log_probabilities(logits, targets), mask), reference)


class Surrogate(nn.Module):
    """PPO's and GRPO's: in the place of a model's loss."""

    def forward(self, logits, known):
        targets, *others = known
        return surrogate(log_probabilities(logits, targets), *others)


class Values(nn.Module):
    """The value model's: in the place of a model's loss."""

    def forward(self, scores, known):  # (B, S, 1)
        _, *others = known
        return clipped_square(scores.squeeze(-1), *others)


class BothPreferences(nn.Module):
    """DPO's, from the token's log-probabilities by both models."""

    def forward(self, log_p, reference, mask):
        return preference(of_sequences(log_p, mask), of_sequences(reference, mask))


class Scores(nn.Module):
    """A value or a reward model's: in the place of a model's loss."""

    def forward(self, scores, targets):  # (B, S, 1)
        return scores.squeeze(-1)


class WithReference(nn.Module):
    """DPO's step with its reference: a second model, frozen, or the policy with its adapters switched off."""

    def __init__(self, objective: Objective, setup: Setup):
        super().__init__()
        build: Callable = FAMILIES[cast(str, objective.model.family)]
        self.first, self.reference = objective.reference == "first", None
        self.policy = build(objective.model, setup)
        self.policy.loss = TokenLogProbabilities()
        if setup.adapters is None:
            self.reference = build(objective.model, setup).to(DTYPES[setup.dtypes.compute]).requires_grad_(False)
            self.reference.loss = TokenLogProbabilities()
        self.loss = BothPreferences()

    def to(self, *args):  # a frozen model keeps the data type that it was loaded in
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
    in_step = objective.reference != "before"

    def make():
        if in_step:
            return WithReference(objective, setup)
        model, value = objective.model, objective.method == "value"
        build: Callable = FAMILIES[cast(str, model.family)]
        module = build(model.replace(tied=False) if value else model, setup)
        if value:
            module.head = nn.Linear(model.width, 1, bias=False)
        module.loss = {"dpo": Preference, "value": Values}.get(objective.method, Surrogate)()
        return module

    return Workload(
        make,
        lambda: _batch(objective, setup, in_step),
        lambda batch: [_targets(batch)],
        _call,
        setup,
        cast(Model, objective),
    )


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
    tracker, value = Tracker(), isinstance(model, Scorer)
    body = model.model if isinstance(model, Scorer) else model
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(torch.no_grad())
        stack.enter_context(Kernels(tracker.loss_of))
        stack.enter_context(autocast_as_on_cuda())
        stack.enter_context(tracker)
        with torch.device("meta"):
            build: Callable = FAMILIES[cast(str, body.family)]
            module = build(body.replace(tied=False) if value else body, setup)
            if value:
                module.head = nn.Linear(body.width, 1, bias=False)
            module.loss = Scores() if value else TokenLogProbabilities()
            module = module.to(DTYPES[setup.dtypes.compute]).requires_grad_(False)
        tracker.restart()
        stack.enter_context(tracker.watching(module))
        tracker.phase, start = "forward", tracker.now
        shape = setup.batch, setup.sequence
        tokens, targets = (torch.empty(shape, dtype=torch.int64, device="meta") for _ in range(2))
        with torch.autocast("cuda", DTYPES[setup.dtypes.compute]) if setup.dtypes.autocast else nullcontext():
            found = module(tokens, targets)  # noqa: F841  lives to the end
        tracker.mark("end")
    return counted(tracker, lived(tracker), "scoring", start, tracker.now)
