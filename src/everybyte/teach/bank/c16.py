"""Exercises of chapter 16: why can the last layer cost more than all the others?"""

from ...ask.setup import DTYPE_BYTES, Setup
from ...catalog import model
from ...formulas import formula
from ...formulas.symbols import B, S, V
from ..asking import at, peak
from ..program import Case
from . import answers, program

_LLAMA = 128_256


def _logits(precision="fp32", **setup):
    return formula("loss.logits").at(model("gpt2").replace(vocabulary=_LLAMA), Setup(precision=precision, **setup))


def _of_blocks(name, precision, attention="eager"):
    setup = Setup(precision=precision, attention=attention)
    return model(name).layers * at("activations.block", name, setup), setup


def _crossing(name, precision, attention="eager"):
    blocks, setup = _of_blocks(name, precision, attention)
    one_entry = formula("loss.logits").at(model(name), setup, vocabulary=1)
    return blocks // one_entry


def _saved(chunks, precision="bf16-mixed"):
    plain = Setup(precision=precision)
    return peak("gpt2", plain) - peak("gpt2", plain, loss="chunked", loss_chunks=chunks)


def _watch(most):
    """A mode under which no operation may make a tensor of more than so many numbers."""
    from torch import Tensor
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class AtMost(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            made = function(*args, **(kwargs or {}))
            for tensor in tree_leaves(made):
                if isinstance(tensor, Tensor) and tensor.numel() > most:
                    raise ValueError(f"it makes a tensor of {tuple(tensor.shape)}, more than {most} numbers at once")
            return made

    return AtMost()


def _batches():
    """Heads and batches of odd sizes; the last chunk is smaller in some."""
    import torch
    from torch.nn.functional import cross_entropy

    make = torch.Generator().manual_seed(16)
    for tokens, width, words, size in ((24, 4, 31, 6), (25, 4, 31, 6), (60, 8, 97, 8), (7, 3, 50, 1), (40, 5, 64, 39)):
        x = torch.randn(tokens, width, dtype=torch.float64, generator=make)
        weight = torch.randn(words, width, dtype=torch.float64, generator=make)
        targets = torch.randint(words, (tokens,), generator=make)
        inputs = [t.clone().requires_grad_() for t in (x, weight)]
        loss = cross_entropy(inputs[0] @ inputs[1].T, targets)
        right = (loss.item(), *torch.autograd.grad(loss, inputs))
        most = max(size * words, x.numel(), weight.numel())
        name = f"{tokens} tokens, {words} words, chunks of {size}"
        yield Case(name, (x, weight, targets, size), right, lambda most=most: _watch(most))


def _close(given, right):
    """Loss and both gradients, within the rounding of doubles summed in another order."""
    return abs(float(given[0]) - right[0]) < 1e-9 and all(
        a.shape == b.shape and float((a - b).abs().max()) < 1e-9 for a, b in zip(given[1:], right[1:], strict=True)
    )


def _chunked(x, weight, targets, size, *, mean=True, minus=True, adds=True, whole=False):
    """The answer, or what it would be without the mean, without the one that is taken off, without adding up, or with all rows at once."""
    import torch

    count = len(x) if mean else 1
    loss, of_x, of_weight = 0.0, torch.zeros_like(x), torch.zeros_like(weight)
    for start in range(0, len(x), len(x) if whole else size):
        rows, right = x[start : start + size], targets[start : start + size]
        if whole:
            rows, right = x, targets
        gradient, each = torch.log_softmax(rows @ weight.T, 1), torch.arange(len(rows))
        loss -= gradient[each, right].sum() / count
        gradient.exp_()
        gradient[each, right] -= int(minus)
        gradient /= count
        of_x[start : start + len(rows)] = gradient @ weight
        of_weight = of_weight * adds + gradient.T @ rows
    return loss, of_x, of_weight


ANSWERS = {
    "16.1": answers(
        _logits,
        one=lambda: _logits() // 3,
        two=lambda: _logits() * 2 // 3,
        bf16=lambda: _logits("bf16"),
        gpt2=lambda: at("loss.logits", "gpt2"),
    ),
    "16.2": answers(
        lambda: _crossing("gpt2", "bf16-mixed"),
        flash=lambda: _crossing("gpt2", "bf16-mixed", "flash"),
        fp32=lambda: _crossing("gpt2", "fp32"),
        six_bytes=lambda: _of_blocks("gpt2", "bf16-mixed")[0] // (6 * 8 * 1024),
    ),
    "16.3": answers(8 * B * S * V, pytorch=10 * B * S * V, after_forward=6 * B * S * V, freed=4 * B * S * V),
    "16.4": answers(
        lambda: _saved(8),
        no_sum=lambda: at("loss.logits", "gpt2", precision="bf16-mixed") * 7 // 8,
        chunks_64=lambda: _saved(64),
        fp32=lambda: _saved(8, "fp32"),
    ),
    "16.5": answers(
        8192 * 256_000 * 3 * DTYPE_BYTES["bf16"],
        cast=8192 * 256_000 * 12,
        one=8192 * 256_000 * 2,
        two=8192 * 256_000 * 4,
    ),
    "16.6": program(_chunked, _batches, _close, mean=False, minus=False, adds=False, whole=True),
}
