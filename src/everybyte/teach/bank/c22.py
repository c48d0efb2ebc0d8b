"""Exercises of chapter 22: what does recomputing cost, and which layers should be recomputed?"""

from contextlib import ExitStack

from ...budget import budget
from ...catalog import gpu, model
from ...formulas import SYMBOLS, formula
from ...setup import Setup
from ..exercise import Exercise
from ..program import Case, Program, close

A, H, K, L, S = (SYMBOLS[name].symbol for name in ("heads", "width", "segment", "layers", "sequence"))

_FULL = Setup(checkpointing="full")
_CARD = "rtx-4090"


def _inputs(name):
    return formula("checkpoint.inputs").at(model(name), _FULL)


def _most(segment, precision="bf16-mixed"):
    """The most activations of a step of GPT-2 XL in segments of so many blocks."""
    setup = Setup(precision=precision, checkpointing="every-k", checkpoint_every=segment)
    return max(budget(model("gpt2-xl"), setup).timeline()["activations"])


def _largest(setup):
    """The largest batch of GPT-2 large whose peak is no more than the card's memory."""
    batch = 0
    while budget(model("gpt2-large"), setup.replace(batch=batch + 1)).peak <= gpu(_CARD).memory:
        batch += 1
    return batch


def _blocks():
    """Blocks of an MLP with a residual, their inputs, and the gradients of a plain run; the last with dropout."""
    import torch
    from torch import nn

    class Residual(nn.Sequential):
        def forward(self, x):
            return x + super().forward(x)

    for case, (number, rows, width, dropout) in enumerate(
        ((2, 7, 4, 0), (3, 9, 6, 0), (5, 11, 8, 0), (6, 13, 5, 0), (4, 9, 8, 0.2))
    ):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(22 + case)
            blocks = [
                Residual(
                    nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(4 * width, width)
                ).double()
                for _ in range(number)
            ]
            x = torch.randn(rows, width, dtype=torch.float64, requires_grad=True)
            with _Watched(rows, None) as watched:
                y = blocks[0](x)
            y.sum().backward()
            torch.manual_seed(0)
            y = x
            for block in blocks:
                y = block(y)
            right = torch.autograd.grad(y.sum(), [x, *(p for block in blocks for p in block.parameters())])
            for block in blocks:
                block.zero_grad()
            x.grad = None
        most = watched.most + number * x.nbytes
        name = f"{number} blocks, {rows} rows of {width}" + ", with dropout" * bool(dropout)
        yield Case(name, (blocks, x), list(right), lambda rows=rows, most=most: _Watched(rows, most))


class _Watched:
    """While it is entered autograd may save no more than so many bytes of tensors with so many rows, at once; seeded."""

    def __init__(self, rows, allowed):
        self.rows, self.allowed, self.now, self.most = rows, allowed, 0, 0

    def __enter__(self):
        import torch

        self.open = ExitStack()
        self.open.enter_context(torch.random.fork_rng(devices=[]))
        self.open.enter_context(torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack))
        torch.manual_seed(0)
        return self

    def __exit__(self, *error):
        return self.open.__exit__(*error)

    def _pack(self, tensor):
        size = tensor.nbytes if tensor.ndim and tensor.shape[0] == self.rows else 0
        self.now += size
        self.most = max(self.most, self.now)
        if self.allowed is not None and self.now > self.allowed:
            raise ValueError(
                f"autograd has saved {self.now:,} bytes by now; all inputs and one block are {self.allowed:,}"
            )
        return [tensor, size]

    def _unpack(self, kept):
        tensor, size = kept
        self.now, kept[1] = self.now - size, 0
        return tensor


def _checkpointed(drops=True, chained=True, draws=True):
    """What it would be without checkpointing, without handing the gradient on, or with other masks the second time."""

    def gradients(blocks, x):
        import torch

        weights = [p for block in blocks for p in block.parameters()]
        if not drops:
            y = x
            for block in blocks:
                y = block(y)
            return list(torch.autograd.grad(y.sum(), [x, *weights]))
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
        return [gradient, *(p.grad for p in weights)]

    return gradients


EXERCISES = [
    Exercise(
        id="22.1",
        title="What GPT-2 medium's segments keep of the residual stream, with full checkpointing in fp32",
        difficulty=1,
        minutes=3,
        unit="MiB",
        decimals=0,
        answer=lambda: _inputs("gpt2-medium"),
        mistakes={
            "that is one block's: there are 24": lambda: _inputs("gpt2-medium") / 24,
            "that is in 16 bits, or in segments of two blocks; full checkpointing keeps each block's input, here in fp32": lambda: (
                _inputs("gpt2-medium") / 2
            ),
            "that is what the blocks keep without checkpointing": lambda: (
                24 * formula("activations.block").at(model("gpt2-medium"), Setup())
            ),
        },
        factors={"batch": 8, "layers": 24},
        hints=(
            "One residual stream a block: B × S × H numbers.",
            "8 × 1,024 × 1,024 numbers of 4 bytes, 24 times.",
        ),
    ),
    Exercise(
        id="22.2",
        title="The depth above which segments of two beat single blocks: all in bf16, eager, with dropout",
        difficulty=2,
        minutes=8,
        accepts="expression",
        answer=lambda: 34 + 5 * A * S / H,
        mistakes={
            "that is r, or an input of 4 bytes a number where it is 2: setting the memory of K = 1 and of K = 2 equal gives twice as much": lambda: (
                17 + 5 * A * S / (2 * H)
            ),
            "that is for flash attention, without dropout": lambda: 32 + 0 * S,
            "that is without dropout": lambda: 32 + 2 * A * S / H,
        },
        hints=(
            "The derivation: K = 2 takes less than K = 1 where L is above 2 r, and r is what a block keeps over its input.",
            "Chapter 14's table of what a block keeps, last cell: 34 + 5 AS/H bytes for each number of the stream; the input is 2.",
        ),
    ),
    Exercise(
        id="22.3",
        title="What the rule of the root costs GPT-2 XL under autocast: segments of 7 against single blocks",
        difficulty=2,
        minutes=6,
        unit="GiB",
        decimals=2,
        answer=lambda: _most(7) - _most(1),
        mistakes={
            "that is against segments of two, the best; full checkpointing has one": lambda: _most(7) - _most(2),
            "those are the activations with segments of 7 alone: subtract full checkpointing's": lambda: _most(7),
            "those are seven blocks alone: subtract full checkpointing's activations, and count the inputs": lambda: (
                7 * formula("activations.block").at(model("gpt2-xl"), Setup(precision="bf16-mixed"))
            ),
            "that is in fp32": lambda: _most(7, "fp32") - _most(1, "fp32"),
        },
        hints=(
            "The chapter's function `most` takes a model and a setup, `segments` a number of blocks and a setup; 7 is the root of 48, rounded.",
            "`most(xl, segments(7, mixed))`, less the same for segments of 1.",
        ),
    ),
    Exercise(
        id="22.4",
        title="The share of more products of segments of K blocks, for a wide and deep GPT",
        difficulty=2,
        minutes=8,
        accepts="expression",
        answer=lambda: (24 * K - 8) / (72 * K),
        mistakes={
            "that is without the early stop: each segment spares its last product": lambda: (24 * K) / (72 * K),
            "that is over forward alone: the step has backward's products, twice forward's, too": lambda: (
                (24 * K - 8) / (24 * K)
            ),
            "each segment spares one product of 8 units, not each block": lambda: (16 * K) / (72 * K),
        },
        hints=(
            "In units of B S H²: a block's forward is 24, its last product 8, forward and backward together 72.",
            "Of K recomputed blocks, one spares its last product.",
        ),
    ),
    Exercise(
        id="22.5",
        title="The largest batch of GPT-2 large in fp32 on an RTX 4090 with full checkpointing",
        difficulty=3,
        minutes=8,
        unit="sequences",
        answer=lambda: _largest(_FULL),
        mistakes={
            "that is without checkpointing, or with selective, which flash attention leaves nothing to do": lambda: (
                _largest(Setup())
            ),
            "that is with segments of two blocks": lambda: _largest(Setup(checkpointing="every-k")),
        },
        hints=(
            'The peak must stay below `eb.gpu("rtx-4090").memory`. It is a straight line in the batch as long as the loss wins.',
            'Try `eb.budget(eb.model("gpt2-large"), setup.replace(checkpointing="full", batch=n)).peak` for n from 15 on.',
        ),
    ),
    Program(
        id="22.6",
        title="A function: checkpointing, from nothing but forward and backward",
        difficulty=3,
        minutes=20,
        call="gradients(blocks, x)",
        cases=_blocks,
        agree=close,
        answer=_checkpointed,
        mistakes={
            "this saves what every block saves: run forward under `torch.no_grad()`, and each block again in backward": lambda: (
                _checkpointed(drops=False)
            ),
            "each block's backward starts from the gradient of its output, which the block after it gave": lambda: (
                _checkpointed(chained=False)
            ),
            "the second run draws other dropout masks: keep `torch.get_rng_state()` beside each input": lambda: (
                _checkpointed(draws=False)
            ),
        },
        hints=(
            "Forward under `torch.no_grad()`, in which you keep each block's input and the random state before it.",
            "Then from the last block to the first: `x.detach().requires_grad_()`, run the block again, `.backward(gradient)`; the next gradient is `x.grad`.",
        ),
    ),
]
