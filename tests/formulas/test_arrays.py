"""Formulas over arrays: what a formula says of each number, exactly, whatever its size; or a refusal."""

import numpy
import pytest

import everybyte as eb
from everybyte.formulas import registry
from everybyte.formulas.registry import bindings

#: Sizes that a setup takes: 22,136,092,888,451,461,939,200 FLOPs in one block, which 64 bits do not hold.
LARGE = eb.Model(
    name="large", layers=96, width=12288, heads=96, vocabulary=50257, positions=2**17, learned_positions=2**17
)
SETUP = eb.Setup(batch=2**24, sequence=2**17, attention="eager")


def _values(formula, setup):
    return {e.name: 3 for e in formula.symbols} | bindings(LARGE, setup, formula.symbols)


#: Of each kind of formula one that is quickly made: products, sums of them, quotients rounded up, conditions, powers.
NAMES = (
    "flops.block", "flops.again.attention", "attention.scores", "checkpoint.inputs", "batch.tokens", "optimizer.counters",
    "parameters", "zero.states", "formats.blocks.bytes", "formats.integer.largest", "states.adamw8bit", "fsdp.block.share",
    "workspace.embedding_sort",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_an_array_holds_what_each_number_gives(name):
    formula = registry()[name]
    points = [_values(formula, setup) for setup in (SETUP, eb.Setup(batch=2, sequence=128), SETUP.replace(batch=3))]
    found = formula.arrays(**{name: numpy.array([point[name] for point in points]) for name in points[0]})
    for value, point in zip(numpy.broadcast_to(found, len(points)), points, strict=True):
        wanted = formula(**point)
        assert value == (wanted if isinstance(wanted, int) else pytest.approx(wanted, rel=1e-15))


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "uint8", "uint64"])
def test_an_array_s_own_width_cuts_nothing_off(kind):
    formula = eb.formula("attention.scores")
    small = {e.name: 3 for e in formula.symbols} | {"batch": 100, "sequence": 100, "heads": 100}
    assert formula.arrays(**{name: numpy.array([v], kind) for name, v in small.items()}) == [formula(**small)]
    assert formula(**{name: numpy.array(v, kind)[()] for name, v in small.items()}) == formula(**small)


def test_a_quotient_of_large_numbers_is_right():
    """Its denominator, v n_a, passes 64 bits."""
    formula = eb.formula("pipeline.bubble")
    values = {"pipeline": 2**40, "divided": 0, "pipeline_stages": 2**40, "accumulation": 2**40}
    (found,) = formula.arrays(**{name: [value] for name, value in values.items()})
    assert found == formula(**values) == pytest.approx(2**-40)


def test_one_number_is_wanted_or_several():
    formula, values = eb.formula("flops.block"), _values(eb.formula("flops.block"), SETUP)
    with pytest.raises(ValueError, match=r"flops\.block: batch is an array; allowed: one number; formula\.arrays"):
        formula(**values | {"batch": numpy.array([1, 2])})
    with pytest.raises(ValueError, match=r"flops\.block: batch is '8'; allowed: a number"):
        formula(**values | {"batch": "8"})
    with pytest.raises(ValueError, match=r"flops\.block\.batch: an array of <U1; allowed: whole numbers"):
        formula.arrays(**values | {"batch": "8"})
