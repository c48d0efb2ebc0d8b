"""Every explorer, at every end of every control: Python and JavaScript say the same, the figure draws."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import sympy

import everybyte as eb
from everybyte import draw, explore
from everybyte.evidence import example
from everybyte.explore import Choice, Explorer, Lines, Slider, Stack
from everybyte.explore.controls import cards
from everybyte.explore.pictures import quantity
from everybyte.formulas import SYMBOLS

EXPLORERS = {
    "states": explore.states,
    "parameters": explore.parameters,
    "formats": explore.formats,
    "low_precision": explore.low_precision,
    "compiled": explore.compiled,
    "block": explore.block,
    "attention": explore.attention,
    "linear_attention": explore.linear_attention,
    "patches": explore.patches,
    "diffusion": explore.diffusion,
    "step": explore.step,
    "loss": explore.loss,
    "planning": explore.planning,
    "checkpointing": explore.checkpointing,
    "offloading": explore.offloading,
    "zero": explore.zero,
    "tensor": explore.tensor,
    "pipelines": explore.pipelines,
    "sharding": explore.sharding,
    "ring": explore.ring,
    "optimizers": explore.optimizers,
    "adapters": explore.adapters,
    "serving": explore.serving,
    "colocated": explore.colocated,
    "allocator": explore.allocator,
    "combining": explore.combining,
    "allocations": explore.allocations,
    "played": explore.played,
    "epochs": explore.epochs,
    "memory_map": lambda: explore.memory_map(example.left()),
}
PAGE = Path(__file__).with_name("page.mjs").read_text(encoding="utf-8")
PLAY = """
import picture, { pure } from "./picture.mjs";
import { play } from "./page.mjs";
export default ({ spec, state, steps }) => play(picture, spec, state, steps);
"""
SAY = """
import { pure } from "./picture.mjs";
export default ({ spec, states }) => states.map((state) => pure.describe(spec, state));
"""
KEEP = """
import { addressOf, addressed, callOf } from "./picture.mjs";
export default ({ spec, states, asked }) => ({
  calls: states.map((state) => callOf(spec, state)),
  states: states.map((state) => addressed(spec, addressOf(spec, state))),
  asked: asked.map((address) => addressed(spec, address)),
});
"""
x = SYMBOLS["batch"].symbol
curves = Lines("batch", "batch", [1, 2, 4, 8], [("activations", "twice", 2 * x), ("loss", "square", x**2)])


def lines(log=False):
    shape = Lines("batch", "batch", [1, 2, 4, 8], curves.curves, log=log)
    return Explorer("Twice and square", [Slider("batch", "batch", 1, 16, 2)], shape, {"four": {"batch": 4}})


EXPLORERS |= {"lines": lines, "lines, log": lambda: lines(log=True)}


def ends(explorer):
    """The opening state, the presets', and each control's two ends, alone and all together."""
    opening = explorer.state
    low, high = {}, {}
    for name, control in explorer._controls.items():
        low[name], high[name] = (
            (0, len(control.options) - 1) if control.trait == "index" else (control.low, control.high)
        )
    alone = [{**opening, name: end[name]} for end in (low, high) for name in opening]
    states = [opening, low, high, *alone, *({**opening, **p} for p in explorer.presets.values())]
    for state in states:
        for name, control in explorer._controls.items():
            if getattr(control, "divides", "") and state[control.divides] % state[name]:
                state[name] = 1
    return list({json.dumps(state): state for state in states}.values())  # each once


@pytest.fixture(params=EXPLORERS)
def explorer(request):
    return EXPLORERS[request.param]()


def play(node, explorer, *steps, source=None):
    data = {"spec": explorer.picture.spec, "state": explorer.state, "steps": steps}
    return node(PLAY, data, picture=source or explorer.source, page=PAGE)


def test_the_browser_says_what_python_says(explorer, node):
    states = ends(explorer)
    said = node(SAY, {"spec": explorer.picture.spec, "states": states}, picture=explorer.source)
    assert said == [explorer.describe(state) for state in states]


def test_a_state_is_a_call_and_an_address(explorer, node):
    spec = explorer.picture.spec
    if not spec["name"]:  # what no call without arguments opens
        return
    states, name = ends(explorer), spec["name"]
    asked = ["", "#check", f"#{name}", f"#other?{name}=1", f"#{name}?nobody=1"]
    kept = node(KEEP, {"spec": spec, "states": states, "asked": asked}, picture=explorer.source)
    assert kept["states"] == states and kept["asked"] == [None, None, None, None, {}]
    for state, call in zip(states[:2], kept["calls"], strict=False):
        assert call.startswith(f"explore.{name}().at(")
        opened = eval(call, {"explore": explore, "true": True, "false": False})
        assert opened.state == state
    with pytest.raises(ValueError, match=r"^explorer\.at: 'nobody' is not a control; allowed: "):
        explorer.at(nobody=1)


def test_what_an_address_says_wrongly_is_left_out(node):
    explorer = explore.step()
    slider = next(c for c in explorer.picture.spec["controls"] if "ends" in c)
    chosen = next(c for c in explorer.picture.spec["controls"] if "options" in c)
    high = slider["ends"][1]
    asked = [f"#step?{slider['name']}={high + 7}&{chosen['name']}=%3Cscript%3E", f"#step?{slider['name']}=many"]
    kept = node(KEEP, {"spec": explorer.picture.spec, "states": [], "asked": asked}, picture=explorer.source)
    assert kept["asked"] == [{slider["name"]: high}, {}]


def test_no_line_of_a_gpu_is_the_whole_memory(explorer):
    """It is what is usable, and beside live bytes the sentence says what the allocator needs, or what is not among them."""
    if "gpu" not in explorer._controls or "capacity" not in explorer.values():
        return
    for state in ends(explorer):
        values, card = explorer.values(state), list(cards().values())[state["gpu"]]
        if "card_no" in values:
            assert 0 < values["capacity"] <= eb.Headroom().usable(card) < card.memory
        assert values["capacity_label"].endswith(", usable")
        said = explorer.describe(state)
        if explorer.picture.spec["kind"] in ("stack", "peak", "fitting") and "it does not fit" not in said:
            assert (
                f"{values['margin']} % more than live bytes" in said if "margin" in values else values["alone"] in said
            )


def test_the_figure_draws_at_every_end(explorer, sample):
    """Laid out as it opens, in `make test-all` at both ends too; elsewhere what stands in it is enough, at half the time."""
    states = ends(explorer)
    for i, state in enumerate(states[:3] + sample(states[3:], 1)):
        fig = explorer.figure(state)
        if i not in sample(range(3), 1):
            fig.set_layout_engine("none")
        fig.draw_without_rendering()
        assert draw.checked_alt(fig.alt)
        assert explorer.table(state).rows


def test_the_picture_draws_at_every_end(explorer, node):
    steps = [{f"c_{name}": value for name, value in state.items()} for state in ends(explorer)]
    seen = play(node, explorer, *steps)["seen"]
    heights = [shown["height"] for shown in seen]
    assert heights == sorted(heights) and heights[0] > 0  # what is below never jumps up under the reader's hand
    for shown, state in zip(seen[1:], ends(explorer), strict=True):
        assert set(shown["drawn"]) <= set(shown["legend"]) or not shown["legend"]
        assert not shown["error"] and shown["sentence"] and shown["role"] == "img"
        assert explorer.describe(shown["state"]) in shown["label"]
        assert shown["state"] == state or any(getattr(c, "sets", None) for c in explorer._controls.values())


def test_a_state_that_was_stored_shows_the_same(explorer, node):
    """A notebook's file keeps a widget's state with its keys sorted."""
    stored = json.loads(json.dumps(explorer.picture.spec, sort_keys=True))
    last = {f"c_{name}": value for name, value in list(explorer.presets.values())[-1].items()}
    live, again = (
        node(PLAY, {"spec": spec, "state": explorer.state, "steps": [last]}, picture=explorer.source, page=PAGE)["seen"]
        for spec in (explorer.picture.spec, stored)
    )
    assert live == again


def test_parts_are_stacked_as_in_the_figures(explorer):
    """In the palette's order, as `draw.stacked` has them, and the witnesses' own timelines."""
    if not isinstance(explorer.kind, Stack) or explorer.kind.kind == "chart":  # which has a figure of its own
        pytest.skip("its picture is no stack of parts")
    order = list(draw.PARTS)
    places = [order.index(part) for part, _, _ in explorer.kind.parts]
    assert places == sorted(places)


def test_the_witnesses_have_the_palettes_order():
    setup = eb.Setup(batch=1, sequence=8, precision="bf16-mixed", gpus=2, sharding="zero3")
    places = [list(draw.PARTS).index(part) for part in eb.budget(eb.model("gpt2"), setup).timeline()]
    assert places == sorted(places) and len(places) == 10


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("attention", ["512", "1,024", "1,536", "2,048"]),
        ("loss", ["256", "2,048", "16,384", "131,072", "vocabulary"]),
        ("offloading", ["1", "4", "16", "64", "256"]),
        ("combining", ["75 s", "80 s", "85 s", "a step, as computed"]),
    ],
)
def test_an_axis_is_named_at_round_places(name, named, node):
    explorer = EXPLORERS[name]()
    [shown] = play(node, explorer)["seen"]
    texts = shown["texts"]
    start = texts.index(named[0])
    assert texts[start : start + len(named)] == named
    assert not [text for text in texts if " k s" in text]


def test_a_logarithmic_axis_comes_back_from_where_a_reader_has_been(node):
    explorer = explore.loss()
    far = {
        "c_batch": len(explorer._controls["batch"].options) - 1,
        "c_sequence": len(explorer._controls["sequence"].options) - 1,
    }
    near = {"c_batch": 0, "c_sequence": 3}
    opened, away, back = (
        [text for text in shown["texts"] if text.endswith(("B",)) and len(text.split()) == 2]
        for shown in play(node, explorer, far, near)["seen"]
    )
    assert len(opened) <= 6 and not set(back) & set(away) - set(opened) and len(back) <= 8, (opened, away, back)


def test_presets_are_pressed_and_released(explorer, node):
    state, unsaid = explorer.state, set()  # controls that a preset which the opening state meets leaves as they are
    for preset in list(explorer.presets.values())[1:]:
        unsaid |= state.keys() - preset.keys() if preset.items() <= state.items() else set()
    controls = [(n, c) for n, c in explorer._controls.items() if not getattr(c, "sets", None) and n != "size"]
    name, control = next((n, c) for n, c in controls if n not in unsaid)
    away = explorer.state[name] + 1 if control.trait == "value" else 1 - min(explorer.state[name], 1)
    labels = list(explorer.presets)
    opened, moved, preset, back = play(node, explorer, {f"c_{name}": away}, {"preset": len(labels) - 1}, {"preset": 0})[
        "seen"
    ]
    assert (
        opened["preset"] == 0
        and moved["preset"] is None
        and preset["preset"] == len(labels) - 1
        and back["preset"] == 0
    )
    assert opened["sentence"] in opened["label"] and opened["sentence"] == explorer.describe()
    assert preset["sentence"].startswith(labels[-1]) and back["sentence"].startswith("Reset: ")
    assert preset["state"].items() >= explorer.presets[labels[-1]].items() and back["state"] == explorer.state


def test_a_closed_picture_listens_to_nothing(explorer, node):
    assert play(node, explorer)["listening"] == 0


def test_the_program_parses_and_evaluates_no_text(explorer, node):
    for word in ("eval(", "new Function", "innerHTML", "import(", "fetch(", "http://", "https://"):
        assert word not in explorer.source.replace("http://www.w3.org/2000/svg", "")
    assert node(
        "import picture from './picture.mjs'; export default () => Object.keys(picture)", 0, picture=explorer.source
    ) == ["render"]


def test_a_fresh_output_has_view_picture_and_words(explorer):
    data, metadata = explorer._repr_mimebundle_()
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == explorer.model_id
    assert data["text/plain"] == explorer.describe() and any(c.isdigit() for c in data["text/plain"])
    assert draw.checked_alt(metadata["image/png"]["alt"]) and data["image/png"].startswith("iVBOR")


def test_the_root_has_its_class_and_links(explorer):
    assert "everybyte-explorer" in explorer._dom_classes
    assert {link.target[1] for link in explorer._links} == {"preset", *(f"c_{name}" for name in explorer.state)}
    json.dumps(explorer.picture.spec)  # nothing that the browser cannot take


def test_what_changed_is_said(node):
    explorer = explore.states()
    bf16 = list(explorer._controls["precision"].options).index("bf16")
    said = play(node, explorer, {"c_precision": bf16})["seen"][1]["sentence"]
    assert said.startswith(
        "Precision fp32 → bf16: weights 474.70 MiB → 237.35 MiB; gradients 474.70 MiB → 237.35 MiB; "
    )
    assert "total 1.85 GiB → 949.40 MiB" in said


def test_a_peak_that_moves_is_said(node):
    explorer = explore.planning()
    labels = list(explorer.presets)
    steps = [{"preset": labels.index(label)} for label in ("1B on 24 GB", "131,072 tokens")]
    opening, moved, back = play(node, explorer, *steps)["seen"]
    assert "The peak is in loss backward." in opening["sentence"]
    assert moved["sentence"].endswith("The peak moves from loss backward to optimizer step.")
    assert back["sentence"].endswith("The peak moves from optimizer step to loss backward.")


def test_states_are_the_registry_s():
    setup = eb.Setup(precision="bf16-master", master_gradients="both", optimizer="momentum")
    explorer = explore.states(eb.model("gpt2-xl"), setup, eb.gpu("rtx-4090"))
    total = explorer.table().rows[-1][1]
    assert (
        total
        == eb.formula("bytes_per_parameter").at(None, setup) * eb.model("gpt2-xl").parameters
        == 16 * 1_557_611_200
    )
    assert "99.5 % of the 23.32 GiB of NVIDIA GeForce RTX 4090, usable; 114.49 MiB are left" in explorer.describe()
    explorer = explore.states(eb.model("gpt2-xl"), setup, eb.gpu("t4"))
    assert "more than the 14.56 GiB of NVIDIA T4, usable" in explorer.describe() and explorer.describe().endswith(
        "it does not fit."
    )


@pytest.mark.parametrize("name", ["gpt2", "llama-3.1-8b", "bert-large", "gemma-2b"])
def test_parameters_are_the_published(name):
    rows = explore.parameters(eb.model(name, code="reference")).table().rows
    assert rows[-1][1] == eb.model(name, code="reference").published == sum(row[1] for row in rows[:-1])


def test_key_value_heads_offer_divisors_only(node):
    explorer = explore.parameters(eb.model("llama-2-7b", code="reference"))
    steps = [{"c_kv_heads": 31}, {"c_kv_heads": 15}, {"c_kv_heads": 9}, {"c_kv_heads": 5}, {"c_heads": 6}]
    seen = [shown["state"]["kv_heads"] for shown in play(node, explorer, *steps)["seen"]]
    assert seen == [32, 16, 8, 16, 4, 6]  # it moves on, the way it was moving; with fewer heads, to what divides them


def test_a_model_moves_the_sliders_and_a_slider_leaves_the_model(node):
    explorer = explore.parameters()
    xl = list(explorer._controls["model"].options).index("gpt2-xl")
    opened, chosen, moved = play(node, explorer, {"c_model": xl}, {"c_layers": 2})["seen"]
    assert chosen["state"]["layers"] == 48 and chosen["state"]["heads"] == 25
    assert (
        chosen["sentence"].startswith("Start from gpt2 → gpt2-xl: ")
        and "1,557,611,200 parameters" in chosen["sentence"]
    )
    assert moved["state"]["model"] == xl and "gpt2-xl with layers 2, width 1,600" in moved["label"]


def test_a_broken_formula_is_shown_in_the_picture_s_place(node):
    explorer = explore.states()
    broken = explorer.source.replace('"weights": (v) => {', '"weights": (v) => { throw new Error("no weights");')
    assert broken != explorer.source
    shown = play(node, explorer, source=broken)["seen"][0]
    assert "could not be drawn. Error: no weights" in shown["error"] and not shown["sentence"] and not shown["bars"]


@pytest.mark.parametrize("value", ["NaN", "-1", "undefined"])
def test_a_formula_without_an_amount_is_shown_too(value, node):
    explorer = explore.states()
    shown = play(
        node, explorer, source=explorer.source.replace('"weights": (v) => {', f'"weights": (v) => {{ return {value};')
    )
    assert "is not an amount" in shown["seen"][0]["error"]


def test_after_an_error_the_picture_comes_back(node):
    explorer = lines()
    name = quantity(2 * x).name
    broken = explorer.source.replace(f'"{name}": (v) => {{', f'"{name}": (v) => {{ if (v.batch === 3) return NaN;')
    _, wrong, right = play(node, explorer, {"c_batch": 3}, {"c_batch": 5}, source=broken)["seen"]
    assert wrong["error"] and not right["error"] and right["sentence"] == explorer.describe({"batch": 5})


ASKED = """
import picture from "./picture.mjs";
import { page, widget } from "./page.mjs";
export default async ({ spec, state, steps }) => {
  const { el } = page();
  const create = document.createElement;
  const context = { measureText: (words) => ({ width: 7 * words.length }) };
  document.createElement = (name) => Object.assign(create(name), { isConnected: true, getContext: () => context });
  let asked = 0;
  globalThis.getComputedStyle = () => { asked += 1; return { fontFamily: "serif" }; };
  const model = widget({ spec, preset: 0, ...state });
  picture.render({ model, el });
  const fonts = [context.font];
  for (const step of steps) {
    context.font = "";
    for (const [name, value] of Object.entries(step)) model.set(name, value);
    await new Promise((done) => setTimeout(done));
    fonts.push(context.font);
  }
  return [asked, fonts];
};
"""


def test_the_page_s_style_is_asked_for_once_and_not_at_every_key(node):
    """Who asks waits until Chromium has laid the page out: a third of the layouts that followed a key."""
    explorer = lines()
    state = {f"c_{name}": value for name, value in explorer.state.items()}
    data = {"spec": explorer.picture.spec, "state": state, "steps": [{"c_batch": n} for n in (3, 5, 8)]}
    asked, fonts = node(ASKED, data, picture=explorer.source, page=PAGE)
    assert asked == 1 and len(fonts) == 4 and all(font.endswith("px serif") for font in fonts)


def test_explorers_share_their_controls():
    one, two = explore.states(), explore.states()
    assert one._inputs["model"] is two._inputs["model"] and one._inputs["size"] is not two._inputs["size"]
    explore.states(eb.model("gpt2-xl"), eb.Setup(precision="bf16", optimizer="sgd"), eb.gpu("t4"))
    assert one.describe() == two.describe() and "gpt2-xl, bf16, sgd: weights 2.90 GiB" in one.describe()
    explore.reset()
    assert one.describe().startswith("gpt2, fp32, adamw: weights 474.70 MiB") and "H100" in one.describe()


def test_a_model_of_your_own():
    mine = eb.Model(name="<b>mine</b>", layers=2, width=64, heads=2, vocabulary=100)
    assert f"{explore.states(mine).table().rows[0][1]:d}" == str(4 * mine.parameters)
    explorer = explore.parameters(mine)
    assert explorer.describe().startswith("<b>mine</b>, width 64: ") and explorer.table().rows[-1][1] == mine.parameters
    assert "&lt;b&gt;mine" in explorer.table()._repr_html_()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: explore.parameters(eb.model("mixtral-8x7b", code="reference")), "parameters.model: mixtral-8x7b has experts.*allowed: gpt2"),
        (lambda: explore.parameters(eb.model("qwen3-32b", code="reference")), "width that is not heads times head_width"),
        (lambda: Slider("batch", "batch", 1, 8, 9), "batch: 9 is not in the slider's range; allowed: 1 to 8"),
        (lambda: Choice("c", "c", {"a": {}}, "b"), "c: 'b' is unknown; allowed: a"),
        (lambda: explore.shared("modle"), "explore.control: 'modle' is unknown; did you mean 'model'"),
        (lambda: Explorer("t", [Slider("batch", "b", 1, 8, 1)], curves, {"p": {"batch": 9}}), "preset.batch: 9 is out of range"),
        (lambda: Explorer("t", [Slider("batch", "b", 1, 8, 1)], curves, {"p": {"bach": 1}}), "preset: 'bach' is not a control"),
        (lambda: Explorer("t", [Slider("sequence", "s", 1, 8, 1)], curves), "no value for batch"),
        (lambda: Explorer("t", [], Stack([("loss", "loss", sympy.Symbol("q"))])), "is not in the notation"),
    ],
)  # fmt: skip
def test_bad_input_is_named(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_numbers_read_alike(node):
    from everybyte import units

    counts = [0, 1, 999, 1000, 12345, 999_949, 999_950, 999_999_999, 1e6, 123456789, 1e12, 0.5, 1250, 1350]
    sizes = [
        0,
        1,
        1023,
        1024,
        1536,
        2**20 + 5 * 2**17,
        *(k * 2**27 for k in range(1, 40)),
        2**43,
        1.5,
        2**30 - 1,
        2**40 - 2**20,
        1023.999,
        2**20 - 6,
        2**20 - 5,
    ]
    script = 'import { pure } from "./picture.mjs"; export default ([c, s]) => [c.map((x) => pure.amount(x, "")), s.map((x) => pure.amount(x, "B"))];'
    said = node(script, [counts, sizes], picture=lines().source)
    assert said == [[units.number(n) for n in counts], [units.text(n) for n in sizes]]
    assert all(a < b for a, b in pairwise(sizes[1:5]))
