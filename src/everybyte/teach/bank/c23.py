"""Exercises of chapter 23: batch, sequence or accumulation, which knob first?"""

from functools import partial

from ...ask.setup import Setup
from ...catalog import model
from ...formulas.symbols import H
from ..asking import peak
from ..program import Case, close
from . import answers, program

_MEDIUM = Setup(batch=4, accumulation=4)
_SMALL = Setup(batch=4, accumulation=16)


def _medium(**changes):
    return peak("gpt2-medium", _MEDIUM, **changes)


def _chunks(setup):
    return peak("gpt2", setup) - peak("gpt2", setup, loss="chunked")


def _logits(sequences):
    return 12 * model("gpt2").vocabulary * sequences * 1024 * 7 // 8


def _padded():
    """Small models, batches with padding, and the whole batch's gradients."""
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    class Small(nn.Module):
        def __init__(self, words, width, most):
            super().__init__()
            self.table, self.head, self.most = nn.Embedding(words, width), nn.Linear(width, words), most

        def forward(self, tokens):
            if len(tokens) > self.most:
                raise ValueError(f"{len(tokens)} sequences at once, where {self.most} fit")
            return self.head(self.table(tokens).tanh())

    sizes = ((8, 6, 2, 0), (8, 6, 4, 3), (9, 5, 2, 4), (6, 7, 1, 5), (10, 4, 3, 3))
    for case, (sequences, length, most, empty) in enumerate(sizes):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(23 + case)
            module = Small(11, 5, sequences).double()
            tokens, targets = torch.randint(11, (2, sequences, length))
            for row in range(sequences // 2):
                targets[row, length - empty :] = -100
            cross_entropy(module(tokens).flatten(0, 1), targets.flatten()).backward()
        right = [p.grad.clone() for p in module.parameters()]
        module.zero_grad()
        module.most = most
        name = f"{sequences} sequences of {length}, {most} at once" + ", padded" * bool(empty)
        yield Case(name, (module, tokens, targets, most), right)


def _accumulated(module, tokens, targets, size, *, by="tokens", cuts=True):
    """The answer, or what it would be with each micro-batch's loss divided by another number, or without micro-batches."""
    from torch.nn.functional import cross_entropy

    size = size if cuts else len(tokens)
    real, pieces = int((targets != -100).sum()), -(-len(tokens) // size)
    for some, wanted in zip(tokens.split(size), targets.split(size), strict=True):
        total = cross_entropy(module(some).flatten(0, 1), wanted.flatten(), reduction="sum")
        mean = total / max(1, int((wanted != -100).sum()))
        {"tokens": total / real, "pieces": mean / pieces, "none": mean, "all": total / targets.numel()}[by].backward()
    return [p.grad for p in module.parameters()]


ANSWERS = {
    "23.1": answers(
        _medium,
        first=lambda: _medium(accumulation=1),
        whole=lambda: _medium(batch=16, accumulation=1),
        quarter=lambda: _medium(batch=16, accumulation=1) // 4,
    ),
    "23.2": answers(8 * H / 3, half=4 * H / 3, fp32=3 * H / 2, casts=4 * H),
    "23.3": answers(
        6_000 / (4 * 400),
        fullest=3_000 / 400,
        mean=6_000 / 400,
        number=4,
        light=6_000 / (4 * 3_000),
        inverse=4 * 400 / 6_000,
    ),
    "23.4": answers(
        lambda: _chunks(_SMALL),
        logits=lambda: _logits(4),
        all_at_once=lambda: _chunks(Setup(batch=64)),
        all_logits=lambda: _logits(64),
    ),
    "23.5": program(
        _accumulated,
        _padded,
        close,
        pieces=partial(_accumulated, by="pieces"),
        mean=partial(_accumulated, by="none"),
        padding=partial(_accumulated, by="all"),
        cuts=False,
    ),
}
