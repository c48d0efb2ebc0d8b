"""States of optimizers that keep less than AdamW: one (Lion), factored (Adafactor), one for hidden matrices (Muon), in 8 or 4 bits."""

from sympy import Add, Piecewise, ceiling

from ..theory import low_bits
from ..theory.optimizers import BLOCK, QUANTIZED, TABLE, factors, is_hidden
from .parameters import TIMES
from .parameters import WEIGHTS as TENSORS
from .registry import register
from .states import vector
from .symbols import s_b


def blocks(numbers):
    """(exact, rounded) bytes of an 8-bit state: one byte per number and a scale per block; fp32 below `QUANTIZED` numbers."""
    codes, scales, small = vector(numbers, 1), vector(ceiling(numbers / BLOCK), 4), vector(numbers, 4)
    return tuple(
        Piecewise((plain, numbers < QUANTIZED), (code + scale, True))
        for code, scale, plain in zip(codes, scales, small, strict=True)
    )


def low(optimizer, numbers):
    """(exact, rounded) bytes of one of torchao's states: codes, a scale per block and a table; as wide as the weights where it has few
    numbers, or no whole blocks."""
    form = low_bits.FORMS[optimizer]
    codes, plain = vector(ceiling(numbers / form.codes), 1), vector(numbers, s_b)
    scales, table = vector(ceiling(numbers / form.block), 4), vector(form.table, 4)
    return tuple(
        Piecewise(
            (p, numbers < low_bits.QUANTIZED),
            (p, numbers < form.block * ceiling(numbers / form.block)),
            (c + s + t, True),
        )
        for p, c, s, t in zip(plain, codes, scales, table, strict=True)
    )


def _states(name, each, *shared):
    """Register the sum of states. each: a tensor -> its states, (exact, rounded) bytes; shared: states that there are once."""
    times = [(TIMES[t.group] * t.count, state) for t in TENSORS for state in each(t)] + [(1, pair) for pair in shared]
    return register(f"states.{name}", *(Add(*(many * state[i] for many, state in times)) for i in (0, 1)))


LION = _states("lion", lambda t: [vector(t.numbers, s_b)])
ADAFACTOR = _states("adafactor", lambda t: [vector(n, s_b) for n in factors(t.shape)])
MUON = _states("muon", lambda t: [vector(t.numbers, s_b)] * (1 if is_hidden(t) else 2))
ADAMW8BIT = _states("adamw8bit", lambda t: [blocks(t.numbers)] * 2, vector(TABLE, 4, 2))
LOW = {name: _states(name, lambda t, name=name: [low(name, t.numbers)] * 2) for name in low_bits.FORMS}
