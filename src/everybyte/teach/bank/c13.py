"""Exercises of chapter 13: which bytes make "16 bytes per parameter"?"""

from functools import partial
from itertools import product
from math import prod

from ...ask.setup import DTYPE_BYTES, Setup
from ...catalog.weights import weights
from ...formulas import formula
from ...formulas.symbols import g_m, m_w
from ...theory.budget import budget
from ..asking import at
from ..program import Case, small_gpts, small_llamas
from . import answers, program


def _each(gradients, optimizer="momentum"):
    setup = Setup(precision="bf16-master", master_gradients=gradients, optimizer=optimizer)
    return formula("bytes_per_parameter").at(None, setup)


def _states(**setup):
    return at("optimizer.states", "gpt2-xl", **setup)


def _of_7b(precision, optimizer="adamw"):
    return 7 * 10**9 * formula("bytes_per_parameter").at(None, Setup(precision=precision, optimizer=optimizer))


def _at_rest(states):
    return formula("bytes_per_parameter").given(states=states, gradient_bytes=0)


def _gradients(name="gpt2-xl", precision="bf16-mixed"):
    return at("gradients", name, precision=precision)


def _shapes(m):
    """Of all weights, in the model's order."""
    groups = [("embeddings",), *[("block", "dense")] * m.layers, ("last",)]
    return [tuple(t.shape) for group in groups for t in weights(m) if t.group in group for _ in range(t.count)]


def _worst_moments():
    """Of small models in fp32, less the batch and the loss."""
    models = small_gpts(13, 4) + small_llamas(13, 4)
    for m, kind in product(models, ("fused", "foreach", "loop")):
        step = budget(m, Setup(batch=1, sequence=8, precision="fp32", optimizer_impl=kind)).phases["step"]
        yield Case(f"{m.name}, {kind}", (_shapes(m), kind), step - 2 * 8 * 8 - 4)


def _worst(shapes, implementation, *, foreach=1, loop=2, before=1, fused=1, states=2):
    """The answer, or what it would be with so many temporaries: `before`, of the tensor before the one that the loop is at."""
    sizes = [prod(shape) for shape in shapes]
    turns = [before * previous + loop * size for previous, size in zip([0, *sizes], sizes, strict=False)]
    extra = {"foreach": foreach * sum(sizes), "loop": max(turns), "fused": fused * len(sizes)}
    return 4 * ((2 + states) * sum(sizes) + extra[implementation])


ANSWERS = {
    "13.1": answers(
        lambda: _each("fp32"),
        adamw=lambda: _each("fp32", "adamw"),
        fp32_missing=lambda: _each("fp32") - DTYPE_BYTES["fp32"],
        bf16_missing=lambda: _each("bf16"),
        both=lambda: _each("both"),
    ),
    "13.2": answers(
        _states,
        one_state=lambda: _states(optimizer="momentum"),
        weights=lambda: _states() + at("weights", "gpt2-xl"),
        large=lambda: at("optimizer.states", "gpt2-large"),
    ),
    "13.3": answers(
        lambda: _of_7b("bf16-master", "sgd") - _of_7b("bf16", "sgd"),
        half_copy=7 * 10**9 * DTYPE_BYTES["bf16"],
        whole=lambda: _of_7b("bf16-master"),
        published=lambda: _of_7b("bf16-master") - 7 * 10**9 * DTYPE_BYTES["fp32"],
        states=7 * 10**9 * 2 * DTYPE_BYTES["fp32"],
    ),
    "13.4": answers(
        lambda: _at_rest(4),
        gradients=lambda: formula("bytes_per_parameter").given(states=4),
        two=lambda: _at_rest(2),
        three=lambda: _at_rest(3),
        master=lambda: _at_rest(4).subs(m_w, 0),
        buffer=lambda: _at_rest(4).subs(g_m, 0),
    ),
    "13.5": answers(
        _gradients,
        bf16=lambda: _gradients(precision="bf16"),
        states=_states,
        large=lambda: _gradients("gpt2-large"),
        small=lambda: _gradients("gpt2"),
    ),
    "13.6": program(
        _worst, _worst_moments, after=partial(_worst, foreach=0, loop=0, before=0), loop=1, before=0, fused=0, states=1
    ),
}
