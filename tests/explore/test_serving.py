"""Chapter 44's explorer: its bytes and the most that fit are `eb.serve`'s, wherever its controls go; it answers at once."""

import random

import pytest

import everybyte as eb
from everybyte import explore
from everybyte.explore.beside import said as told
from everybyte.explore.peaks import CONTEXTS, MOMENTS

TIMED = """
import { pure } from "./picture.mjs";
export default ({ spec, states }) => {
  pure.describe(spec, states[0]);
  const start = performance.now();
  for (const state of states) pure.describe(spec, state);
  return (performance.now() - start) / states.length;
};
"""


def states(explorer, concurrency, **labels):
    found = {n: list(explorer._controls[n].options).index(label) for n, label in labels.items()}
    return explorer.state | found | {"concurrency": concurrency}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", told("serving")["models"])
def test_the_bytes_are_served_as_eb_serve_says(name):
    explorer, chance = explore.serving(), random.Random(name)
    for _ in range(4):
        gpu, context, number = (
            chance.choice(["h200", "rtx-4090", "a100-80gb"]),
            chance.choice(CONTEXTS),
            chance.randint(1, 512),
        )
        for way, (types, _) in MOMENTS.items():
            kinds = {"cache": "paged", "weights": types[0], "cache_dtype": types[1]} if types else {}
            said = eb.serve(eb.model(name), gpu, context, number, **kinds)
            moment = said.moments[1 if way == "decode step" else 0]
            values = explorer.values(states(explorer, number, model=name, gpu=gpu, tokens=f"{context:,}", way=way))
            parts = explorer.kind.highest(values)[1]
            assert {p: x for p, x in parts.items() if x} == {p: x for p, x in moment.parts.items() if x}
            assert sum(parts.values()) == moment.bytes and values["capacity"] == said.usable
            if types:
                most = eb.serve(eb.model(name), gpu, context, **kinds).concurrency or 0
                assert explorer.kind.most(values, way) == most
        growing = eb.serve(eb.model(name), gpu, context).concurrency or 0
        assert min(explorer.kind.most(values, way) for way in list(MOMENTS)[:2]) == growing


@pytest.mark.parametrize(
    ("preset", "said"),
    [
        ("Llama 3.1 8B, the prefill is full", "77.86 GiB in all. 99.3 % of"),
        ("Llama 3.1 8B in pages", "77.96 GiB in all. 99.5 % of"),
        ("a card of 24 GB", "are left."),
        ("128 thousand tokens", "is not in it. The largest moment is in decode, at 'values joined'."),
        ("Llama 3.1 70B, 16 bits", "are left."),
    ],
)
def test_the_presets_are_what_they_are_called(preset, said):
    explorer = explore.serving()
    assert said in explorer.describe(explorer.state | explorer.presets[preset])


def test_a_preset_that_is_not_about_a_model_leaves_it():
    explorer = explore.serving(eb.model("llama-3.2-1b"))
    found = {
        name: explorer.describe(explorer.state | preset).split(",")[0] for name, preset in explorer.presets.items()
    }
    about = ("Llama 3.1 8B, the prefill is full", "Llama 3.1 8B in pages", "Llama 3.1 70B, 16 bits")
    assert [found.pop(name) for name in about] == ["llama-3.1-8b", "llama-3.1-8b", "llama-3.1-70b"]
    assert set(found.values()) == {"llama-3.2-1b"}


def test_it_answers_at_once(node):
    explorer = explore.serving()
    moved = [explorer.state | {"model": i % 6, "gpu": i % 3, "concurrency": i + 1} for i in range(24)]
    spent = node(TIMED, {"spec": explorer.picture.spec, "states": moved}, picture=explorer.source)
    assert spent < 50  # milliseconds, the curves among them


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"model": eb.model("mistral-7b", code="reference")}, "serving.model.window: 4,096 of mistral-7b; allowed: 0"),
        ({"model": eb.model("gpt2")}, "serving.model.positions: 1,024 of gpt2; allowed: 131,072 or more"),
        ({"model": eb.model("gpt-oss-20b")}, "serving.model.window: 128 of gpt-oss-20b; allowed: 0"),
        ({"concurrency": 513}, "concurrency: 513 is not in the slider's range"),
    ],
)
def test_what_it_does_not_cover_is_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        explore.serving(**arguments)
