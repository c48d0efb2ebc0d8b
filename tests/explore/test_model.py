"""The explorer of a derived formula: the parts of its peak are the derivation's, in Python and in the browser."""

from functools import cache

import pytest
import torch
from torch import nn

import everybyte as eb
from everybyte import draw, explore

SAY = """
import { pure } from "./picture.mjs";
export default ({ spec, states }) => states.map((state) => pure.describe(spec, state));
"""
SMALL = eb.Model(name="small", layers=5, width=32, heads=4, vocabulary=331, positions=256)
IMAGES = {"pixel_values": (("B", 3, "R", "R"), torch.float32)}


@cache
def derived():
    """Of eager attention with dropout: cases of their own, several instants that can be the peak, tensors that are padded."""
    return eb.derive(SMALL, eb.Setup(precision="bf16-mixed", attention="eager", dropout=0.1), keep=False)


class Eye(nn.Module):
    """Patches of an image of any size."""

    def __init__(self):
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, 8, 16, stride=16), nn.Linear(8, 10)

    def forward(self, pixel_values):
        return self.head(self.patches(pixel_values).flatten(2).transpose(1, 2)).square().mean()


@cache
def of_images():
    """In a letter of its own, which comes in a quotient."""
    return eb.derive(Eye, eb.Setup(), IMAGES)


@pytest.fixture(params=[derived, of_images])
def opened(request):
    """(the derivation, its explorer)"""
    return request.param(), explore.model(request.param())


@pytest.fixture
def explorer(opened):
    return opened[1]


def states(explorer):
    """The opening, both ends of each slider, and a size that is no multiple."""
    found = [explorer.state]
    for name, control in explorer._controls.items():
        if name in ("batch", "sequence", "R"):
            sizes = list(control.options)
            found += [
                explorer.state | {name: i} for i in {0, len(sizes) - 1, sizes.index("28") if "28" in sizes else 1}
            ]
    return found


def test_it_is_the_derivation(opened):
    derivation, explorer = opened
    for state in states(explorer):
        values = explorer.values(state)
        point = derivation.at(values["batch"], values["sequence"], **{x: values[x] for x in derivation.further})
        found = explorer.kind.compute(values)
        parts = dict.fromkeys(point.parts, 0)
        for part, _, size in found:
            parts[part] += size
        assert parts == point.parts


def test_the_browser_says_the_same(explorer, node):
    wanted = states(explorer)
    said = node(SAY, {"spec": explorer.picture.spec, "states": wanted}, picture=explorer.source)
    assert said == [explorer.describe(state) for state in wanted]
    assert said[0].startswith(("batch 8, sequence 256: ", "batch 8, R 224: "))


def test_it_is_drawn(explorer):
    fig = explorer.figure()
    fig.draw_without_rendering()
    assert draw.checked_alt(fig.alt) and explorer.table().rows


def test_a_points_own_figure_is_its_timeline():
    fig = derived().at(2, 100).figure()
    assert "derived" in fig.alt and f"in {derived().at(2, 100).peak_at}" in fig.alt


def test_bad_input_is_refused_by_name():
    for wrong, said in (
        (lambda: explore.model(SMALL), "explore.model: a Model; allowed: what everybyte.derive returns"),
        (
            lambda: eb.explore.model(derived(), eb.Gpu(memory="24 GiB")),
            "explore.model.gpu: 'GPU of 24.00 GiB' is unknown",
        ),
    ):
        with pytest.raises(ValueError, match=said):
            wrong()
