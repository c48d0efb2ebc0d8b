"""Chapter 31's explorer: the registered formulas' numbers, for every stage and number of GPUs."""

import pytest

import everybyte as eb
from everybyte import explore, units
from everybyte.ask.choices import SHARDINGS
from everybyte.formulas import formula

SAY = """
import { pure } from "./picture.mjs";
export default ({ spec, states }) => states.map((state) => pure.describe(spec, state));
"""


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "bf16-master", "bf16"])
def test_it_says_what_the_formulas_say(precision, node):
    model = eb.model("llama-2-7b", code="reference")
    setups = [eb.Setup(sharding=s, gpus=n, precision=precision) for s in SHARDINGS for n in (1, 8, 4096)]
    explorers = [explore.zero(model, setup) for setup in setups]
    states = []
    for setup, explorer in zip(setups, explorers, strict=True):
        explorer = explore.zero(model, setup)  # what is shared follows the last
        states.append(explorer.state)
        said = explorer.describe()
        sent = formula("zero.sent").at(model, setup)
        assert f"bytes sent in a step {sent:,}" in said
        assert f"{units.text(formula('zero.states').at(model, setup))} in all" in said
    data = {"spec": explorer.picture.spec, "states": states}
    assert node(SAY, data, picture=explorer.source) == [explorer.describe(state) for state in states]


def test_each_bar_is_a_stage():
    explorer = explore.zero(eb.model("gpt2"), eb.Setup(gpus=64, precision="bf16-master"))
    alt = explorer.figure().alt
    assert all(f"{stage} " in alt for stage in ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"))
    explorer._inputs["stage"].index = 3
    assert "ZeRO-3, 64 GPUs" in explorer.describe()


@pytest.mark.parametrize("gpus", [3, 8192])
def test_other_numbers_of_gpus_are_refused(gpus):
    with pytest.raises(ValueError, match=f"Setup.gpus: {gpus}"):
        explore.zero(setup=eb.Setup(gpus=gpus))
