"""What chapter 20's explorer says a format does to a number is what numpy's hardware formats do."""

import math

import numpy
import pytest

from everybyte import explore
from everybyte.explore.pictures import rounded
from everybyte.formulas import formula

BITS = {numpy.float16: (5, 10), numpy.float32: (8, 23)}


@pytest.mark.parametrize("kind", BITS)
def test_rounding_is_numpy_s(kind):
    info = numpy.finfo(kind)
    smallest, largest, epsilon = float(info.smallest_subnormal), float(info.max), float(info.eps)
    spacing = formula("formats.spacing")
    e, m = BITS[kind]
    chance = numpy.random.default_rng(0)
    low, high = math.log2(smallest) - 3, math.log2(largest) + 1
    halfway = [smallest * k / 2 for k in range(1, 20)] + [largest * (1 + k * epsilon / 8) for k in range(8)]
    for x in [*(2.0 ** chance.uniform(low, high, 2000)), *halfway]:
        with numpy.errstate(over="ignore"):
            step = spacing(exponent_bits=e, mantissa_bits=m, magnitude=math.frexp(x)[1] - 1)
            assert rounded(float(x), float(step), largest) == float(kind(x)), x


def test_the_bounds_are_numpy_s():
    explorer = explore.formats()
    rows = explorer.kind.compute(explorer.values())
    for name, kind in {"fp16": numpy.float16, "fp32": numpy.float32}.items():
        info = numpy.finfo(kind)
        expected = {
            "smallest": info.smallest_subnormal,
            "normal": info.smallest_normal,
            "largest": info.max,
            "epsilon": info.eps,
        }
        assert rows[name].items() >= {n: float(x) for n, x in expected.items()}.items()
    assert rows["fp8 e5m2"].items() >= {"smallest": 2**-16, "normal": 2**-14, "largest": 57344, "epsilon": 0.25}.items()
    assert rows["fp8 e4m3"].items() >= {"smallest": 2**-9, "normal": 2**-6, "largest": 448, "epsilon": 0.125}.items()


def test_the_table_is_in_its_columns():
    table = explore.formats().table()
    row = dict(zip(table.columns, next(r for r in table.rows if r[0] == "fp16"), strict=True))
    assert (row["smallest"], row["smallest normal"], row["step above 1"], row["largest"]) == (
        "2^-24",
        "2^-14",
        "2^-10",
        "65,504",
    )


@pytest.mark.parametrize(
    ("exponent", "said"),
    [(-26.0, "underflows: it becomes 0"), (-24.0, "is kept exactly"), (-20.25, "is rounded to 1.625 × 2^-21, 3.38 % off"),
     (16.0, "overflows: it is above the largest")],
)  # fmt: skip
def test_what_becomes_of_a_gradient(exponent, said):
    explorer = explore.formats()
    assert said in explorer.describe({**explorer.state, "magnitude": exponent})


@pytest.mark.parametrize(
    ("gradient", "scale", "said"),
    [(-26.0, 0, "underflows"), (-26.0, 16, "of 2^-10 is kept exactly"), (-1.0, 16, "is kept exactly"), (0.0, 16, "overflows")],
)  # fmt: skip
def test_a_loss_scale_moves_the_gradient(gradient, scale, said):
    explorer = explore.formats()
    assert said in explorer.describe({**explorer.state, "magnitude": gradient, "scale": scale})


def test_the_browser_writes_a_largest_number_as_python_does(node):
    """With six exponent bits it is 8.59e+09."""
    explorer = explore.formats()
    states = [{**explorer.state, "exponent_bits": bits} for bits in range(2, 9)]
    script = "import { pure } from './picture.mjs'; export default ({ spec, states }) => states.map((state) => pure.describe(spec, state));"
    said = node(script, {"spec": explorer.picture.spec, "states": states}, picture=explorer.source)
    assert said == [explorer.describe(state) for state in states] and "e+09" in said[4]
