"""Chapter 15's explorer: the step that it walks is the budget's, at every operation."""

import json
import re
from pathlib import Path

import pytest

import everybyte as eb
from everybyte import draw, explore
from everybyte.explore.step import LOOKS, PLACES

PAGE = Path(__file__).with_name("page.mjs").read_text(encoding="utf-8")
PLAY = """
import picture from "./picture.mjs";
import { play } from "./page.mjs";
export default ({ spec, state, steps }) => play(picture, spec, state, steps);
"""
SAY = """
import { pure } from "./picture.mjs";
export default ({ spec, states }) => states.map((state) => pure.describe(spec, state));
"""
SETUPS = [
    {},
    {"precision": "bf16-mixed", "attention": "eager"},
    {"precision": "fp16-mixed", "optimizer": "sgd"},
    {"precision": "bf16-master", "optimizer_impl": "loop"},
    {"precision": "bf16", "optimizer_impl": "fused", "dropout": 0.1},
]
SMALL = eb.Model(name="<i>small</i>", layers=3, width=48, heads=3, vocabulary=101, positions=64)


@pytest.mark.parametrize("setup", SETUPS, ids=lambda s: "-".join(map(str, s.values())) or "fp32")
@pytest.mark.parametrize("model", [SMALL, eb.model("gpt2")], ids=lambda m: m.name)
def test_the_step_is_the_budget_s(model, setup):
    setup = eb.Setup(batch=2, sequence=64, **setup)
    explorer = explore.step(model, setup)
    course, budget = explorer.kind.compute(explorer.values()), eb.budget(model, setup)
    assert course.operations == budget.operations and course.timeline() == budget.timeline()
    assert (course.peak, course.peak_at, course.at) == (budget.peak, budget.peak_at, budget.peak_operation)
    assert explorer.table().rows[-1][1] == budget.peak


def test_the_slider_reaches_every_operation_and_the_looks_every_mark():
    explorer = explore.step(setup=eb.Setup())
    budget = eb.budget(eb.model("gpt2"), eb.Setup())
    seen = [explorer.kind.compute(explorer.values(look=0, place=place)).at for place in range(PLACES + 1)]
    assert sorted(set(seen)) == list(range(len(budget.live))) and seen == sorted(seen)
    marks = [explorer.kind.compute(explorer.values(look=i)).at for i in range(2, len(LOOKS))]
    assert marks == [budget.marks[m] for m in ("after_forward", "after_backward", "after_step")]


@pytest.mark.parametrize(
    ("preset", "said"),
    [
        ("the loss wins", "peak of 10.54 GiB is in loss backward"),
        ("the optimizer wins", "is in optimizer step"),
        ("backward wins", "is in backward"),
    ],
)
def test_the_presets_are_what_they_are_called(preset, said):
    explorer = explore.step()
    assert said in explorer.describe(explorer.state | explorer.presets[preset])


def test_an_instant_is_named():
    explorer = explore.step(setup=eb.Setup())
    at = eb.budget(eb.model("gpt2"), eb.Setup()).operations.index(("gelu", "forward", "blocks.6.mlp"))
    place = next(p for p in range(PLACES) if explorer.kind.compute(explorer.values(look=0, place=p)).at == at)
    said = explorer.describe(explorer.state | {"look": 0, "place": place})
    assert f"Operation {at + 1} of 350, forward, block 7 of 12, gelu: weights 474.70 MiB, " in said


def test_a_moved_slider_says_where_it_is(node):
    explorer = explore.step()
    steps = [{"c_place": 300}, {"preset": 0}]
    data = {"spec": explorer.picture.spec, "state": explorer.state, "steps": steps}
    opened, moved, back = node(PLAY, data, picture=explorer.source, page=PAGE)["seen"]
    assert moved["sentence"].startswith("Operation 11 of 350, ") and moved["state"]["look"] == 0
    assert opened["label"] == back["label"] != moved["label"] and moved["bars"] >= 4


def test_a_model_of_your_own_is_shown_as_text():
    assert explore.step(SMALL, eb.Setup(batch=2, sequence=32)).describe().startswith("<i>small</i>, fp32, flash, adamw")
    with pytest.raises(ValueError, match="Model.causal: False of bert-base"):
        explore.step(eb.model("bert-base"))


@pytest.mark.parametrize(
    "changes", [{}, {"precision": "bf16-mixed", "attention": "eager", "optimizer_impl": "loop"}], ids=str
)
def test_a_llama_s_step_is_the_budget_s(changes, node):
    llama = eb.model("llama-3.2-1b", code="reference").replace(name="small llama", layers=5, vocabulary=1000)
    setup = eb.Setup(batch=1, sequence=64, **changes)
    explorer, budget = explore.step(llama, setup), eb.budget(llama, setup)
    course = explorer.kind.compute(explorer.values())
    assert course.operations == budget.operations and course.timeline() == budget.timeline()
    assert list(explorer._controls["model"].options) == ["small llama"]
    said = node(SAY, {"spec": explorer.picture.spec, "states": [explorer.state]}, picture=explorer.source)
    assert said == [explorer.describe()]


def played(node, explorer, *steps, spec=None):
    data = {"spec": spec or explorer.picture.spec, "state": explorer.state, "steps": list(steps)}
    return node(PLAY, data, page=PAGE, picture=explorer.source)["seen"]


def test_what_is_drawn_is_in_the_legend_and_stacked_as_in_the_figure_however_the_spec_was_stored(node):
    explorer = explore.step(setup=eb.Setup())
    stored = json.loads(
        json.dumps(explorer.picture.spec, sort_keys=True)
    )  # as a notebook's file keeps a widget's state
    [shown], [again] = played(node, explorer), played(node, explorer, spec=stored)
    legend = [text for text in shown["texts"] if re.fullmatch(r"[a-z -]+ [\d.]+ [KMG]?i?B", text)]
    assert "gradients 0 B" in legend  # at the peak there are none yet, and later they are drawn
    order = [draw.part(name).label for name in explorer.kind.compute(explorer.values()).timeline()]
    assert [text.rsplit(" ", 2)[0] for text in legend] == [label for label in order if any(label in t for t in legend)]
    assert again["texts"] == shown["texts"]


def test_an_axis_stays_while_the_hand_moves_and_a_preset_fits_it_anew(node):
    explorer = explore.step(setup=eb.Setup(batch=8))
    batch = explorer.state["batch"]
    opened, halved, fewest, back = played(node, explorer, {"c_batch": batch - 1}, {"c_batch": 0}, {"preset": 0})
    axis = [
        [t for t in seen["texts"] if re.fullmatch(r"[\d.]+ [KMGT]?i?B", t)] for seen in (opened, halved, fewest, back)
    ]
    assert axis[0] == axis[1] == axis[3] and axis[2] != axis[0]  # an eighth of it would be no picture
    assert all(re.fullmatch(r"\d+(\.5)? [KMGT]?i?B", tick) for ticks in axis for tick in ticks), axis
