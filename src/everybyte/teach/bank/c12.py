"""Exercises of chapter 12: which bytes make "16 bytes per parameter"?"""

from itertools import product
from math import prod

from ...formulas.symbols import g_m, m_w
from . import Case, Run, Setup, answers, formula, named_shapes, program, run, small_models

MASTER = Run(None, Setup(precision="bf16-master", optimizer="momentum"))
BILLIONS = 7 * 10**9


def each(gradients="fp32", optimizer="momentum"):
    return MASTER.at("bytes_per_parameter", master_gradients=gradients, optimizer=optimizer)


def states(name="gpt2-xl", optimizer="adamw"):
    return run(name, optimizer=optimizer).at("optimizer.states")


def of_7b(precision="bf16-master", optimizer="adamw"):
    return BILLIONS * MASTER.at("bytes_per_parameter", precision=precision, optimizer=optimizer)


def at_rest(states=4, released=True, without=()):
    each = formula("bytes_per_parameter").given(states=states, **{"gradient_bytes": 0} if released else {})
    return each.subs(dict.fromkeys(without, 0))


def gradients(name="gpt2-xl", precision="bf16-mixed"):
    return run(name, precision=precision).at("gradients")


def moments():
    """Bytes of the optimizer's step of small models in fp32, without the batch and the loss."""
    for m, kind in product(small_models(13, 4), ("fused", "foreach", "loop")):
        step = Run(m, Setup(batch=1, sequence=8, precision="fp32", optimizer_impl=kind)).phase("step")
        shapes = [shape for _, shape in named_shapes(m)]
        yield Case(f"{m.name}, {kind}", (shapes, kind), step - 2 * 8 * 8 - 4)


def worst(shapes, implementation, *, foreach=1, loop=2, before=1, fused=1, states=2):
    sizes = [prod(shape) for shape in shapes]
    turns = [before * previous + loop * size for previous, size in zip([0, *sizes], sizes, strict=False)]
    extra = {"foreach": foreach * sum(sizes), "loop": max(turns), "fused": fused * len(sizes)}
    return 4 * ((2 + states) * sum(sizes) + extra[implementation])


ANSWERS = {
    "12.1": answers(each, optimizer="adamw", fp32_missing=each() - 4, gradients="bf16", both=each("both")),
    "12.2": answers(states, optimizer="momentum", weights=states() + run("gpt2-xl").at("weights"), name="gpt2-large"),
    "12.3": answers(
        of_7b(optimizer="sgd") - of_7b("bf16", "sgd"),
        half_copy=2 * BILLIONS,
        whole=of_7b(),
        published=of_7b() - 4 * BILLIONS,
        states=8 * BILLIONS,
    ),
    "12.4": answers(
        at_rest, released=False, two=at_rest(2), three=at_rest(3), master={"without": [m_w]}, buffer={"without": [g_m]}
    ),
    "12.5": answers(gradients, precision="bf16", states=states(), large=gradients("gpt2-large"), name="gpt2"),
    "12.6": program(worst, moments, after={"foreach": 0, "loop": 0, "before": 0}, loop=1, before=0, fused=0, states=1),
}
