"""Chapter 22's explorer: under every checkpointing the step that it walks is the budget's, in Python and in the browser."""

from pathlib import Path

import pytest

import everybyte as eb
from everybyte import explore

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
GPT2 = eb.model("gpt2")  # whose courses are stored
FORGOTTEN = [("none", 2), ("full", 2), ("every-k", 2), ("every-k", 3), ("every-k", 5), ("selective", 2)]
SETUPS = [
    {},
    {"precision": "bf16-mixed", "attention": "eager"},
    {"precision": "fp16-mixed", "dropout": 0.1},
    {"precision": "bf16", "attention": "eager", "optimizer_impl": "fused", "dropout": 0.1},
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("setup", SETUPS, ids=lambda s: "-".join(map(str, s.values())) or "fp32")
def test_the_step_is_the_budget_s(setup):
    plain = eb.budget(GPT2, eb.Setup(batch=2, sequence=64, **setup))
    for checkpointing, every in FORGOTTEN:
        step = eb.Setup(batch=2, sequence=64, checkpointing=checkpointing, checkpoint_every=every, **setup)
        explorer, budget = explore.checkpointing(GPT2, step), eb.budget(GPT2, step)
        course = explorer.kind.compute(explorer.values())
        assert course.operations == budget.operations and course.timeline() == budget.timeline()
        assert (course.peak, course.peak_at, course.plain) == (budget.peak, budget.peak_at, plain.peak)
        assert course.left == budget.parts_at("after_forward")["activations"]


@pytest.mark.parametrize("layers", [8, 15])
def test_every_segment_of_a_llama_is_the_budget_s(layers):
    """Of eight blocks, and of a number that few segments divide."""
    llama = eb.model("llama-3.2-1b", code="reference").replace(layers=layers)
    step = eb.Setup(batch=2, sequence=64, precision="bf16", checkpointing="full")
    explorer = explore.checkpointing(llama, step)
    for place, way in enumerate(explorer._controls["checkpointing"].options):
        name, _, every = way.partition(" ")
        setup = (
            step.replace(checkpointing="every-k", checkpoint_every=int(every))
            if every
            else step.replace(checkpointing=name)
        )
        course, budget = (
            explorer.kind.compute(explorer.values(explorer.state | {"checkpointing": place})),
            eb.budget(llama, setup),
        )
        assert (course.operations, course.timeline()) == (budget.operations, budget.timeline()), way


def test_a_model_whose_code_has_no_segments_is_refused():
    with pytest.raises(ValueError, match=r"^explore.checkpointing: Setup.checkpointing: 'selective' with llama-3.2-1b"):
        explore.checkpointing(eb.model("llama-3.2-1b"))


def test_every_segment_reads_alike_in_the_browser(node):
    explorer = explore.checkpointing(GPT2, eb.Setup(batch=2, sequence=64, precision="bf16-mixed"))
    options = range(len(explorer._controls["checkpointing"].options))
    looks = [{"look": 1}, {"look": 2}, {"look": 0, "place": 611}]
    states = [{**explorer.state, "checkpointing": i, **look} for i in options for look in looks]
    said = node(SAY, {"spec": explorer.picture.spec, "states": states}, picture=explorer.source)
    assert said == [explorer.describe(state) for state in states]


def test_it_opens_with_what_it_is_given():
    assert "adamw, foreach, full, batch 8" in explore.checkpointing().describe()
    opened = explore.checkpointing(eb.model("gpt2"), eb.Setup(checkpointing="every-k", checkpoint_every=5))
    assert "every 5, batch 8" in opened.describe()
    assert explore.checkpointing(setup=eb.Setup()).describe().count("without checkpointing") == 0


@pytest.mark.parametrize(
    ("preset", "said"),
    [
        ("XL, nothing recomputed", "peak of 59.65 GiB is in loss backward. Forward leaves 37.64 GiB of activations; "),
        ("XL, each block recomputed", "peak of 29.01 GiB is in optimizer step, 30.64 GiB below the 59.65 GiB without"),
        ("the root of 36", "peak of 15.06 GiB is in backward, 20.79 GiB below the 35.86 GiB without"),
        ("XL, eager, selective", "peak of 45.50 GiB is in loss backward, 56.30 GiB below the 101.80 GiB without"),
    ],
)
def test_the_presets_are_what_they_are_called(preset, said):
    explorer = explore.checkpointing()
    assert said in explorer.describe(explorer.state | explorer.presets[preset])


def test_the_change_says_what_checkpointing_does(node):
    explorer = explore.checkpointing()
    labels = list(explorer._controls["checkpointing"].options)
    steps = [{"c_checkpointing": labels.index("none")}, {"c_look": 2}, {"c_checkpointing": labels.index("selective")}]
    data = {"spec": explorer.picture.spec, "state": explorer.state, "steps": steps}
    _, none, looked, selective = node(PLAY, data, picture=explorer.source, page=PAGE)["seen"]
    assert "the peak 6.32 GiB in loss backward → 10.54 GiB in loss backward. Forward leaves" in none["sentence"]
    assert "backward recomputes nothing" in none["sentence"] and "Operation 132 of 350" in looked["sentence"]
    assert "backward recomputes attention" in selective["sentence"]
    assert any(text == "none: 10.54 GiB" for text in selective["texts"])
    assert not any(text.startswith("none: ") for text in none["texts"])
