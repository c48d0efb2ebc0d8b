"""The time axis of a step: what lasts a few operations is seen, here and in the browser on the same places."""

from itertools import pairwise
from types import SimpleNamespace

import pytest

import everybyte as eb
from everybyte import draw, explore
from everybyte.draw import clock

#: Pixels that the narrowest chart has for the axis: a phone's.
NARROW = 268


def steps():
    """Steps whose peak lasts an operation of hundreds, in the loss, in the optimizer's step and in backward."""
    xl, gpt2 = eb.model("gpt2-xl"), eb.model("gpt2")
    yield eb.budget(xl, eb.Setup(batch=8, precision="bf16-mixed"))
    yield eb.budget(gpt2, eb.Setup(batch=1, sequence=128, accumulation=3))
    yield eb.budget(gpt2, eb.Setup(batch=8, attention="eager", checkpointing="full"))
    yield eb.dry_run(gpt2.replace(layers=2), eb.Setup(batch=2, sequence=64))


@pytest.mark.parametrize("step", list(steps()), ids=range(4))
def test_every_operation_has_its_place_and_the_peak_four_pixels(step):
    phases = clock.phases(step)
    ends = clock.edges(phases, step.peak_operation)
    assert len(ends) == len(step.live) + 1 and ends[0] == 0 and ends[-1] == 1 and ends == sorted(set(ends))
    assert [end for *_, end in phases[:-1]] == [first for _, first, _ in phases[1:]]
    assert {name for name, *_ in phases} <= {"forward", "loss", "backward", "step"}
    assert NARROW * (ends[step.peak_operation + 1] - ends[step.peak_operation]) >= 4
    shares = [ends[end] - ends[first] for _, first, end in phases]
    assert min(shares) > 0.7 * min(clock.PHASE, clock.ALL / len(phases)), shares


def test_phases_are_the_step_s_own():
    step = eb.budget(eb.model("gpt2"), eb.Setup())
    assert [name for name, *_ in clock.phases(step)] == ["forward", "loss", "backward", "step"]
    twice = eb.budget(eb.model("gpt2"), eb.Setup(accumulation=2))
    assert [name for name, *_ in clock.phases(twice)] == [*2 * ["forward", "loss", "backward"], "step"]
    marks = {"rest": 0, "after_forward": 4, "after_backward": 9, "after_step": 10}
    named = clock.phases(SimpleNamespace(live=list(range(12)), marks=marks))
    assert named == [("forward", 0, 4), ("backward", 4, 9), ("step", 9, 12)]


def test_the_loss_is_seen_in_the_picture():
    """Of the columns of pixels of GPT-2 XL's step, at least four reach the peak."""
    step = eb.budget(eb.model("gpt2-xl"), eb.Setup(batch=8, precision="bf16-mixed"))
    fig = draw.timeline(step, "GPT-2 XL")
    fig.canvas.draw()
    [ax] = fig.axes
    reached = [path for area in ax.collections for path in area.get_paths()]
    top = max(y for path in reached for _, y in path.vertices)
    tall = sorted({ax.transData.transform((x, 0))[0] for path in reached for x, y in path.vertices if y > 0.999 * top})
    assert tall[-1] - tall[0] >= 4


EDGES = """
import { pure } from "./picture.mjs";
export default ({ spec, state }) => {
  const r = pure.KINDS.timeline.compute(spec, state);
  const { hit, moved, turned, tip } = pure.KINDS.timeline;
  const middles = r.edges.slice(1).map((end, i) => 80 + ((r.edges[i] + end) / 2) * (760 - 92));
  const there = middles.map((x) => hit(r, 760, x));
  const back = there.map((at) => pure.KINDS.timeline.compute(spec, { ...state, ...moved(spec, r, at) }).at);
  return { edges: r.edges, phases: r.phases, there, back, keys: ["ArrowRight", "Home", "End", "x"].map((key) => turned(r, key)), tip: tip(spec, r, 760, r.top).lines };
};
"""


def test_the_browser_s_axis_is_the_figure_s_and_a_hand_reaches_every_operation(node):
    explorer = explore.step(setup=eb.Setup())
    step = eb.budget(eb.model("gpt2"), eb.Setup())
    found = node(EDGES, {"spec": explorer.picture.spec, "state": explorer.state}, picture=explorer.source)
    phases = clock.phases(step)
    assert found["edges"] == clock.edges(phases, step.peak_operation)
    assert list(map(tuple, found["phases"])) == phases
    every = list(range(len(step.live)))
    assert found["there"] == every and found["back"] == every
    assert found["keys"] == [step.peak_operation + 1, 0, every[-1], None]
    assert found["tip"][0].startswith(f"Operation {step.peak_operation + 1} of 350, loss backward, ")
    assert "10.54 GiB" in found["tip"] and len(list(pairwise(found["tip"]))) >= 3
