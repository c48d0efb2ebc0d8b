"""Exercises of chapter 22: what does recomputing cost, and which layers should be recomputed?"""

from contextlib import contextmanager
from functools import reduce
from itertools import count

from ...formulas.symbols import A, H, K, S
from . import Case, answers, close, gpu, program, run

MEDIUM, XL = run("gpt2-medium"), run("gpt2-xl", precision="bf16-mixed")
INPUTS = MEDIUM.at("checkpoint.inputs", checkpointing="full")


def most(segment, precision="bf16-mixed"):
    """The most activations of a step of GPT-2 XL in segments of some number of blocks."""
    step = XL.step(precision=precision, checkpointing="every-k", checkpoint_every=segment)
    return max(step.timeline()["activations"])


def root(segment=1, precision="bf16-mixed"):
    return most(7, precision) - most(segment, precision)


def largest(checkpointing="full"):
    """The largest batch of GPT-2 large whose peak is no more than the card's memory."""
    large = run("gpt2-large", checkpointing=checkpointing)
    return next(batch for batch in count() if large.peak(batch=batch + 1) > gpu("rtx-4090").memory)


@contextmanager
def watched(rows, allowed=float("inf")):
    """Seeded; autograd saves at most so many bytes of tensors with so many rows at once. Gives what it has saved."""
    import torch

    now, seen = 0, [0]

    def pack(tensor):
        nonlocal now
        size = tensor.nbytes if tensor.ndim and tensor.shape[0] == rows else 0
        now += size
        seen.append(now)
        if now > allowed:
            raise ValueError(f"autograd has saved {now:,} bytes by now; all inputs and one block are {allowed:,}")
        return [tensor, size]

    def unpack(kept):
        nonlocal now
        now, kept[1] = now - kept[1], 0
        return kept[0]

    with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        torch.manual_seed(0)
        yield seen


def gradients(blocks, x):
    """A plain run's, of the input and of the weights."""
    import torch

    y = reduce(lambda y, block: block(y), blocks, x)
    return list(torch.autograd.grad(y.sum(), [x, *(p for block in blocks for p in block.parameters())]))


def residuals():
    """Blocks of an MLP with a residual, their inputs, and the gradients of a plain run; the last with dropout."""
    import torch
    from torch import nn

    class Residual(nn.Sequential):
        def forward(self, x):
            return x + super().forward(x)

    sizes = ((2, 7, 4, 0), (3, 9, 6, 0), (5, 11, 8, 0), (6, 13, 5, 0), (4, 9, 8, 0.2))
    for seed, (number, rows, width, dropout) in enumerate(sizes, 22):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            blocks = []
            for _ in range(number):
                inside = nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(4 * width, width)
                blocks.append(Residual(*inside).double())
            x = torch.randn(rows, width, dtype=torch.float64, requires_grad=True)
        with watched(rows) as seen:
            gradients(blocks[:1], x)
        with watched(rows):
            right = gradients(blocks, x)
        allowed = max(seen) + number * x.nbytes
        name = f"{number} blocks, {rows} rows of {width}" + ", with dropout" * bool(dropout)
        yield Case(name, (blocks, x), right, lambda rows=rows, allowed=allowed: watched(rows, allowed))


def checkpointed(blocks, x, *, drops=True, chained=True, draws=True):
    import torch

    if not drops:
        return gradients(blocks, x)
    kept = []
    with torch.no_grad():
        for block in blocks:
            kept.append((x, torch.get_rng_state()))
            x = block(x)
    gradient = torch.ones_like(x)
    for block, (x, state) in zip(reversed(blocks), reversed(kept), strict=True):
        if draws:
            torch.set_rng_state(state)
        x = x.detach().requires_grad_()
        block(x).backward(gradient if chained else torch.ones_like(x))
        gradient = x.grad
    return [gradient, *(p.grad for block in blocks for p in block.parameters())]


ANSWERS = {
    "22.1": answers(
        INPUTS, one_block=INPUTS / 24, half=INPUTS / 2, no_checkpointing=24 * MEDIUM.at("activations.block")
    ),
    "22.2": answers(34 + 5 * A * S / H, half=17 + 5 * A * S / (2 * H), flash=32 + 0 * S, no_dropout=32 + 2 * A * S / H),
    "22.3": answers(
        root, segment=2, seven=lambda: most(7), blocks=lambda: 7 * XL.at("activations.block"), precision="fp32"
    ),
    "22.4": answers(
        (24 * K - 8) / (72 * K), no_stop=(24 * K) / (72 * K), forward=(24 * K - 8) / (24 * K), each=(16 * K) / (72 * K)
    ),
    "22.5": answers(largest, none={"checkpointing": "none"}, pairs={"checkpointing": "every-k"}),
    "22.6": program(checkpointed, residuals, close, drops=False, chained=False, draws=False),
}
