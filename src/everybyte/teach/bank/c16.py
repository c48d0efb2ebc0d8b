"""Exercises of chapter 16: why can the last layer cost more than all the others?"""

from ...budget import budget
from ...catalog import model
from ...formulas import SYMBOLS, formula
from ...setup import DTYPE_BYTES, Setup
from ..exercise import Exercise
from ..program import Case, Program

B, S, V = (SYMBOLS[name].symbol for name in ("batch", "sequence", "vocabulary"))
_LLAMA = 128_256


def _logits(precision="fp32", **setup):
    return formula("loss.logits").at(model("gpt2").replace(vocabulary=_LLAMA), Setup(precision=precision, **setup))


def _of_blocks(name, precision, attention="eager"):
    setup = Setup(precision=precision, attention=attention)
    return model(name).layers * formula("activations.block").at(model(name), setup), setup


def _crossing(name, precision, attention="eager"):
    blocks, setup = _of_blocks(name, precision, attention)
    one_entry = formula("loss.logits").at(model(name), setup, vocabulary=1)
    return blocks // one_entry


def _saved(chunks):
    plain = Setup(precision="bf16-mixed")
    chunked = plain.replace(loss="chunked", loss_chunks=chunks)
    return budget(model("gpt2"), plain).peak - budget(model("gpt2"), chunked).peak


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


def _chunked(mean=True, minus=True, adds=True, whole=False):
    """What it would be without the mean, without the one that is taken off, without adding up, or with all rows at once."""

    def chunked(x, weight, targets, size):
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

    return chunked


EXERCISES = [
    Exercise(
        id="16.1",
        title="GPT-2 with Llama 3's vocabulary: the logits-sized tensors at the peak, in fp32",
        difficulty=1,
        minutes=3,
        unit="GiB",
        decimals=2,
        answer=_logits,
        mistakes={
            "this is one tensor of logits: at the peak there are three": lambda: _logits() // 3,
            "this is two of them: which one have you freed too early?": lambda: _logits() * 2 // 3,
            "these are bf16's three": lambda: _logits("bf16"),
            "this is with GPT-2's own vocabulary": lambda: formula("loss.logits").at(model("gpt2"), Setup()),
        },
        factors={"batch": 8, "sequence": 1024},
        hints=(
            "Tokens times entries of the vocabulary gives the numbers in one logits-sized tensor.",
            "8 × 1,024 × 128,256 numbers of 4 bytes, three times.",
        ),
    ),
    Exercise(
        id="16.2",
        title="The vocabulary at which GPT-2's loss overtakes its blocks with eager attention, under bf16 autocast",
        difficulty=2,
        minutes=8,
        significant=3,
        answer=lambda: _crossing("gpt2", "bf16-mixed"),
        mistakes={
            "this is with FlashAttention": lambda: _crossing("gpt2", "bf16-mixed", "flash"),
            "this is fp32's": lambda: _crossing("gpt2", "fp32"),
            "you took 6 bytes for each logit: that is a step all in bf16": lambda: (
                _of_blocks("gpt2", "bf16-mixed")[0] // (6 * 8 * 1024)
            ),
        },
        hints=(
            "A block keeps 36 bytes for each number of the stream, and what eager attention adds; the logits take 10 for each token and entry.",
            "Under autocast eager attention keeps 6 bytes for each of A · S scores a token. Or ask `crossing` for it and put the numbers in.",
        ),
    ),
    Exercise(
        id="16.3",
        title="A kernel that writes its gradient over the fp32 log-probabilities, under autocast",
        difficulty=2,
        minutes=8,
        accepts="expression",
        answer=lambda: 8 * B * S * V,
        mistakes={
            "that is PyTorch's: what need no longer be made?": 10 * B * S * V,
            "that is what stands after forward; the cast that follows needs more, and so did forward": 6 * B * S * V,
            "the 16-bit log-probabilities are kept all the while, for log-softmax's backward": 4 * B * S * V,
        },
        hints=(
            "In the list `autocast`, the line 'nll, backward' takes nothing now. Which line has the most then?",
            "Change that line to take 0 and free 0 and walk through the list again; the cast then frees four bytes, as before.",
        ),
    ),
    Exercise(
        id="16.4",
        title="What 8 chunks save GPT-2's peak under bf16 autocast",
        difficulty=2,
        minutes=6,
        unit="GiB",
        decimals=2,
        answer=lambda: _saved(8),
        mistakes={
            "seven eighths of the three tensors would be gone if nothing came in their place; something does": lambda: (
                formula("loss.logits").at(model("gpt2"), Setup(precision="bf16-mixed")) * 7 // 8
            ),
            "that is what 64 chunks save": lambda: _saved(64),
            "that is fp32's": lambda: (
                budget(model("gpt2"), Setup()).peak - budget(model("gpt2"), Setup(loss="chunked")).peak
            ),
        },
        hints=(
            "Two budgets and a difference: `setup.replace(loss='chunked', loss_chunks=8)`.",
            "Seven eighths of 10 bytes go; the head's gradient so far, and the gradients of the chunks' inputs, come.",
        ),
    ),
    Exercise(
        id="16.5",
        title="What the published head would take in forward without its cast to fp32",
        difficulty=3,
        minutes=10,
        unit="MiB",
        decimals=0,
        answer=lambda: 8192 * 256_000 * 3 * DTYPE_BYTES["bf16"],
        mistakes={
            "that is with the cast: without it nothing is fp32": lambda: 8192 * 256_000 * 12,
            "that is one tensor; forward's most has more at once": lambda: 8192 * 256_000 * 2,
            "one is missing: tanh saves its result, and the name `logits` holds the capped logits": lambda: (
                8192 * 256_000 * 4
            ),
        },
        hints=(
            "Write down what lives while log-softmax runs: what the name `logits` holds, what tanh saved, and the result.",
            "Three tensors of 8,192 × 256,000 numbers, 2 bytes each.",
        ),
    ),
    Program(
        id="16.6",
        title="A function: cross-entropy in chunks, with its gradients made in forward",
        difficulty=3,
        minutes=20,
        call="chunked(x, weight, targets, size)",
        cases=_batches,
        agree=_close,
        answer=_chunked,
        mistakes={
            "the loss is a mean: divide by all tokens, not by none": lambda: _chunked(mean=False),
            "the gradient of a logit is its probability, minus one where the token was right": lambda: _chunked(
                minus=False
            ),
            "each chunk adds its share to the weight's gradient": lambda: _chunked(adds=False),
            "these are all logits at once: cut the tokens into chunks": lambda: _chunked(whole=True),
        },
        hints=(
            "For one chunk of rows: logits, log-softmax, the loss's share; then probabilities, less one where the token was right, over all tokens.",
            "With that gradient g of the chunk's logits: the rows' gradient is g @ weight, and the weight's share is g.T @ rows.",
        ),
    ),
]
