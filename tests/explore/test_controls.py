"""What the browser does with a control: typed numbers, presets that change nothing, sliders that move others, titles."""

from pathlib import Path

import numpy
import pytest
import traitlets

import everybyte as eb
from everybyte import explore

PAGE = Path(__file__).with_name("page.mjs").read_text(encoding="utf-8")
PLAY = """
import picture from "./picture.mjs";
import { play } from "./page.mjs";
export default ({ spec, state, steps }) => play(picture, spec, state, steps);
"""
NEAREST = """
import { pure } from "./picture.mjs";
export default ({ control, typed }) => typed.map((text) => pure.nearest(control, text));
"""


def play(node, explorer, *steps):
    data = {"spec": explorer.picture.spec, "state": explorer.state, "steps": steps}
    return node(PLAY, data, picture=explorer.source, page=PAGE)["seen"]


@pytest.mark.parametrize(
    ("name", "typed", "chosen"),
    [
        ("batch", ["1", "1,024", " 100 ", "3", "1e9", "0"], ["1", "1,024", "128", "2", "1,024", "1"]),
        ("sequence", ["4096", "1,048,576"], ["4,096", "1,048,576"]),
        ("head_width", ["64", "128 wide", "100"], ["64 wide", "128 wide", "96 wide"]),
        ("batch", ["", "many", "-"], [None, None, None]),
    ],
)
def test_a_typed_number_is_the_nearest_option(name, typed, chosen, node):
    explorer = explore.attention()
    control = next(c for c in explorer.picture.spec["controls"] if c["name"] == name)
    found = node(NEAREST, {"control": control, "typed": typed}, picture=explorer.source)
    labels = [option["label"] for option in control["options"]]
    assert [labels[i] if i >= 0 else None for i in found] == chosen


def test_a_preset_that_changes_nothing_says_so_and_names_nothing_after_it(node):
    explorer = explore.attention()
    same = list(explorer.presets).index("GPT-2, fp32")
    assert explorer.presets["GPT-2, fp32"].items() <= explorer.state.items()
    opened, pressed, moved = play(node, explorer, {"preset": same}, {"c_heads": 13})
    assert pressed["sentence"] == f"GPT-2, fp32: as it was. {explorer.describe()}"
    assert pressed["title"] == opened["title"] and moved["sentence"].startswith("Heads 12 → 13: ")


def test_the_place_moved_is_the_place_looked_at(node):
    explorer = explore.step()
    assert explorer.describe().count("(the peak)") == 1
    _, moved = play(node, explorer, {"c_place": 10_000})
    assert moved["state"]["look"] == 0 and "Operation 350 of 350, rest" in moved["sentence"]


def test_the_title_says_what_is_shown(node):
    explorer = explore.states()
    models = list(explorer._controls["model"].options)
    opened, moved = play(node, explorer, {"c_model": models.index("gpt2-xl")})
    assert opened["title"] == "Bytes of every parameter, after backward: gpt2, fp32, adamw"
    assert moved["title"] == "Bytes of every parameter, after backward: gpt2-xl, fp32, adamw"


def test_a_name_from_a_reader_is_text_in_the_title(node):
    mine = eb.Model(name="<b>mine</b>", layers=2, width=64, heads=2, vocabulary=100)
    assert play(node, explore.states(mine))[0]["title"].endswith(": <b>mine</b>, fp32, adamw")


UNSHOWN = [
    ("step", "checkpointing", {"checkpointing": "full"}), ("step", "loss", {"loss": "linear-cross-entropy"}),
    ("step", "gpus", {"gpus": 2}), ("checkpointing", "loss", {"loss": "chunked"}),
    ("planning", "checkpointing", {"checkpointing": "full"}), ("sharding", "accumulation", {"accumulation": 4, "sharding": "zero3"}),
    ("sharding", "sharding", {"sharding": "zero2"}),
    ("offloading", "attention", {"sharding": "zero3", "precision": "bf16", "attention": "eager"}),
    ("loss", "checkpointing", {"checkpointing": "full"}), ("block", "sharding", {"sharding": "zero3", "gpus": 8}),
    ("states", "sharding", {"sharding": "zero1", "gpus": 8}), ("optimizers", "adapters", {"adapters": eb.Lora(4)}),
    ("zero", "offload", {"sharding": "zero3", "gpus": 8, "offload": "cpu"}), ("adapters", "adapters", {"adapters": eb.Lora(4)}),
    ("adapters", "precision", {"precision": "bf16"}), ("adapters", "gpus", {"gpus": 2, "sequence": 2048}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "field", "asked"), UNSHOWN, ids=lambda x: x if isinstance(x, str) else "")
def test_what_an_explorer_does_not_show_it_refuses(name, field, asked):
    with pytest.raises(ValueError, match=rf"^{name}\.setup\.{field}: "):
        getattr(explore, name)(setup=eb.Setup(**asked))


@pytest.mark.parametrize("value", ["fp32", [], 5, False, {}])
@pytest.mark.parametrize(
    ("name", "argument"),
    [("step", "setup"), ("block", "setup"), ("zero", "model"), ("serving", "model"), ("states", "gpu")],
)
def test_what_an_explorer_opens_with_is_of_its_kind(name, argument, value):
    with pytest.raises(ValueError, match=rf"^{name}\.{argument}: .*; allowed: a (Setup|Model|Gpu)"):
        getattr(explore, name)(**{argument: value})


@pytest.mark.parametrize("value", [range(3), None, "x", 0])
def test_a_slider_opens_within_its_range(value):
    with pytest.raises(ValueError, match="^concurrency: .* is not in the slider's range; allowed: 1 to 512"):
        explore.serving(concurrency=value)


@pytest.mark.parametrize("name", ["states", "formats", "step"])
def test_a_control_set_to_nothing_keeps_what_was_chosen(name):
    explorer = getattr(explore, name)()
    said, state = explorer.describe(), explorer.state
    for control in explorer._inputs.values():
        for trait in {"index", "value", "label"} & set(control.trait_names()):
            setattr(control, trait, None)
        if not hasattr(control, "index"):
            control.value = float("nan")
    assert explorer.state == state and explorer.describe() == said
    assert getattr(explore, name)().describe() == said  # the shared ones are as they were


@pytest.mark.parametrize("value", [numpy.array([0, 0]), "x", [0], 10**9])
def test_a_control_refuses_what_it_does_not_offer_and_keeps_its_state(value):
    explorer = explore.states()
    for control in explorer._inputs.values():
        with pytest.raises(traitlets.TraitError):
            control.index = value
    assert explorer.state == explore.states().state and explorer.describe()


@pytest.mark.parametrize("value", [None, -1, 7, 10**9, 0.5, float("nan"), "x", True])
def test_a_state_that_a_control_does_not_have_is_refused(value):
    explorer = explore.states()
    for say in (explorer.describe, explorer.values, explorer.table, explorer.figure):
        with pytest.raises(ValueError, match=r"^explorer\.state\.precision: .* is not a whole number from 0 to 6$"):
            say({**explorer.state, "precision": value})


@pytest.mark.parametrize("value", [None, 131, "x", float("nan")])
def test_a_state_that_a_slider_does_not_have_is_refused(value):
    explorer = explore.formats()
    with pytest.raises(ValueError, match=r"^explorer\.state\.magnitude: .*; allowed: -160\.0 to 130\.0$"):
        explorer.describe({**explorer.state, "magnitude": value})


@pytest.mark.parametrize(
    ("name", "model"),
    [("sharding", "llama-3.1-8b"), ("adapters", "llama-3.1-8b"), ("planning", "llama-3.1-8b")],
)  # fmt: skip
def test_another_code_s_model_is_not_shown_as_the_book_s(name, model):
    """They have options for the catalog's models in the book's code: by its name alone another would be shown as that one."""
    opened, known = getattr(explore, name), eb.model(model, code="reference")
    assert model in opened(known).describe()
    for other in (eb.model(model, code="transformers"), known.replace(layers=3)):
        with pytest.raises(
            ValueError, match=rf"^{name}\.model: {model} (in the code of 'transformers'|with fields of its own); "
        ):
            opened(other)
