"""Losses of log-probabilities and values, and the modules that stand in the place of a model's own loss."""

import torch
from torch import nn
from torch.nn import functional as F

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
    return over_answers(gain, mask, -1.0)


def clipped_square(values, mask, old, returns):  # (B, S) each
    """The value model's loss. Source: trl, trainer/ppo_trainer.py; openai/baselines, ppo2."""
    clipped = old + (values - old).clamp(-CLIP, CLIP)
    worse = torch.maximum((values - returns).square(), (clipped - returns).square())
    return over_answers(worse, mask, 0.5)


def over_answers(x, mask, factor):  # (B, S) each
    """The mean over the tokens of answers, times a factor."""
    return factor * (x * mask).sum() / mask.sum()


# In the place of a model's loss.


class TokenLogProbabilities(nn.Module):
    """Each token's log-probability, in the place of a loss."""

    def forward(self, logits, targets):
        return log_probabilities(logits, targets)


class Preference(nn.Module):
    """DPO's, with the reference's log-probabilities given."""

    def forward(self, logits, known):
        targets, mask, reference = known
        return preference(of_sequences(log_probabilities(logits, targets), mask), reference)


class Surrogate(nn.Module):
    """PPO's and GRPO's."""

    def forward(self, logits, known):
        targets, *others = known
        return surrogate(log_probabilities(logits, targets), *others)


class Values(nn.Module):
    """The value model's."""

    def forward(self, scores, known):  # (B, S, 1)
        _, *others = known
        return clipped_square(scores.squeeze(-1), *others)


class BothPreferences(nn.Module):
    """DPO's, from each token's log-probability by both models."""

    def forward(self, log_p, reference, mask):
        return preference(of_sequences(log_p, mask), of_sequences(reference, mask))


class Scores(nn.Module):
    """A value or a reward model's number for each token, in the place of a loss."""

    def forward(self, scores, targets):  # (B, S, 1)
        return scores.squeeze(-1)


#: Method -> the loss of a step whose reference, if it has one, ran before.
LOSSES = {"dpo": Preference, "ppo": Surrogate, "grpo": Surrogate, "value": Values}


class WithReference(nn.Module):
    """DPO's step with its reference: a second model, frozen, or the policy with its adapters switched off.

    Args:
        policy, reference: models that give each token's log-probability; no reference where the policy has adapters.
        first: whether the reference runs before the policy.
    """

    def __init__(self, policy, reference, first: bool):
        super().__init__()
        self.policy, self.reference, self.first = policy, reference, first
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
