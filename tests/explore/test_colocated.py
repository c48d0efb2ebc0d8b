"""The explorer of an engine beside a trainer: its bars are the timeline's, to the byte, at every share of the GPU."""

import random

import pytest

import everybyte as eb
from everybyte import explore
from everybyte.explore.beside import said
from everybyte.explore.colocated import COUNTS, WAYS, asked


@pytest.mark.parametrize("way", WAYS)
def test_its_bars_are_the_timelines(way):
    explorer, chance = explore.colocated(), random.Random(way)
    for _ in range(4):
        model, gpus, percent = chance.choice(said("colocated")["models"]), chance.choice(COUNTS), chance.randint(55, 95)
        timeline = asked(eb.model(model, code="reference"), gpus, way, percent / 100).timeline()
        turns = {phase.name: phase.parts for phase in timeline.phases}
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


def shown(explorer, state):
    return explorer.values(explorer.state | state)["model_no"]


def test_it_opens_on_llama_and_no_preset_loses_the_model_that_it_is_given():
    assert explore.colocated().describe().startswith("llama-3.1-8b, 8 GPUs, weights first, ")
    small = eb.model("llama-3.2-1b", code="reference").replace(name="own", layers=4)
    for explorer in (explore.colocated(eb.model("llama-3.2-1b", code="reference")), explore.colocated(small)):
        here = shown(explorer, {})
        assert here and {shown(explorer, preset) for preset in explorer.presets.values()} == {here}


def test_a_given_model_s_bars_are_its_timeline_s():
    small = eb.model("llama-3.2-1b", code="reference").replace(name="own", layers=4)
    explorer = explore.colocated(small)
    parts = asked(small, 8, "weights first", 0.6).timeline().phases
    said = {part: size for part, _, size in explorer.kind.compute(explorer.values()) if size}
    assert said == {part: size for part, size in parts[0].parts.items() if size} and parts[0].name == "generate"


def test_what_does_not_align_is_refused_by_name():
    with pytest.raises(ValueError, match=r"Model\.code: 'transformers' of llama-3\.1-8b"):
        explore.colocated(eb.model("llama-3.1-8b"))
    with pytest.raises(ValueError, match=r"Model\.latent_rank: 512 of deepseek-v3"):
        explore.colocated(eb.model("deepseek-v3", code="reference"))
