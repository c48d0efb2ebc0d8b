"""Exercises of chapter 23: batch, sequence or accumulation, which knob first?"""

from ...formulas.symbols import H
from . import Case, answers, close, each, model, program, run

SMALL, CHUNKED = run("gpt2", batch=4, accumulation=16), {"loss": "chunked"}
MEDIUM = run("gpt2-medium", batch=4, accumulation=4)
WHOLE = MEDIUM.peak(batch=16, accumulation=1)


def logits(sequences):
    return 12 * model("gpt2").vocabulary * sequences * 1024 * 7 // 8


def padded():
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
    for seed, (sequences, length, most, empty) in enumerate(sizes, 23):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = Small(11, 5, sequences).double()
            tokens, targets = torch.randint(11, (2, sequences, length))
        targets[: sequences // 2, length - empty :] = -100
        cross_entropy(module(tokens).flatten(0, 1), targets.flatten()).backward()
        right = [p.grad.clone() for p in module.parameters()]
        module.zero_grad()
        module.most = most
        name = f"{sequences} sequences of {length}, {most} at once" + ", padded" * bool(empty)
        yield Case(name, (module, tokens, targets, most), right)


def accumulated(module, tokens, targets, size, *, by="tokens", cuts=True):
    from torch.nn.functional import cross_entropy

    size = size if cuts else len(tokens)
    real, pieces = int((targets != -100).sum()), -(-len(tokens) // size)
    for some, wanted in zip(tokens.split(size), targets.split(size), strict=True):
        total = cross_entropy(module(some).flatten(0, 1), wanted.flatten(), reduction="sum")
        mean = total / max(1, int((wanted != -100).sum()))
        {"tokens": total / real, "pieces": mean / pieces, "none": mean, "all": total / targets.numel()}[by].backward()
    return [p.grad for p in module.parameters()]


ANSWERS = {
    "23.1": answers(MEDIUM.peak(), first=MEDIUM.peak(accumulation=1), whole=WHOLE, quarter=WHOLE // 4),
    "23.2": answers(8 * H / 3, half=4 * H / 3, fp32=3 * H / 2, casts=4 * H),
    "23.3": answers(
        6_000 / 1_600, fullest=3_000 / 400, mean=6_000 / 400, number=4, light=6_000 / 12_000, inverse=1_600 / 6_000
    ),
    "23.4": answers(
        SMALL.falls(CHUNKED), at_once=SMALL.falls(CHUNKED, batch=64, accumulation=1), **each(logits, logits=4, whole=64)
    ),
    "23.5": program(
        accumulated, padded, close, pieces={"by": "pieces"}, mean={"by": "none"}, padding={"by": "all"}, cuts=False
    ),
}
