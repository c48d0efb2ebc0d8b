"""Exercises of chapter 22: what does recomputing cost, and which layers should be recomputed?"""

from contextlib import ExitStack

from ...ask.setup import Setup
from ...catalog import gpu
from ...formulas.symbols import A, H, K, S
from ..asking import at, peak, step
from ..program import Case, close
from . import answers, program

_FULL = Setup(checkpointing="full")
_CARD = "rtx-4090"


def _inputs():
    return at("checkpoint.inputs", "gpt2-medium", _FULL)


def _most(segment, precision="bf16-mixed"):
    """The most activations of a step of GPT-2 XL in segments of so many blocks."""
    run = step("gpt2-xl", precision=precision, checkpointing="every-k", checkpoint_every=segment)
    return max(run.timeline()["activations"])


def _largest(setup):
    """The largest batch of GPT-2 large whose peak is no more than the card's memory."""
    batch = 0
    while peak("gpt2-large", setup, batch=batch + 1) <= gpu(_CARD).memory:
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


def _checkpointed(blocks, x, *, drops=True, chained=True, draws=True):
    """The answer, or what it would be without checkpointing, without handing the gradient on, or with other masks the second time."""
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


ANSWERS = {
    "22.1": answers(
        _inputs,
        one_block=lambda: _inputs() / 24,
        half=lambda: _inputs() / 2,
        no_checkpointing=lambda: 24 * at("activations.block", "gpt2-medium"),
    ),
    "22.2": answers(34 + 5 * A * S / H, half=17 + 5 * A * S / (2 * H), flash=32 + 0 * S, no_dropout=32 + 2 * A * S / H),
    "22.3": answers(
        lambda: _most(7) - _most(1),
        best=lambda: _most(7) - _most(2),
        seven=lambda: _most(7),
        blocks=lambda: 7 * at("activations.block", "gpt2-xl", precision="bf16-mixed"),
        fp32=lambda: _most(7, "fp32") - _most(1, "fp32"),
    ),
    "22.4": answers(
        (24 * K - 8) / (72 * K), no_stop=(24 * K) / (72 * K), forward=(24 * K - 8) / (24 * K), each=(16 * K) / (72 * K)
    ),
    "22.5": answers(
        lambda: _largest(_FULL), none=lambda: _largest(Setup()), pairs=lambda: _largest(Setup(checkpointing="every-k"))
    ),
    "22.6": program(_checkpointed, _blocks, close, drops=False, chained=False, draws=False),
}
