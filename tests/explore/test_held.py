"""What a reader holds: a state to compare with, and a run on which every explorer opens."""

from pathlib import Path

import pytest

import everybyte as eb
from everybyte import explore

PAGE = Path(__file__).with_name("page.mjs").read_text(encoding="utf-8")
#: Opens pictures one after another, in one browser.
OPENED = """
import { play } from "./page.mjs";
import * as first from "./first.mjs";
import * as second from "./second.mjs";
export default async ({ plays }) => {
  const kept = {};
  globalThis.localStorage = { getItem: (name) => kept[name] ?? null, setItem: (name, text) => { kept[name] = text; } };
  const seen = [];
  for (const [which, spec, state, steps] of plays) seen.push((await play([first, second][which].default, spec, state, steps)).seen);
  return seen;
};
"""
OPEN, PINS, KEEPS, FORGETS = "copy this state", "pin this state", "this is my run", "forget my run"


def opened(node, *plays):
    """What is seen of each explorer, after each step."""
    explorers = [explorer for explorer, _ in plays]
    given = [[min(i, 1), explorer.picture.spec, explorer.state, steps] for i, (explorer, steps) in enumerate(plays)]
    return node(OPENED, {"plays": given}, page=PAGE, first=explorers[0].source, second=explorers[-1].source)


def index(explorer, name, label):
    return list(explorer._controls[name].options).index(label)


def test_a_pinned_state_is_compared_with_until_it_is_let_go(node):
    explorer = explore.states()
    large = {"c_model": index(explorer, "model", "gpt2-xl")}
    steps = [{"press": PINS}, large, {"c_precision": index(explorer, "precision", "bf16")}, {"press": "unpin"}]
    [[at_first, pinned, moved, both, free]] = opened(node, (explorer, steps))
    assert at_first["pictures"] == 1 and at_first["buttons"] == [OPEN, PINS, KEEPS] and not at_first["against"]
    assert pinned["against"].startswith("Pinned.") and pinned["pictures"] == 2 and "unpin" in pinned["buttons"]
    assert moved["against"].startswith(
        "Against the pinned state: Model gpt2 \u2192 gpt2-xl: weights 474.70 MiB \u2192 5.80 GiB; "
    )
    assert both["sentence"].startswith("Precision fp32 \u2192 bf16: weights 5.80 GiB \u2192 2.90 GiB; ")
    assert (
        "Model gpt2 \u2192 gpt2-xl, precision fp32 \u2192 bf16: weights 474.70 MiB \u2192 2.90 GiB; " in both["against"]
    )
    assert free["pictures"] == 1 and not free["against"] and free["buttons"] == at_first["buttons"]


def test_every_explorer_opens_on_the_readers_run(node):
    step, other = explore.step(), explore.checkpointing()
    mine = {"c_model": index(step, "model", "gpt2-xl"), "c_batch": index(step, "batch", "4")}
    there = {"model": index(other, "model", "gpt2-xl"), "batch": index(other, "batch", "4")}
    keeps = [mine, {"press": KEEPS}]
    [kept, opening] = opened(
        node, (step, keeps), (other, [{"preset": 0}, {"press": "go to my run"}, {"press": FORGETS}])
    )
    assert KEEPS in kept[1]["buttons"] and FORGETS in kept[2]["buttons"] and "go to my run" not in kept[2]["buttons"]
    first, reset, again, forgotten = opening
    assert first["sentence"].startswith("Your run: ") and first["state"] == other.state | first["state"] | there
    assert reset["state"] == other.state and "go to my run" in reset["buttons"]
    assert again["state"] == first["state"] and again["sentence"].startswith("Your run: ")
    assert KEEPS in forgotten["buttons"] and "go to my run" not in forgotten["buttons"]


def test_what_a_caller_chose_stays(node):
    """Arguments, and `at`, are newer than the run; the reader can still go there."""
    step = explore.step()
    asked = explore.states(eb.model("gpt2-medium"))
    moved = explore.states().at(precision="bf16")
    keeps = [{"c_model": index(step, "model", "gpt2-xl")}, {"press": KEEPS}]
    for explorer in (asked, moved):
        _, [first] = opened(node, (step, keeps), (explorer, []))
        assert first["state"] == explorer.state and "go to my run" in first["buttons"]


def test_a_run_is_of_what_an_explorer_offers(node):
    """Its formats have no model: nothing opens elsewhere, and it keeps no run."""
    step, formats = explore.step(), explore.formats()
    keeps = [{"c_model": index(step, "model", "gpt2-xl")}, {"press": KEEPS}]
    _, [first] = opened(node, (step, keeps), (formats, []))
    assert first["state"] == formats.state and first["buttons"] == [OPEN, PINS]


@pytest.mark.parametrize("kept", ["{", "[]", "null", '{"model": {"a": 1}, "batch": null, "gpu": "<b>"}'])
def test_what_a_browser_has_kept_wrongly_opens_nothing(node, kept):
    step = explore.step()
    script = OPENED.replace("const kept = {};", f"const kept = {{ 'everybyte-run': {kept!r} }};")
    [[first]] = node(
        script, {"plays": [[0, step.picture.spec, step.state, []]]}, page=PAGE, first=step.source, second=step.source
    )
    assert first["state"] == step.state and not first["error"]
