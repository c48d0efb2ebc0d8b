"""Chapter 35's explorer says what the formulas say, of the router that is chosen."""

import pytest

import everybyte as eb
from everybyte import explore, units

QWEN = eb.model("mixtral-8x7b", code="reference").replace(
    layers=1, width=4096, heads=32, experts=128, experts_per_token=8, expert_width=1536
)


@pytest.mark.parametrize("router, exponent", [("balanced", 0.0), ("skewed, x = 0.5", 0.5)])
@pytest.mark.parametrize("dealt", [False, True])
def test_it_says_what_the_fullest_gpu_takes(router, exponent, dealt):
    said = explore.experts().at(size="Qwen3-235B-A22B")
    chosen = {"router": router, "dealt": "dealt out" if dealt else "side by side", "expert": "16 GPUs"}
    text = said.describe(said.state | said._preset(chosen))
    drawn = eb.Router.zipf(128, 8, exponent)
    most = max((drawn.spread(16) if dealt else drawn).routing(16))
    setup = eb.Setup(batch=1, sequence=4096, precision="bf16", gpus=16, mesh=eb.Mesh(expert=16, routing=round(most, 6)))
    for name in ("weights", "kept", "buffers"):
        assert units.text(int(eb.formula(f"experts.{name}").at(QWEN, setup))) in text
