"""Chapter 18's explorer: its curves are what the dry run counts, and cross where the chapter says."""

import pytest

import everybyte as eb
from everybyte import explore
from everybyte.explore.pictures import quantity


def curves(explorer, **state):
    values = explorer.values(explorer.state | state)
    return [quantity(q)(**values) for _, _, q in explorer.kind.curves]


def one_block(model, setup):
    """What one more block adds to the activations after forward."""
    fields = {"heads": model.heads, "width": model.width, "vocabulary": 96, "positions": 128, "tied": True}
    counted = [
        eb.dry_run(eb.Model(name="small", layers=n, **fields), setup).parts_at("after_forward")["activations"]
        for n in (2, 3)
    ]
    return counted[1] - counted[0]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "fp16-mixed", "bf16"])
@pytest.mark.parametrize("head_width", [16, 12])
def test_the_curves_are_the_dry_run_s(precision, dropout, head_width):
    model = eb.Model(name="heads", layers=2, width=3 * head_width, heads=3, vocabulary=96, positions=128, tied=True)
    setup = eb.Setup(batch=4, sequence=64, precision=precision, dropout=dropout)
    eager, flash, squares = curves(explore.attention(model, setup))
    assert eager == one_block(model, setup.replace(attention="eager"))
    assert flash == one_block(model, setup)
    assert squares == eb.formula("attention.scores").at(model, setup.replace(attention="eager"))


def test_in_fp32_the_squares_catch_up_at_sixteen_head_widths():
    explorer = explore.attention(eb.model("gpt2"), eb.Setup(batch=8, sequence=1024))
    sequences = list(explorer._controls["sequence"].options)
    ahead = {}
    for name in ("512", "1,024", "2,048"):
        eager, flash, squares = curves(explorer, sequence=sequences.index(name))
        ahead[name] = squares / (eager - squares)
    assert ahead["512"] < 0.6 and ahead["1,024"] == pytest.approx(1, abs=0.01) and ahead["2,048"] > 1.9


def test_the_presets_say_what_they_show():
    explorer = explore.attention()
    said = explorer.describe(explorer.state | explorer.presets["GPT-2, fp32"])
    assert "at sequence (tokens) 1,024, eager block" in said and said.startswith(
        "heads 12, 64 wide, fp32, no dropout, batch 8, width 768: "
    )


@pytest.mark.parametrize("setup", [{"batch": 3}, {"sequence": 1000}])
def test_what_the_sliders_do_not_have_is_refused(setup):
    with pytest.raises(ValueError, match=r"batch|sequence"):
        explore.attention(None, eb.Setup(**setup))


def test_too_many_heads_are_refused():
    with pytest.raises(ValueError, match=r"attention\.model: many has 200 heads; allowed: 1 to 128"):
        explore.attention(
            eb.Model(name="many", layers=1, width=1600, heads=200, vocabulary=96, positions=64, tied=True)
        )


@pytest.mark.parametrize("sequence", [4, 1024, 2**17])
def test_the_curves_part_wherever_the_slider_stands(sequence):
    """Where squares and the rest are of one size, a tenth of the axis lies between any two curves; the mark is within."""
    explorer = explore.attention(None, eb.Setup(batch=8, sequence=sequence))
    across = explorer.kind._across(explorer.values(explorer.state))
    assert across == sorted(set(across)) and across[0] <= sequence <= across[-1] and all(x == int(x) for x in across)
    if sequence == 1024:
        values = explorer.values(explorer.state)
        low, middle, high = sorted(explorer.kind._over(q, values)[-1] for _, _, q in explorer.kind.curves)
        assert min(middle - low, high - middle) > 0.1 * high


def test_the_browser_evaluates_the_curves_where_python_does(node):
    explorer = explore.attention()
    program = "import { pure } from './picture.mjs'; export default ({ spec, state }) => pure.KINDS[spec.kind].compute(spec, state);"
    for state in (
        explorer.state,
        explorer.state | {"sequence": 0},
        explorer.state | explorer.presets["GPT-2, autocast"],
    ):
        found = node(program, {"spec": explorer.picture.spec, "state": state}, picture=explorer.source)
        values = explorer.values(state)
        assert found["xs"] == explorer.kind._across(values)
        assert [c["ys"] for c in found["curves"]] == [
            explorer.kind._over(q, values) for _, _, q in explorer.kind.curves
        ]
