"""Exercises of chapter 16: why can the last layer cost more than all the others?"""

from ...budget import budget
from ...catalog import model
from ...formulas import SYMBOLS, formula
from ...setup import DTYPE_BYTES, Setup
from ..exercise import Exercise

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
            "this is two of them: which one have you let go too early?": lambda: _logits() * 2 // 3,
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
        title="What the published head would take in forward without its cap",
        difficulty=3,
        minutes=10,
        unit="MiB",
        decimals=0,
        answer=lambda: 8192 * 256_000 * (2 + DTYPE_BYTES["fp32"] * 2),
        mistakes={
            "that is the capped head's, or three fp32 tensors: neither is what lives here": lambda: 8192 * 256_000 * 12,
            "after forward only the log-probabilities are left, but forward's most is before that": lambda: (
                8192 * 256_000 * 4
            ),
            "the bf16 logits are still there while log-softmax runs": lambda: 8192 * 256_000 * 8,
        },
        hints=(
            "`counted(None)` has the answer; first write down what lives while log-softmax runs.",
            "bf16 logits that the name `logits` still holds, their fp32 cast, and log-softmax's result: 2 + 4 + 4 bytes.",
        ),
    ),
]
