"""Exercises of chapter 35: what changes with mixtures of experts and with a million tokens?"""

from functools import cache
from random import Random

from ...catalog import model
from ...formulas import formula
from ...formulas.symbols import A, A_kv, B, C, D, S
from ...mesh import Mesh
from ...setup import Setup
from ..exercise import Exercise
from ..program import Case, Program

MIXTRAL, LLAMA = "mixtral-8x7b", "llama-3.1-8b"
#: Of exercise 35.5: visits that eight experts have.
VISITS = (900, 100, 700, 300, 1200, 200, 500, 196)


@cache
def _of(name, routing=1.0, **changes):
    """An `experts.` formula of Mixtral on eight GPUs, one sequence of 4,096 tokens in bf16."""
    setup = Setup(batch=1, sequence=4096, precision="bf16", gpus=8, mesh=Mesh(expert=8, routing=routing))
    return int(formula(f"experts.{name}").at(model(MIXTRAL), setup.replace(**changes)))


@cache
def _ring(name, parts=64, rotation="all-gather"):
    """A `context.` formula of Llama-3.1-8B, a million tokens."""
    setup = Setup(batch=1, sequence=2**20, precision="bf16", gpus=parts, mesh=Mesh(context=parts, rotation=rotation))
    return int(formula(f"context.{name}").at(model(LLAMA), setup))


def _kept(copies=1):
    return (2 * B * S * D * ((2 + copies) * A + 2 * A_kv) + 4 * B * S * A) / C


def _most(gpus=4, each=2):
    """The most rows that a GPU's experts get, over an even share."""
    rows = [sum(VISITS[i * each : (i + 1) * each]) for i in range(gpus)]
    return max(rows) / (sum(rows) / gpus)


def _visits():
    import torch

    draw = Random(35)
    for tokens, experts, each, gpus in (
        (6, 4, 1, 2),
        (8, 8, 2, 4),
        (20, 8, 2, 8),
        (15, 16, 4, 4),
        (10, 8, 2, 1),
        (30, 4, 2, 4),
    ):
        choices = [draw.sample(range(experts), each) for _ in range(tokens)]
        flat = torch.tensor(choices).flatten()
        rows = flat.argsort(stable=True)
        ends = flat.bincount(minlength=experts).view(gpus, -1).sum(1).tolist()
        right = [(piece // each).tolist() for piece in rows.split(ends)]
        yield Case(
            f"{tokens} tokens, {each} of {experts} experts, {gpus} GPU{'s' * (gpus > 1)}",
            (choices, experts, gpus),
            right,
        )


def _sent(ordered=True, consecutive=True, once=False):
    """What it would be in the tokens' order, with experts dealt out in turn, or with each token sent once to a GPU."""

    def rows(choices, experts, gpus):
        each, found = experts // gpus, [[] for _ in range(gpus)]
        for expert in range(experts):
            place = expert // each if consecutive else expert % gpus
            found[place] += [token for token, chosen in enumerate(choices) if expert in chosen]
        if once:
            found = [list(dict.fromkeys(some)) for some in found]
        return found if ordered else [sorted(some) for some in found]

    return rows


EXERCISES = [
    Exercise(
        id="35.1",
        title="Mixtral's experts in bf16, on one of eight GPUs",
        difficulty=1,
        minutes=4,
        unit="GiB",
        decimals=1,
        answer=lambda: _of("weights"),
        mistakes={
            "that is on one GPU that has all experts": lambda: 8 * _of("weights"),
            "an expert has three matrices: gate, up and down": lambda: _of("weights") * 2 // 3,
            "in fp32": lambda: 2 * _of("weights"),
        },
        hints=(
            "32 layers, each with one expert here: three matrices of 4,096 by 14,336.",
            "32 × 3 × 4,096 × 14,336 × 2 bytes.",
        ),
    ),
    Exercise(
        id="35.2",
        title="What attention keeps in 16 bits on one of C GPUs that is not the last",
        difficulty=2,
        minutes=6,
        accepts="expression",
        answer=_kept,
        mistakes={
            "the copy of the result is missing: this is the last GPU": lambda: _kept(0),
            "that is all GPUs': each has a C-th of the tokens": lambda: _kept() * C,
            "each row's logarithm of a sum is kept too, in fp32": lambda: 2 * B * S * D * (3 * A + 2 * A_kv) / C,
            "keys and values have A_kv heads": lambda: (10 * B * S * D * A + 4 * B * S * A) / C,
        },
        hints=(
            "q, the result and its copy have A heads of D numbers, k and v have A_kv; 2 bytes a number.",
            "And 4 bytes for each head and token. All of S / C tokens.",
        ),
    ),
    Exercise(
        id="35.3",
        title="A mixture of Mixtral on eight GPUs: kept where every row comes here, over balanced",
        difficulty=2,
        minutes=5,
        unit="times",
        decimals=1,
        answer=lambda: _of("kept", 8.0) / _of("kept"),
        mistakes={
            "rows that are sent are kept too, and are not eight times as many": 8,
            "that is with all rows of two GPUs": lambda: _of("kept", 2.0) / _of("kept"),
        },
        hints=(
            "Mesh(expert=8, routing=8) beside Mesh(expert=8), one sequence of 4,096 tokens in bf16.",
            "The formula experts.kept, of which `.at(model, setup)` gives the bytes, says both.",
        ),
    ),
    Exercise(
        id="35.4",
        title="A ring of 256 GPUs gathers: a million tokens of Llama-3.1-8B, forward",
        difficulty=2,
        minutes=5,
        unit="GiB",
        decimals=2,
        answer=lambda: _ring("forward", 256),
        mistakes={
            "that is around the ring": lambda: _ring("forward", 256, "all-to-all"),
            "that is what is kept": lambda: _ring("kept", 256),
            "that is on 64 GPUs": lambda: _ring("forward"),
            "a quarter of 64 GPUs' would be so if nothing were gathered": lambda: _ring("forward") // 4,
        },
        hints=(
            "A_kv is a quarter of A: 9 shards of q, 2 C of k, and three times the logarithms.",
            "A shard of q is 1,048,576 / 256 × 32 × 128 × 2 bytes = 32 MiB.",
        ),
    ),
    Exercise(
        id="35.5",
        title="An unbalanced router: the fullest GPU's rows over an even share",
        difficulty=1,
        minutes=4,
        unit="times",
        decimals=2,
        answer=_most,
        mistakes={
            "that is the fullest expert, not the fullest GPU": lambda: max(VISITS) / (sum(VISITS) / len(VISITS)),
            "that is the emptiest over an even share": 696 / 1024,
            "those are the rows, not their ratio": 1400,
        },
        hints=(
            "A GPU has experts side by side: add its experts' visits.",
            "The largest sum over the mean of the sums.",
        ),
    ),
    Program(
        id="35.6",
        title="A function: the rows that come to each GPU's experts",
        difficulty=2,
        minutes=10,
        call="rows(choices, experts, gpus)",
        cases=_visits,
        agree=lambda given, right: [list(some) for some in given] == right,
        answer=_sent,
        mistakes={
            "rows come sorted by expert, not by token": lambda: _sent(ordered=False),
            "experts stand side by side: with two each, the first GPU has 0 and 1": lambda: _sent(consecutive=False),
            "a token that visits two experts of one GPU is two rows": lambda: _sent(once=True),
        },
        hints=(
            "GPU g has the experts from g * experts // gpus on. Go through the experts, not through the tokens.",
            "For each expert in order, append the numbers of all tokens that chose it to its GPU's list.",
        ),
    ),
]
