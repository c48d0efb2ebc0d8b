"""Exercises of chapter 35: what changes with mixtures of experts and with a million tokens?"""

from random import Random

from ...formulas.symbols import A, A_kv, B, C, D, S
from . import Case, Mesh, alike, answers, program, run

MIXTRAL = run("mixtral-8x7b", batch=1, sequence=4096, precision="bf16", gpus=8, mesh=Mesh(expert=8))
LLAMA = run("llama-3.1-8b", batch=1, sequence=2**20, precision="bf16")
#: Of exercise 35.5: visits that eight experts have.
VISITS = (900, 100, 700, 300, 1200, 200, 500, 196)
WEIGHTS = int(MIXTRAL.at("experts.weights"))


def rows(routing):
    return int(MIXTRAL.at("experts.kept", mesh=Mesh(expert=8, routing=routing)))


def ring(name="forward", parts=256, rotation="all-gather"):
    """A `context.` formula of a million tokens."""
    return int(LLAMA.at(f"context.{name}", gpus=parts, mesh=Mesh(context=parts, rotation=rotation)))


def kept(copies=1):
    return (2 * B * S * D * ((2 + copies) * A + 2 * A_kv) + 4 * B * S * A) / C


def most(gpus=4, each=2):
    """The ratio of the most rows that a GPU's experts get to an even share."""
    rows = [sum(VISITS[i * each : (i + 1) * each]) for i in range(gpus)]
    return max(rows) / (sum(rows) / gpus)


def visits():
    import torch

    draw = Random(35)
    sizes = ((6, 4, 1, 2), (8, 8, 2, 4), (20, 8, 2, 8), (15, 16, 4, 4), (10, 8, 2, 1), (30, 4, 2, 4))
    for tokens, experts, each, gpus in sizes:
        choices = [draw.sample(range(experts), each) for _ in range(tokens)]
        flat = torch.tensor(choices).flatten()
        rows = flat.argsort(stable=True)
        ends = flat.bincount(minlength=experts).view(gpus, -1).sum(1).tolist()
        right = [(piece // each).tolist() for piece in rows.split(ends)]
        name = f"{tokens} tokens, {each} of {experts} experts, {gpus} GPU{'s' * (gpus > 1)}"
        yield Case(name, (choices, experts, gpus), right)


def sent(choices, experts, gpus, *, ordered=True, consecutive=True, once=False):
    each, found = experts // gpus, [[] for _ in range(gpus)]
    for expert in range(experts):
        place = expert // each if consecutive else expert % gpus
        found[place] += [token for token, chosen in enumerate(choices) if expert in chosen]
    if once:
        found = [list(dict.fromkeys(some)) for some in found]
    return found if ordered else [sorted(some) for some in found]


ANSWERS = {
    "35.1": answers(WEIGHTS, all=8 * WEIGHTS, two=WEIGHTS * 2 // 3, fp32=2 * WEIGHTS),
    "35.2": answers(
        kept(),
        copy=kept(0),
        all=kept() * C,
        logarithms=2 * B * S * D * (3 * A + 2 * A_kv) / C,
        heads=(10 * B * S * D * A + 4 * B * S * A) / C,
    ),
    "35.3": answers(rows(4.0) / rows(1.0), four=4, all=1 + 7 * (rows(2.0) / rows(1.0) - 1), two=rows(2.0) / rows(1.0)),
    "35.4": answers(ring, rotation="all-to-all", name="kept", parts=64, quarter=ring(parts=64) // 4),
    "35.5": answers(most(), expert=most(8, 1), emptiest=696 / 1024, rows=1400),
    "35.6": program(sent, visits, alike, ordered=False, consecutive=False, once=True),
}
