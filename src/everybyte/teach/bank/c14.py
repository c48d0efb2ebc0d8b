"""Exercises of chapter 14: why can the last layer cost more than all the others?"""

from ...formulas.symbols import B, S, V
from . import Case, answers, close, model, program, run

SMALL = run("gpt2")
LLAMA, GEMMA = 128_256, 8192 * 256_000


def logits(tensors=3, precision="fp32"):
    return SMALL.at("loss.logits", {"vocabulary": LLAMA}, precision=precision) * tensors // 3


def crossing(precision="bf16-mixed", attention="eager", each=0):
    """Entries with which the loss takes as much as GPT-2's blocks, `each` bytes an entry and token."""
    some = SMALL.having(precision=precision, attention=attention)
    blocks = model("gpt2").layers * some.at("activations.block")
    return blocks // (8 * 1024 * each or some.at("loss.logits", {"vocabulary": 1}))


def saved(loss_chunks=8, precision="bf16-mixed"):
    return SMALL.falls({"loss": "chunked", "loss_chunks": loss_chunks}, precision=precision)


def watch(most):
    """A mode in which no operation may make a tensor of more than `most` numbers."""
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


def batches():
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
        yield Case(name, (x, weight, targets, size), right, lambda most=most: watch(most))


def agree(given, right):
    """Loss and both gradients, within the rounding of doubles summed in another order."""
    return abs(float(given[0]) - right[0]) < 1e-9 and close(given[1:], right[1:])


def chunked(x, weight, targets, size, *, mean=True, minus=True, adds=True, whole=False):
    import torch

    count, size = len(x) if mean else 1, len(x) if whole else size
    loss, of_x, of_weight = 0.0, torch.zeros_like(x), torch.zeros_like(weight)
    for start in range(0, len(x), size):
        rows, right = x[start : start + size], targets[start : start + size]
        gradient, each = torch.log_softmax(rows @ weight.T, 1), torch.arange(len(rows))
        loss -= gradient[each, right].sum() / count
        gradient.exp_()
        gradient[each, right] -= int(minus)
        gradient /= count
        of_x[start : start + len(rows)] = gradient @ weight
        of_weight = of_weight * adds + gradient.T @ rows
    return loss, of_x, of_weight


ANSWERS = {
    "14.1": answers(
        logits(), one=logits(1), two=logits(2), bf16=logits(precision="bf16"), gpt2=SMALL.at("loss.logits")
    ),
    "14.2": answers(crossing, attention="flash", precision="fp32", each=6),
    "14.3": answers(8 * B * S * V, pytorch=10 * B * S * V, after_forward=6 * B * S * V, freed=4 * B * S * V),
    "14.4": answers(
        saved, no_sum=SMALL.at("loss.logits", precision="bf16-mixed") * 7 // 8, loss_chunks=64, precision="fp32"
    ),
    "14.5": answers(3 * 2 * GEMMA, cast=12 * GEMMA, one=2 * GEMMA, two=4 * GEMMA),
    "14.6": program(chunked, batches, agree, mean=False, minus=False, adds=False, whole=True),
}
