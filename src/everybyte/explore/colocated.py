"""The explorer of an engine beside a trainer: what each phase of an iteration holds on a GPU."""

import json
from collections.abc import Mapping
from typing import Any

from ..answers.alignment import Alignment, Rollout, align
from ..answers.engines import Engine
from ..answers.headroom import Headroom
from ..ask.setup import Setup
from ..catalog import Model, models
from ..catalog import gpu as named
from .beside import said
from .controls import Choice, Slider, gpus_label, listed, looked_up, opens
from .explorer import Explorer, told
from .pictures import Printed, Stack

#: How the engine takes turns with the trainer -> fields of a `Rollout`; the bars, as each of them names its phases.
WAYS: Mapping[str, Mapping] = {
    "weights first": {"asleep": True}, "all at once": {"asleep": True, "staged": False}, "never asleep": {},
}  # fmt: skip
PHASES = ("generate", "train", "wake: weights", "sync weights", "wake: cache")
COUNTS, CARD = (8, 16, 32), "h100-80gb"
#: Of both: a sequence of 4,096 tokens, GRPO without a reference.
SETUP = Setup(batch=4, sequence=4096, precision="bf16-mixed", checkpointing="full", gpus=8, sharding="zero3")


def asked(model: Model, gpus: int, way: str, utilization: float) -> Alignment:
    """The alignment whose timeline the bars are, of the same words as the controls."""
    bucket = {"bucket": 4 * model.parameters} if way == "all at once" else {}
    ways: dict[str, Any] = {**WAYS[way], **bucket}
    rollout = Rollout(sequences=1, context=4096, engine=Engine(utilization=utilization), **ways)
    return align("grpo", model, SETUP.replace(gpus=gpus), CARD, rollout=rollout)


def _rows(found):
    """For each bar part -> bytes, without the cache; and whether the cache stands."""
    turns = {phase.name: phase.parts for phase in found.timeline().phases}
    turns |= {"wake: weights": turns.get("wake: all", turns.get("wake: weights", turns["generate"]))}
    for name in PHASES:
        parts = turns.get(name) or turns["wake: weights"]
        yield {part: size for part, size in parts.items() if part != "cache"}, int("cache" in parts)


@opens()
def colocated(model: Model | None = None) -> Explorer:
    """Chapter 44: trainer and engine on the same GPUs, a bar for each phase; H100s, GRPO, ZeRO-3.

    What stands beside the pages is `eb.align`'s timeline; pages follow from the engine's share. The model, by default Llama 3.1 8B, is
    one that `eb.align` answers for: a Llama in the book's code.
    """
    words = said("colocated")
    start = model or models("reference")[words["models"][0]]
    known = {name: models("reference")[name] for name in words["models"]} | {start.name: start}
    every = {(m, n, w): asked(of, n, w, 0.9) for m, of in known.items() for n in COUNTS for w in WAYS}
    parts = []
    for part, label in words["parts"]:
        amounts = [[[[r.get(part, 0) for r, _ in _rows(every[m, n, w])] for w in WAYS] for n in COUNTS] for m in known]
        parts.append((part, label, looked_up(label, ("model_no", "count_no", "way_no", "phase_no"), amounts)))
    stands = [[flag for _, flag in _rows(every[start.name, 8, w])] for w in WAYS]
    pools = [_pool(every[m, 8, "weights first"]) for m in known]
    parts.insert(3, ("cache", "keys and values", _pages(pools, stands)))
    card = named(CARD)
    controls = [
        listed("model", "model", known, start.name, symbol="model_no"),
        Choice("gpus", "GPUs", {gpus_label(n): {"count_no": i} for i, n in enumerate(COUNTS)}, kind="slider"),
        listed("way", "the engine", WAYS, symbol="way_no"),
        Slider("percent", "its share (%)", 10, 95, 60, 1),
        listed("phase", "phase", PHASES, symbol="phase_no"),
    ]
    capacity = {"capacity": Headroom().usable(card, SETUP), "capacity_label": f"{card.name}, usable"}
    return told("colocated", controls, Stack(parts, bars="phase"), base=words["base"] | capacity)


def _pool(found):
    """(memory, bytes before pages, bytes of a block) of its engine."""
    served = found.rollout.decided(found.objective.model, found.gpu)
    return served.gpu.memory, served.requested - served.pages, served.pool.bytes


def _pages(pools, stands):
    """The bytes of the pages, which follow from the engine's share, where they stand."""

    def size(model_no, way_no, phase_no, percent):
        memory, before, block = pools[model_no]
        return max(0, memory * percent // 100 - before) // block * block * stands[way_no][phase_no]

    script = (
        f"(v) => {{ const [memory, before, block] = {json.dumps(pools)}[v.model_no]; "
        "return Math.floor(Math.max(0, Math.floor(memory * v.percent / 100) - before) / block) * block * "
        f"{json.dumps(stands)}[v.way_no][v.phase_no]; }}"
    )
    return Printed("pages of the engine", ("model_no", "way_no", "phase_no", "percent"), size, script)
