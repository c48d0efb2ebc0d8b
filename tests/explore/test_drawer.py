"""The drawer: at most three controls beside a picture, and what the others hide is said where it is not as usual."""

import inspect

import pytest

import everybyte as eb
from everybyte import explore
from everybyte.explore.beside import said
from everybyte.explore.explorer import FIRST

UNSEEN = """
import { pure } from "./picture.mjs";
export default ({ spec, states }) => states.map((state) => pure.unseen(spec, state));
"""
ARGUMENTS = {"memory_map", "model"}  # they need one: their titles are their own
TOLD = sorted(
    name
    for name in explore.__all__
    if callable(made := getattr(explore, name))
    and name not in ARGUMENTS
    and inspect.signature(made).return_annotation is explore.Explorer
)


def unseen(node, explorer, *states):
    """What the drawer says at the opening state, changed by control and option or value."""
    at = [explorer.state | explorer._preset(changes) for changes in states]
    return node(UNSEEN, {"spec": explorer.picture.spec, "states": at}, picture=explorer.source)


@pytest.mark.parametrize("name", TOLD)
def test_the_first_controls_are_chosen_where_there_are_more(name, node):
    explorer = getattr(explore, name)()
    controls, spec = explorer._controls, explorer.picture.spec
    assert ("first" in said(name)) == (len(controls) > FIRST)
    assert len(spec["first"]) == min(len(controls), FIRST)
    order = [c.name for c in explorer.ordered()]
    assert sorted(order) == sorted(controls) and order[: len(spec["first"])] == [
        n for n in controls if n in spec["first"]
    ]
    assert [box.description for box in explorer.children[1].children] == [controls[n].label for n in order]
    assert unseen(node, explorer, {}) == [""]


def test_by_default_the_first_three_are_and_no_other_number_can_be():
    explorer = explore.model(eb.derive(eb.model("gpt2"), eb.Setup()))
    assert [c.name for c in explorer.ordered()][:FIRST] == ["batch", "sequence", "gpu"]
    controls = [explore.Slider(name, name, 1, 8, 1) for name in ("batch", "sequence", "layers", "heads")]
    picture = explore.Lines("batch", "batch", [1, 2], [])
    for first, fault in (
        (["bach"], "'bach' is unknown; "),
        ([c.name for c in controls], "4 controls; allowed: at most 3"),
    ):
        with pytest.raises(ValueError, match=rf"explorer\.first: {fault}"):
            explore.Explorer("t", controls, picture, first=first)


def test_what_is_hidden_and_not_as_usual_is_said(node):
    explorer = explore.checkpointing()
    xl = {"model": "gpt2-xl", "checkpointing": "selective"}  # seen
    states = [xl, {"precision": "bf16-mixed", "dropout": "dropout"}, {"place": 5_000}]
    assert unseen(node, explorer, *states) == ["", "precision bf16-mixed, dropout", ""]


def test_what_a_choice_sets_is_usual_until_it_is_moved(node):
    states = [{"model": "llama-3.1-8b"}, {"model": "llama-3.1-8b", "kv_heads": 4}]
    assert unseen(node, explore.parameters(), *states) == ["", "key-value heads 4"]


def test_what_another_explorer_moved_before_is_said(node):
    explore.states().at(precision="bf16", optimizer="adam")
    assert unseen(node, explore.checkpointing(), {}) == ["precision bf16, optimizer adam"]


def test_of_what_the_caller_chose_nothing_is_usual(node):
    xl = eb.model("gpt2-xl")
    explorer = explore.step(xl, eb.Setup(precision="bf16-mixed", batch=8, sequence=512, dropout=0.1))
    assert unseen(node, explorer, {}) == ["attention flash, dropout, implementation foreach, sequence (tokens) 512"]
    assert unseen(node, explore.diffusion().at(adapter_rank="rank 256"), {}) == ["rank 256"]
