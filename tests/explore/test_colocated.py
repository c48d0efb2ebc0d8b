"""The explorer of an engine beside a trainer: its bars are the timeline's, to the byte, at every share of the GPU."""

import random

import pytest

from everybyte import explore
from everybyte.explore.beside import said
from everybyte.explore.colocated import COUNTS, WAYS, asked


@pytest.mark.parametrize("way", WAYS)
def test_its_bars_are_the_timelines(way):
    explorer, chance = explore.colocated(), random.Random(way)
    for _ in range(4):
        model, gpus, percent = chance.choice(said("colocated")["models"]), chance.choice(COUNTS), chance.randint(55, 95)
        turns = {phase.name: phase.parts for phase in asked(model, gpus, way, percent / 100).timeline().phases}
        turns["wake: weights"] = turns.get("wake: all", turns.get("wake: weights", turns["generate"]))
        phases = explorer._controls["phase"].options
        for i, phase in enumerate(phases):
            labels = {"model": model, "gpus": f"{gpus} GPUs", "way": way}
            state = {name: list(explorer._controls[name].options).index(label) for name, label in labels.items()}
            values = explorer.values(explorer.state | state | {"percent": percent, "phase": i})
            shown = {part: size for part, _, size in explorer.kind.compute(values) if size}
            assert shown == {p: x for p, x in (turns.get(phase) or turns["wake: weights"]).items() if x}


def test_what_the_presets_say():
    explorer = explore.colocated()
    died = {
        name: "it does not fit" in explorer.describe(explorer.state | state) for name, state in explorer.presets.items()
    }
    assert [name for name, dies in died.items() if dies] == ["all at once", "a tenth more"]
