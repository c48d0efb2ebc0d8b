"""Exercises of chapter 35: what do 256 experts cost, on which GPU?"""

from random import Random

from ...formulas.symbols import B, E_t, H, S, rho
from . import Case, Mesh, alike, answers, program, run

GPUS = 64
DEEPSEEK = run("deepseek-v3", batch=1, sequence=4096, precision="bf16", gpus=GPUS, mesh=Mesh(expert=GPUS))
#: Of exercise 35.3: visits that eight experts have.
VISITS = (900, 100, 700, 300, 1200, 200, 500, 196)
WEIGHTS = int(DEEPSEEK.at("experts.weights"))


def travelling(numbers=H, scales=H / 32, index=8, came=rho):
    """Rows of so many bytes that are sent, and those that come."""
    return (1 + came) * B * S * E_t * (numbers + scales + index)


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
    "35.1": answers(WEIGHTS, all=GPUS * WEIGHTS, two=WEIGHTS * 2 // 3, dense=WEIGHTS * 61 // 58, fp32=2 * WEIGHTS),
    "35.2": answers(
        travelling(),
        scales=travelling(scales=0),
        sent=travelling(came=0),
        sixteen=travelling(2 * H, 0),
        numbers=travelling(index=0),
    ),
    "35.3": answers(most(), expert=most(8, 1), emptiest=696 / 1024, rows=1400),
    "35.4": answers(int(DEEPSEEK.at("experts.worst")), gpus=GPUS, visits=8, own=4),
    "35.5": program(sent, visits, alike, ordered=False, consecutive=False, once=True),
}
