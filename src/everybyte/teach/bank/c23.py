"""Exercises of chapter 23: batch, sequence or accumulation, which knob first?"""

from ...budget import budget
from ...catalog import model
from ...formulas import SYMBOLS
from ...setup import Setup
from ..exercise import Exercise
from ..program import Case, Program, close

H = SYMBOLS["width"].symbol
_MEDIUM = Setup(batch=4, accumulation=4)
_SMALL = Setup(batch=4, accumulation=16)


def _medium(**changes):
    return budget(model("gpt2-medium"), _MEDIUM.replace(**changes)).peak


def _chunks(setup):
    return budget(model("gpt2"), setup).peak - budget(model("gpt2"), setup.replace(loss="chunked")).peak


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


def _accumulated(by="tokens", cuts=True):
    """What it would be with each micro-batch's loss divided by another number, or without micro-batches."""

    def accumulated(module, tokens, targets, size):
        from torch.nn.functional import cross_entropy

        size = size if cuts else len(tokens)
        real, pieces = int((targets != -100).sum()), -(-len(tokens) // size)
        for some, wanted in zip(tokens.split(size), targets.split(size), strict=True):
            total = cross_entropy(module(some).flatten(0, 1), wanted.flatten(), reduction="sum")
            mean = total / max(1, int((wanted != -100).sum()))
            {"tokens": total / real, "pieces": mean / pieces, "none": mean, "all": total / targets.numel()}[
                by
            ].backward()
        return [p.grad for p in module.parameters()]

    return accumulated


EXERCISES = [
    Exercise(
        id="23.1",
        title="The peak of GPT-2 medium, 16 × 1,024 tokens in four micro-batches",
        difficulty=1,
        minutes=5,
        unit="GiB",
        decimals=2,
        answer=_medium,
        mistakes={
            "the gradients stand from the second batch on: 4 bytes a parameter are missing": lambda: _medium(
                accumulation=1
            ),
            "that is the whole batch at once": lambda: _medium(batch=16, accumulation=1),
            "that is a quarter of the whole's peak: the states are not cut": lambda: (
                _medium(batch=16, accumulation=1) // 4
            ),
        },
        hints=(
            "Weights, Adam's two states and the gradients of the micro-batches before stand; then come four sequences' tokens.",
            "16 bytes a parameter, and `alpha` for each of 4 × 1,024 tokens.",
        ),
    ),
    Exercise(
        id="23.2",
        title="From how many tokens on two halves take less, under autocast with the fused step",
        difficulty=3,
        minutes=8,
        accepts="expression",
        answer=lambda: 8 * H / 3,
        mistakes={
            "that is one half's tokens, not the whole's": 4 * H / 3,
            "that is fp32's: under autocast a block keeps 36 bytes": 3 * H / 2,
            "the casts stand in both: they cancel": 4 * H,
        },
        hints=(
            "The casts are there either way. What do the halves add to the whole's peak, and what do they take off?",
            "Gradients, 4 × 12 L H² bytes, against half of 36 L H bytes a token.",
        ),
    ),
    Exercise(
        id="23.3",
        title="How much too heavy a token is in the micro-batch with the fewest real ones",
        difficulty=1,
        minutes=4,
        answer=lambda: 6_000 / (4 * 400),
        mistakes={
            "that is against a token of the fullest micro-batch; against what it should be": lambda: 3_000 / 400,
            "each mean is divided by four, too": lambda: 6_000 / 400,
            "that is the number of micro-batches": lambda: 4,
            "that is how much too light a token of the fullest is": lambda: 6_000 / (4 * 3_000),
            "that is the inverse": lambda: 4 * 400 / 6_000,
        },
        hints=(
            "What is a token's weight in the loop's sum of four means, and what is it in one mean over all 6,000?",
            "1 / (4 × 400), against 1 / 6,000.",
        ),
    ),
    Exercise(
        id="23.4",
        title="What eight loss chunks take off micro-batches of four sequences",
        difficulty=2,
        minutes=8,
        unit="GiB",
        decimals=2,
        answer=lambda: _chunks(_SMALL),
        mistakes={
            "the logits alone: chunking makes a sum of the head's gradients": lambda: _logits(4),
            "that is for all 64 sequences at once": lambda: _chunks(Setup(batch=64)),
            "that is the whole batch's logits": lambda: _logits(64),
        },
        hints=(
            "A chunk is cut from a micro-batch, not from the step: four sequences.",
            "`eb.budget` with batch=4, accumulation=16, plain and chunked, and subtract.",
        ),
    ),
    Program(
        id="23.5",
        title="A function: accumulation that padding does not disturb",
        difficulty=2,
        minutes=12,
        call="accumulated(module, tokens, targets, size)",
        cases=_padded,
        agree=close,
        answer=_accumulated,
        mistakes={
            "a mean of means is the mean only where all micro-batches have as many real tokens": lambda: _accumulated(
                "pieces"
            ),
            "each micro-batch's mean has the weight of the whole step here": lambda: _accumulated("none"),
            "padding is not a token: divide by the targets that are not -100": lambda: _accumulated("all"),
            "this runs all sequences at once: cut them with `tokens.split(size)`": lambda: _accumulated(cuts=False),
        },
        hints=(
            "Count the real targets of the whole step before the first backward.",
            '`cross_entropy(logits.flatten(0, 1), some.flatten(), reduction="sum") / real`, and `.backward()` after each micro-batch.',
        ),
    ),
]
