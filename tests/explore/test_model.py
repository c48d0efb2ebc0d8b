"""The explorer of a derived formula: parts, owners and timeline are the derivation's, in Python and in the browser."""

from functools import cache

import pytest

import everybyte as eb
from everybyte import draw, explore

SAY = """
import { pure } from "./picture.mjs";
export default ({ spec, states }) => states.map((state) => pure.describe(spec, state));
"""
SMALL = eb.Model(name="small", layers=5, width=32, heads=4, vocabulary=331, positions=256)
VIEWS = ("parts", "owners", "timeline")


@cache
def derived():
    """Of eager attention with dropout: cases of their own, several instants that can be the peak, tensors that are padded."""
    return eb.derive(SMALL, eb.Setup(precision="bf16-mixed", attention="eager", dropout=0.1), keep=False)


@pytest.fixture(params=VIEWS)
def explorer(request):
    return explore.model(derived(), view=request.param)


def states(explorer):
    """The opening, and both ends of each slider."""
    found = [explorer.state]
    for name, control in explorer._controls.items():
        if name in ("batch", "sequence"):
            found += [explorer.state | {name: i} for i in (0, len(control.options) - 1)]
    looks = [{"look": 1}, {"look": 2}, {"look": 0, "place": 0}, {"look": 0, "place": 611}]
    return [s | look for s in found for look in looks] if "look" in explorer.state else found


def test_it_is_the_derivation(explorer):
    for state in states(explorer):
        values = explorer.values(state)
        point = derived().at(values["batch"], values["sequence"])
        found = explorer.kind.compute(values)
        if explorer.kind.kind == "timeline":
            assert found.timeline() == point.timeline() and found.peak_at == point.peak_at
            continue
        parts = dict.fromkeys(point.parts, 0)
        for part, _, size in found:
            parts[part] += size
        assert parts == point.parts


def test_the_browser_says_the_same(explorer, node):
    wanted = states(explorer)
    said = node(SAY, {"spec": explorer.picture.spec, "states": wanted}, picture=explorer.source)
    assert said == [explorer.describe(state) for state in wanted]
    assert said[0].startswith("batch 8, sequence 256: ")


def test_it_is_drawn(explorer):
    fig = explorer.figure()
    fig.draw_without_rendering()
    assert draw.checked_alt(fig.alt) and explorer.table().rows
    assert "blocks.*" in explorer.describe() or explorer.kind.kind == "stack"


def test_a_points_own_figure_is_its_timeline():
    fig = derived().at(2, 100).figure()
    assert "derived" in fig.alt and f"in {derived().at(2, 100).peak_at}" in fig.alt


def test_bad_input_is_refused_by_name():
    for wrong, said in (
        (lambda: explore.model(SMALL), "explore.model: a Model; allowed: what everybyte.derive returns"),
        (lambda: explore.model(derived(), view="mpa"), "explore.model.view: 'mpa' is unknown"),
        (lambda: derived().explore(eb.Gpu(memory="24 GiB")), "explore.model.gpu: 'GPU of 24.00 GiB' is unknown"),
    ):
        with pytest.raises(ValueError, match=said):
            wrong()
