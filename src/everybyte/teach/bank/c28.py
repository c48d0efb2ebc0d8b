"""Exercises of chapter 28: what does torch.compile keep?"""

from itertools import combinations
from random import Random

from ...formulas.symbols import B, F, H, S
from . import Case, answers, program, run


def layers(last=0, norms=0, statistics=1, number=12, rows=4_096, width=1_024):
    """Bytes that compiled layers save; norms: of how many the result too; last: whether the last GELU's."""
    return (2 * number - 1 + last + norms) * 2 * rows * width + statistics * number * 8 * rows


def block(precision="bf16"):
    return run("gpt2", precision=precision).at("compiled.gpt_block")


def reachable(name, saved, made_of, banned, deep=True, heeds=True, free=True):
    if name in saved:
        return True
    if name not in made_of:
        return free
    if heeds and name in banned:
        return False
    near = [part in saved or part not in made_of for part in made_of[name]]
    return all(reachable(p, saved, made_of, banned, deep, heeds, free) for p in made_of[name]) if deep else all(near)


def least(sizes, made_of, needed, banned, **wrong):
    """The fewest bytes saved with which each needed tensor is there in backward."""
    names = list(sizes) if not wrong.get("free", True) else [name for name in sizes if name in made_of]
    sets = (set(some) for count in range(len(names) + 1) for some in combinations(names, count))
    return min(
        sum(sizes[name] for name in some)
        for some in sets
        if all(reachable(name, some, made_of, banned, **wrong) for name in needed)
    )


def graphs():
    yield Case(
        "a layer",
        (
            {"x": 4, "product": 8, "norm": 8, "gelu": 8, "statistics": 1},
            {"product": ["x"], "statistics": ["product"], "norm": ["product", "statistics"], "gelu": ["norm"]},
            ["product", "statistics", "norm", "gelu"],
            ["product", "statistics", "gelu"],
        ),
        25 - 8,
    )
    draw = Random(28)
    for number in range(6):
        names = [f"t{i}" for i in range(draw.randint(3, 7))]
        sizes = {name: draw.randint(1, 9) for name in ["x", *names]}
        made_of = {name: draw.sample(["x", *names[:i]], min(i + 1, draw.randint(1, 2))) for i, name in enumerate(names)}
        needed = draw.sample(names, draw.randint(1, len(names)))
        banned = draw.sample(names, draw.randint(0, 2))
        asked = sizes, made_of, needed, banned
        yield Case(f"graph {number}", asked, least(*asked))


ANSWERS = {
    "28.1": answers(layers, eager={"norms": 12}, last=1, statistics=0),
    "28.2": answers(block, half=lambda: block() / 2, fp32={"precision": "fp32"}),
    "28.3": answers(2 * B * S * F, gate=4 * B * S * F, width=2 * B * S * H),
    "28.4": program(least, graphs, heeds=False, deep=False, free=False),
}
