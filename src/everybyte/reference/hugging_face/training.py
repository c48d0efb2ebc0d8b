"""A training step's forward as transformers runs it: `...ForCausalLM` with labels, and what a loop makes of its outputs."""

from torch import nn
from torch.nn import functional as F


class CausalLoss(nn.Module):
    """Cross-entropy of the next token, in fp32. Source: `loss/loss_utils.py`, `ForCausalLMLoss`.

    Attributes:
        items: a tensor of one number, which the sum of all tokens' is divided by; None for their mean.
    """

    items = None

    def forward(self, logits, labels):  # (B, S, V), (B, S)
        logits = logits.float()
        labels = F.pad(labels, (0, 1), value=-100)
        shifted = labels[..., 1:].contiguous()  # tokens up to n predict token n
        logits = logits.view(-1, logits.size(-1))
        shifted = shifted.view(-1)
        if self.items is None:
            return F.cross_entropy(logits, shifted)
        loss = F.cross_entropy(logits, shifted, reduction="sum")
        return loss / self.items


def outputs_of(decoder, tokens, labels, items=None):  # (B, S) each, () -> (), (B, S, V)
    """What the model gives for a batch: its loss, and the logits, which live as long as somebody has them."""
    decoder.loss.items = items
    return decoder(tokens, decoder.nothing, labels)


def loss_of(decoder, tokens, labels):  # (B, S) each
    """The loss of a batch. The logits live as long as the outputs, which end with this call."""
    outputs = outputs_of(decoder, tokens, labels)
    return outputs[0]
