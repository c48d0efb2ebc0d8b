"""A model of the book's that gives its logits too, as most models do."""

from torch import nn


class WithLogits(nn.Module):
    """A loss that gives what it was made of: the model's forward then returns (loss, logits)."""

    def __init__(self, loss):
        super().__init__()
        self.loss = loss

    def forward(self, logits, targets):  # (B, S, V), (B, S)
        return self.loss(logits, targets), logits
