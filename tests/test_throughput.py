"""The data sheet's time beside published runs, and what is said of layouts whose times are ranges."""

from dataclasses import replace

import everybyte as eb
from everybyte.answers.layouts import Layout, Layouts, priced, tokens_of
from everybyte.answers.throughput import FOUNDRY, GPU, LEAST, MEGATRON, MOST, MOST_LONG, SHORT, TITAN, between, runs


def test_the_factors_are_those_of_the_published_runs():
    """Each run takes longer than the data sheet says, by less than what is said; and the factors are no wider than they must be."""
    off = {True: [], False: []}
    for run in runs():
        seconds = sum(priced(run.model, run.setup, eb.gpu(GPU)).values())
        off[run.setup.sequence <= SHORT].append(tokens_of(run.setup) / run.setup.gpus / run.tokens / seconds)
    assert LEAST <= min(map(min, off.values())) < LEAST + 0.1
    assert MOST - 0.1 < max(off[True]) <= MOST and MOST_LONG - 0.1 < max(off[False]) <= MOST_LONG
    assert {run.source for run in runs()} == {TITAN, FOUNDRY, MEGATRON} and len(runs()) == 20


def test_published_sizes_are_the_models():
    """The parameters that MosaicML's table states, its learned positions among them."""
    stated = {
        ("mpt, 80 x 8192", 2048): 64_862_437_376,
        ("mpt, 40 x 5120", 4096): 12_864_440_320,
        ("mpt, 32 x 2560", 8192): 2_667_566_080,
    }
    found = {(run.model.name, run.setup.sequence): run.model.parameters for run in runs()}
    assert {key: found[key] for key in stated} == stated


def test_the_fastest_is_said_of_ranges_that_do_not_overlap():
    model, setup, gpu = (
        eb.model("llama-3.2-1b", code="reference"),
        eb.Setup(sequence=2048, precision="bf16-mixed"),
        eb.gpu(GPU),
    )
    one = Layout(model, setup, gpu, 0, {"arithmetic": 1.0, "memory": 0.0})
    found = Layouts(
        model,
        setup,
        gpu,
        0,
        [one, replace(one, terms={"arithmetic": 2.0}), replace(one, terms={"arithmetic": 2.1})],
        3,
        [],
        [],
        {},
    )
    assert one.range == between(setup) == (LEAST, MOST) and between(setup.replace(sequence=2 * SHORT)) == (
        LEAST,
        MOST_LONG,
    )
    assert found.rivals == found.found[1:2] and "which of the first 2 is the fastest" in found._fastest()
    alone = replace(found, found=[found.found[0], found.found[2]])
    assert not alone.rivals and alone._fastest() == "the first is the fastest of those found"
    assert one.row()[-3] == "1.2–2.5 s" and one.as_dict()["range"] == [1.2, 2.5]
