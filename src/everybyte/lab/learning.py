"""Training on prose: a trainer with a learning-rate schedule and clipping, its batches, and the validation loss."""

import lzma
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from ..ask.setup import Setup
from ..reference import Trainer
from ..reference.text import text_batch
from .recipe import Recipe

#: Two novels; `prose/TEXT.md` says which.
PROSE = Path(__file__).parent / "prose" / "austen.txt.xz"
#: The learning rate of pretraining; the tenths of the prose that are training text.
BEFORE, TRAINED = 3e-3, 9


@cache
def prose() -> tuple[torch.Tensor, torch.Tensor]:
    """(training text, validation text): uint8, one byte per token."""
    text = torch.frombuffer(bytearray(lzma.decompress(PROSE.read_bytes())), dtype=torch.uint8)
    return text[: len(text) * TRAINED // 10], text[len(text) * TRAINED // 10 :]


def windows(text: torch.Tensor, starts: torch.Tensor, sequence: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens, targets) of the windows that start there; targets are the next tokens. (B, S) each, int64."""
    rows = text[starts[:, None] + torch.arange(sequence + 1)].to(torch.int64)  # (B, S + 1)
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def training_batches(setup: Setup, seed: int) -> Callable:
    """A function that gives a batch of random windows, the same for every setup with that seed. N GPUs share batches N times as large."""
    text, _ = prose()
    rank, gpus = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    generator, B, S = torch.Generator().manual_seed(seed), setup.batch, setup.sequence

    def batch():
        starts = torch.randint(len(text) - S, (gpus * B,), generator=generator)
        return windows(text, starts[rank * B : (rank + 1) * B], S)

    return batch


def validation_batches(setup: Setup, count: int) -> list:
    """At least `count` windows, evenly spaced over the validation text, in batches of the setup's size."""
    _, text = prose()
    count = -(-count // setup.batch) * setup.batch
    starts = torch.arange(count) * (len(text) - setup.sequence - 1) // count
    return [windows(text, part, setup.sequence) for part in starts.split(setup.batch)]


def pretrain(module: nn.Module, vocabulary: int, setup: Setup, recipe: Recipe) -> None:
    """Train all weights of a module on the book's text, in fp32 by AdamW, before it is fine-tuned in any way."""
    plain = Setup(batch=setup.batch, sequence=setup.sequence, attention=setup.attention)
    steps = recipe.pretrained
    shape = {"steps": max(10, steps), "warm_up": max(1, min(9, steps // 10))}
    learner = Learner(module, plain, replace(recipe, **shape, learning_rate=BEFORE, evaluations=1))
    batch = text_batch(vocabulary, plain, learner.device)
    for _ in range(steps):
        learner.step(batch)


class Learner(Trainer):
    """The reference's trainer with a learning-rate schedule and gradient clipping."""

    def __init__(self, module: nn.Module, setup: Setup, recipe: Recipe):
        super().__init__(module, setup)
        self.recipe, self.taken = recipe, 0
        within = getattr(self.optimizer, "optimizer", self.optimizer)  # master weights have one of PyTorch's within
        self.groups: list[dict] = within.param_groups  # type: ignore[union-attr]
        self.weights = [p for p in self.module.parameters() if p.requires_grad]

    def update(self):
        for group in self.groups:
            group["lr"] = self.recipe.rate(self.taken)
        if self.scaler:
            self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.weights, self.recipe.clip)
        super().update()
        self.taken += 1

    @torch.no_grad()
    def evaluate(self, batches: list) -> float:
        """The loss, averaged over batches, without dropout."""
        self.module.eval()
        for child in self.module.modules():
            if hasattr(child, "quant_state"):  # on a CPU bitsandbytes would pack its 4 bits anew, for inference alone
                child.train()
        total = torch.zeros((), device=self.device)
        for batch in batches:
            with self.autocast():
                total += self.forward(tuple(tokens.to(self.device) for tokens in batch)).float()
        self.module.train()
        return (total / len(batches)).item()
