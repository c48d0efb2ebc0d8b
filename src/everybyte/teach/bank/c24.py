"""Exercises of chapter 24: how few bytes can an optimizer live on?"""

from math import ceil, prod

from ...ask.setup import Setup
from ...catalog import model
from ...catalog.weights import layers, weights
from ...formulas import formula
from ...formulas.optimizers import BLOCK, QUANTIZED, blocks
from ...theory.optimizers import factors
from ..asking import step
from ..program import Case, named_shapes, small_gpts, small_llamas
from . import answers, program

MATRIX = (4096, 14_336)
NUMBERS = MATRIX[0] * MATRIX[1]


def _eight_bit(numbers):
    return int(2 * blocks(numbers)[0])


def _vectors():
    """Numbers in GPT-2's gains and biases."""
    gpt2 = model("gpt2")
    times = layers(gpt2)
    return sum(w.count * times[w.group] * w.numbers for w in weights(gpt2) if len(w.shape) == 1)


def _step(name="gpt2-xl", optimizer="lion", **changes):
    phases = step(name, optimizer=optimizer, **changes).phases
    return phases["step"] - phases["after_step"]


def _states():
    run = Setup(optimizer="adamw8bit")
    for m in [*small_gpts(24, 4), *small_llamas(24, 4)]:
        yield Case(m.name, ([shape for _, shape in named_shapes(m)],), int(formula("states.adamw8bit").at(m, run)))


def _of(shapes, *, scale=4, small=QUANTIZED, tables=2 * 256 * 4, states=2):
    """The answer, or what it would be with a scale of so many bytes, and with tensors of fewer than `small` numbers in fp32."""
    sizes = [prod(shape) for shape in shapes]
    return tables + sum(states * (4 * n if n < small else n + scale * ceil(n / BLOCK)) for n in sizes)


ANSWERS = {
    "24.1": answers(
        lambda: 4 * int(sum(factors(MATRIX))), numbers=sum(MATRIX), entries=4 * NUMBERS, two_states=8 * sum(MATRIX)
    ),
    "24.2": answers(
        lambda: _eight_bit(NUMBERS), scales=2 * NUMBERS, one_state=lambda: _eight_bit(NUMBERS) // 2, fp32=8 * NUMBERS
    ),
    "24.3": answers(
        lambda: 8 * _vectors(),
        quantized=lambda: 2 * _vectors(),
        one_state=lambda: 4 * _vectors(),
        one_layer=lambda: 8 * (_vectors() - 2 * 768) // 12,
    ),
    "24.4": answers(
        _step, one_copy=lambda: _step() // 2, adamw=lambda: _step(optimizer="adamw"), small=lambda: _step("gpt2")
    ),
    "24.5": program(_of, _states, scale=0, small=0, tables=0, states=1),
}
