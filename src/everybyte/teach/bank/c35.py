"""Exercises of chapter 35: what changes with mixtures of experts and with a million tokens?"""

from functools import cache
from random import Random

from ...ask.mesh import Mesh
from ...ask.setup import Setup
from ...formulas.symbols import A, A_kv, B, C, D, S
from ..asking import at
from ..program import Case
from . import answers, program

MIXTRAL, LLAMA = "mixtral-8x7b", "llama-3.1-8b"
#: Of exercise 35.5: visits that eight experts have.
VISITS = (900, 100, 700, 300, 1200, 200, 500, 196)


@cache
def _of(name, routing=1.0):
    """An `experts.` formula of Mixtral on eight GPUs, one sequence of 4,096 tokens in bf16."""
    setup = Setup(batch=1, sequence=4096, precision="bf16", gpus=8, mesh=Mesh(expert=8, routing=routing))
    return int(at(f"experts.{name}", MIXTRAL, setup))


@cache
def _ring(name, parts=64, rotation="all-gather"):
    """A `context.` formula of Llama-3.1-8B, a million tokens."""
    setup = Setup(batch=1, sequence=2**20, precision="bf16", gpus=parts, mesh=Mesh(context=parts, rotation=rotation))
    return int(at(f"context.{name}", LLAMA, setup))


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


def _sent(choices, experts, gpus, *, ordered=True, consecutive=True, once=False):
    """The answer, or what it would be in the tokens' order, with experts dealt out in turn, or with each token sent once to a GPU."""
    each, found = experts // gpus, [[] for _ in range(gpus)]
    for expert in range(experts):
        place = expert // each if consecutive else expert % gpus
        found[place] += [token for token, chosen in enumerate(choices) if expert in chosen]
    if once:
        found = [list(dict.fromkeys(some)) for some in found]
    return found if ordered else [sorted(some) for some in found]


ANSWERS = {
    "35.1": answers(
        lambda: _of("weights"),
        all=lambda: 8 * _of("weights"),
        two=lambda: _of("weights") * 2 // 3,
        fp32=lambda: 2 * _of("weights"),
    ),
    "35.2": answers(
        _kept,
        copy=lambda: _kept(0),
        all=lambda: _kept() * C,
        logarithms=2 * B * S * D * (3 * A + 2 * A_kv) / C,
        heads=(10 * B * S * D * A + 4 * B * S * A) / C,
    ),
    "35.3": answers(lambda: _of("kept", 8.0) / _of("kept"), eight=8, two=lambda: _of("kept", 2.0) / _of("kept")),
    "35.4": answers(
        lambda: _ring("forward", 256),
        ring=lambda: _ring("forward", 256, "all-to-all"),
        kept=lambda: _ring("kept", 256),
        sixty_four=lambda: _ring("forward"),
        quarter=lambda: _ring("forward") // 4,
    ),
    "35.5": answers(_most, expert=lambda: max(VISITS) / (sum(VISITS) / len(VISITS)), emptiest=696 / 1024, rows=1400),
    "35.6": program(
        _sent,
        _visits,
        lambda given, right: [list(some) for some in given] == right,
        ordered=False,
        consecutive=False,
        once=True,
    ),
}
