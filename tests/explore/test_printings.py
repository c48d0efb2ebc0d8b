"""Python, numpy and JavaScript print one number: every registered formula, at many points."""

import math
import random

import numpy
import pytest

from everybyte.formulas import SYMBOLS, registry
from everybyte.formulas.registry import bindings

MOST = {
    "parameters": 10**12,
    "vocabulary": 300_000,
    "width": 20_000,
    "ffn_width": 70_000,
    "positions": 2**17,
    # With these the squares of attention, all layers', stay under 2**53 bytes, where JavaScript's whole numbers end.
    "sequence": 2**14,
    "batch": 48,
    "heads": 96,
}
MOST |= {
    "embedding_width": 20_000,
    "expert_width": 20_000,
    "layers": 200,
    "rounding": 512,
    "states": 4,
    "shared_experts": 8,
    "experts": 16,
    "accumulation": 16,
}
MOST |= {"exponent_bits": 8, "mantissa_bits": 23, "quantized_bits": 32, "magnitude": 40}
#: FLOPs are products of more: smaller models and batches keep them under 2**53.
MOST_OF_FLOPS = {"vocabulary": 60_000, "width": 4096, "ffn_width": 16_384, "sequence": 4096, "batch": 4, "layers": 48}
MOST_OF_FLOPS |= {
    "accumulation": 2,
    "loss_chunks": 8,
    "segment": 48,
    "parameters": 10**10,
    "heads": 64,
    "kv_heads": 64,
    "head_width": 64,
}
FORMULAS = registry() | {
    f"{name}, rounded up": f.rounded_up() for name, f in registry().items() if f.rounded is not None
}


def span(symbol, flops=False):
    """The least and the most value that a point gives the symbol."""
    most = MOST | (MOST_OF_FLOPS if flops else {})
    least = {"exponent_bits": 2, "magnitude": -150}
    low = least.get(symbol.name, int(bool(symbol.symbol.is_positive)))
    if symbol.unit == "0 or 1":
        return 0, 1
    return low, 8 if symbol.name.endswith("_bytes") else most.get(symbol.name, 256)


def points(formula):
    """Both ends of every symbol together, each end alone, and many between; the catalog's models and setups."""
    spans = {s.name: span(s, "flops" in formula.name) for s in formula.symbols}
    chance = random.Random(formula.name)
    between = [{n: chance.randint(*ends) for n, ends in spans.items()} for _ in range(150)]
    alone = [{**between[0], n: end} for n, ends in spans.items() for end in ends]
    return [{n: ends[i] for n, ends in spans.items()} for i in (0, 1)] + alone + between


def same(a, b):
    return a == float(b) or (isinstance(a, float) and math.isclose(a, b, rel_tol=1e-12))


def test_every_symbol_has_two_ends():
    assert all(low < high for low, high in map(span, SYMBOLS.values()))


def test_javascript_is_python(node):
    data = {name: points(f) for name, f in FORMULAS.items()}
    script = "const F = {\n" + "".join(f"{name!r}: {f.javascript},\n" for name, f in FORMULAS.items()) + "};\n"
    script += "export default (data) => Object.fromEntries(Object.entries(data).map(([n, ps]) => [n, ps.map((p) => F[n](p))]));"
    results = node(script, data)
    for name, f in FORMULAS.items():
        for point, result in zip(data[name], results[name], strict=True):
            expected = f(**point)
            assert float(expected) == expected, (name, point, "the test's range is too wide: no double holds this")
            assert same(expected, result), (name, point, expected, result)


@pytest.mark.sampled(40)
@pytest.mark.parametrize("name", FORMULAS)
def test_arrays_are_python(name):
    f = FORMULAS[name]
    some = points(f)
    arrays = {s.name: numpy.array([p[s.name] for p in some], dtype=numpy.int64) for s in f.symbols}
    results = numpy.broadcast_to(f.arrays(**arrays), len(some))
    for point, result in zip(some, results, strict=True):
        assert same(f(**point), numpy.asarray(result).item()), (name, point)  # past 64 bits they are Python's


def test_models_and_setups_give_the_same_in_the_browser(node):
    from everybyte.ask.choices import PRECISIONS
    from everybyte.ask.setup import Setup
    from everybyte.catalog import models

    values = [bindings(m, Setup(precision=p)) for m in models("reference").values() for p in PRECISIONS]
    states = ("weights", "gradients", "optimizer", "phase.rest", "parameters")
    script = "const F = {\n" + "".join(f"{n!r}: {FORMULAS[n].javascript},\n" for n in states) + "};\n"
    script += "export default (all) => all.map((v) => Object.values(F).map((f) => f(v)));"
    assert node(script, values) == [[FORMULAS[n](**v) for n in states] for v in values]
