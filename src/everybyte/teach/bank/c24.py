"""Exercises of chapter 24: how few bytes can an optimizer live on?"""

from math import ceil, prod

from ...catalog.weights import summed
from ...formulas.optimizers import BLOCK, QUANTIZED, blocks
from ...theory.optimizers import factors
from . import Case, Run, Setup, answers, model, named_shapes, program, run, small_models

MATRIX = (4096, 14_336)
NUMBERS = MATRIX[0] * MATRIX[1]
EIGHT_BIT = int(2 * blocks(NUMBERS)[0])


def in_step(name="gpt2-xl", optimizer="lion"):
    return run(name, optimizer=optimizer).in_step()


def vectors():
    """Numbers in GPT-2's gains and biases."""
    return summed(model("gpt2"), lambda w: w.numbers * (len(w.shape) == 1))


def states():
    for m in small_models(24, 4):
        right = int(Run(m, Setup(optimizer="adamw8bit")).at("states.adamw8bit"))
        yield Case(m.name, ([shape for _, shape in named_shapes(m)],), right)


def of(shapes, *, scale=4, small=QUANTIZED, tables=2 * 256 * 4, states=2):
    sizes = [prod(shape) for shape in shapes]
    return tables + sum(states * (4 * n if n < small else n + scale * ceil(n / BLOCK)) for n in sizes)


ANSWERS = {
    "24.1": answers(
        4 * int(sum(factors(MATRIX))), numbers=sum(MATRIX), entries=4 * NUMBERS, two_states=8 * sum(MATRIX)
    ),
    "24.2": answers(EIGHT_BIT, scales=2 * NUMBERS, one_state=EIGHT_BIT // 2, fp32=8 * NUMBERS),
    "24.3": answers(
        8 * vectors(), quantized=2 * vectors(), one_state=4 * vectors(), one_layer=8 * (vectors() - 2 * 768) // 12
    ),
    "24.4": answers(in_step(), one_copy=in_step() // 2, adamw=in_step(optimizer="adamw"), small=in_step("gpt2")),
    "24.5": program(of, states, scale=0, small=0, tables=0, states=1),
}
