"""How much more than its live bytes PyTorch's allocator needs for a step, under each bar of the explorers of a peak.

Of each bar steps are drawn at random over the explorer's controls; the least memory in which a step runs is found by simulating the
allocator with PyTorch's defaults. `tools/explorers.py` stores the largest.
"""

import math
import random
from functools import partial

from everybyte.answers.headroom import PLAYED
from everybyte.answers.work import short_of
from everybyte.ask.choices import COMMON_OPTIMIZERS, OPTIMIZER_IMPLS
from everybyte.ask.setup import Setup
from everybyte.catalog import gpu, gpus, model
from everybyte.explore.beside import said
from everybyte.explore.controls import gpts
from everybyte.explore.peaks import (
    AGAIN,
    DROPOUTS,
    MODELS,
    OF_GPTS,
    RANKS,
    SHARING,
    SIMULATED,
    SWITCHES,
    TARGETS,
    WAYS,
    setup_of,
)  # fmt: skip
from everybyte.theory.budget import budget


def needed(model, setup: Setup) -> float:
    """The least memory in which a step runs with PyTorch's defaults, over its live bytes: to half a percent."""
    step, card = budget(model, short_of(setup)), gpu("h100-80gb")

    def runs(memory):
        return not step.on(card, memory=memory, steps=PLAYED, whole=False).failed

    low, high = step.peak, step.on(card, steps=PLAYED, whole=False).reserved
    while high > 1.005 * low:
        middle = (low + high) // 2
        low, high = (low, middle) if runs(middle) else (middle, high)
    return high / step.peak


def _planning(label, several, chance):
    switches = SWITCHES[label]
    batch, length = 2 ** chance.randint(0, 8), 2 ** chance.randint(9, 17)
    micro = -(-batch // min(batch, switches.get("accumulation", 1)))
    shared = {"gpus": 2 ** chance.randint(1, 10), "sharding": "zero3"} if several else {}
    setup = Setup(
        batch=micro, accumulation=-(-batch // micro), sequence=length, precision=chance.choice(["fp32", "bf16-mixed", "bf16"]),
        checkpointing="full" if switches.get("segmented") else "none", loss="chunked" if switches.get("chunked") else "plain",
        optimizer_impl="fused" if switches.get("impl_no") else "foreach", **shared,
    )  # fmt: skip
    return chance.choice(said("planning")["models"]), setup


def _step(chance, most):
    """A random step's fields as the controls of `one_step` have them."""
    return {
        "batch": 2 ** chance.randint(0, most), "sequence": 2 ** chance.randint(5, 10), "attention": chance.choice(["flash", "eager"]),
        "dropout": chance.choice([0.0, 0.1]), "optimizer": chance.choice(COMMON_OPTIMIZERS),
        "optimizer_impl": chance.choice(list(OPTIMIZER_IMPLS)),
    }  # fmt: skip


def _divided(label, chance):
    """The fields of both kinds of `sharding`."""
    many = 2 ** chance.randint(1, 12) if label == SHARING[1] else 1
    return {"gpus": many, "sharding": "zero3", "precision": chance.choice(["fp32", "bf16-mixed", "bf16"])}


def _sharding(label, several, chance):
    divided = _divided(label, chance)
    return chance.choice(list(gpts())), Setup(**divided, **_step(chance, 7))


def _sharding_llamas(label, several, chance):
    setup = Setup(
        **_divided(label, chance), batch=2 ** chance.randint(0, 4), sequence=2 ** chance.randint(7, 14),
        attention=chance.choice(["flash", "eager"]), optimizer=chance.choice(COMMON_OPTIMIZERS),
        optimizer_impl=chance.choice(list(OPTIMIZER_IMPLS)),
    )  # fmt: skip
    return chance.choice(said("sharding")["models"]), setup


def _adapters(label, several, chance):
    targets, again = chance.choice(list(TARGETS)), AGAIN[chance.choice(list(AGAIN))]
    rank, dropout = chance.choice(RANKS), DROPOUTS[chance.choice(list(DROPOUTS))]
    size = {"batch": 2 ** chance.randint(0, 6), "sequence": 2 ** chance.randint(7, 14)}
    return chance.choice(MODELS), setup_of(label, targets, again, rank, dropout, **size)


#: Explorer -> its bars; a random (model's name, setup) under one; for which it is drawn: 0 for one GPU, 1 for several, where both are there.
EXPLORERS = {
    "planning": (SWITCHES, _planning, (0, 1)),
    "sharding": (SHARING, _sharding_llamas, (0,)),
    OF_GPTS: (SHARING, _sharding, (0,)),
    "adapters": (WAYS, _adapters, (0,)),
}


def drawn(draw):
    """(model, setup) of a random step whose live bytes are those of some GPU. draw: gives (a model's name, a setup)."""
    memories = [card.memory for card in gpus().values()]
    while True:
        name, setup = draw()
        found = model(name, "reference")
        if min(memories) / 2 < budget(found, short_of(setup)).peak < max(memories):
            return found, setup


def pieces(name: str, label: str) -> list[int]:
    """Percent of live bytes that the allocator needed beside them at most, of one GPU and where there are of several."""
    _, draw, shared = EXPLORERS[name]
    chance = random.Random(label)
    most = [max(needed(*drawn(partial(draw, label, several, chance))) for _ in range(SIMULATED)) for several in shared]
    return [math.ceil(100 * (one - 1)) for one in most]


def margins(name: str) -> dict[str, list[int]]:
    """Of each bar of an explorer its `pieces`."""
    return {label: pieces(name, label) for label in EXPLORERS[name][0]}
