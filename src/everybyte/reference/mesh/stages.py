"""A model cut into stages: blocks in a row, the first stage with the embeddings, the last with norm, head and loss."""

import torch
from torch import nn

from ..gpt import through
from ..llama import turns


class Blocks(nn.ModuleList):
    """Some of a model's blocks, by the numbers that they have in the whole."""

    def __init__(self, blocks: dict[int, nn.Module]):
        super().__init__()
        for number, block in blocks.items():
            self.add_module(str(number), block)


class Share(nn.Module):
    """A micro-batch's share in the loss: the loss divided by how many there are."""

    def __init__(self, loss: nn.Module, head: nn.Module | None, batches: int):
        super().__init__()
        self.loss, self.batches = loss, batches
        self.before = () if head is None else (head,)  # the last stage's, not a module of its own

    def forward(self, output, targets):  # what the last stage gives, (B, S)
        loss = self.loss(*self.before, output, targets)
        return loss / self.batches if self.batches > 1 else loss


class Stage(nn.Module):
    """Blocks in a row; the first stage with the embeddings, the last with norm and head.

    What it has stands in the order of the whole, in which FSDP takes it.

    Args:
        whole: what the GPU has of the model. blocks: their numbers. first, last: whether it is.

    Attributes:
        positions: where its tokens stand, (S / c,), of GPUs that share sequences; else None, and they stand one after another.
    """

    positions = None

    def __init__(self, whole: nn.Module, blocks: range, first: bool, last: bool):
        super().__init__()
        self.setup, self.embed, self.first, self.last = whole.setup, whole.embed, first, last
        self.start, self.turning = getattr(whole, "first", None), getattr(whole, "turning", None)  # a GPT's, a Llama's
        for name in ("token", "position") if first else ():
            if hasattr(whole, name):
                self.add_module(name, getattr(whole, name))
        self.blocks = Blocks({i: whole.blocks.get_submodule(str(i)) for i in blocks})
        if last:
            self.norm, self.head = whole.norm, nn.Identity() if whole.with_head else whole.head

    def through(self, x, *others):
        """The blocks, and at the end norm and head."""
        x = through(self.blocks, self.setup, x, *others)
        return self.head(self.norm(x)) if self.last else x  # (B, S, H), or of the last (B, S, V)


class GPTStage(Stage):
    """A stage of a GPT."""

    def forward(self, x):  # of the first stage (B, S), of others (B, S, H)
        if self.first:
            positions = self.positions
            if positions is None:
                positions = torch.arange(self.start, self.start + x.size(1), device=x.device)
            x = self.embed(x, positions)
        return self.through(x)


class LlamaStage(Stage):
    """A stage of a Llama."""

    def forward(self, x):  # of the first stage (B, S), of others (B, S, H)
        if self.first:
            x = self.embed(x)
        cos, sin = turns(self.setup.sequence, self.turning, x.device, self.positions)
        return self.through(x, cos, sin)


STAGES = {"gpt": GPTStage, "llama": LlamaStage}
