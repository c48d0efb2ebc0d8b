"""Exercises of chapter 20: what does one number cost, and what does it lose?"""

from fractions import Fraction
from random import Random

from ...formulas.formats import BLOCKS, FLOATS
from ...formulas.symbols import e_bits as e
from ...formulas.symbols import m_bits as m
from . import Case, answers, formula, model, program

MILLI, SCALE = Fraction(1, 1000), 2**16  # GradScaler's first
ALL = 2 ** (e + m)
POSITIVE = ALL - 2**m - 1


def top(name="fp8 e5m2", **changes):
    return Fraction(formula("formats.largest")(**FLOATS[name] | changes))


FP16, BF16 = top("fp16"), top("bf16")


def spacing(magnitude):
    return Fraction(formula("formats.spacing")(magnitude=magnitude, **FLOATS["bf16"]))


def adam(states=2, quantization_block=256, scale_bits=32):
    changes = {"quantization_block": quantization_block, "scale_bits": scale_bits}
    return states * Fraction(formula("formats.blocks.bits")(**BLOCKS["8-bit optimizer state"] | changes)) / 8


def llama(blocks="NF4, double quantization", rest_bits=16, bits=None):
    """Llama 3.1 8B in bytes: the linear layers of its blocks in `bits` a number, all else in `rest_bits`."""
    of = model("llama-3.1-8b", code="reference")
    linear = of.layers * (formula("parameters.attention").at(of) + formula("parameters.mlp").at(of))
    each = Fraction(formula("formats.blocks.bits")(**BLOCKS[blocks])) if bits is None else bits
    return (linear * each + (of.parameters - linear) * (each if rest_bits is None else rest_bits)) / 8


def codes():
    """Codes of small and usual formats: zero, subnormals, ones, the largest, infinity, NaN, and others, of both signs."""
    draw = Random(12)
    for e_bits, m_bits in ((2, 1), (5, 2), (5, 10), (8, 7), (8, 23)):
        top = (2**e_bits - 1) << m_bits
        one = (2 ** (e_bits - 1) - 1) << m_bits
        some = [0, 1, 2**m_bits - 1, 2**m_bits, one, top - 1, top, top + 1, *(draw.randrange(top) for _ in range(4))]
        for code in dict.fromkeys([*some, *(c + 2 ** (e_bits + m_bits) for c in some[1:])]):
            name = f"{code:0{1 + e_bits + m_bits}b}, {e_bits} and {m_bits} bits"
            yield Case(name, (code, e_bits, m_bits), decoded(code, e_bits, m_bits))


def same(given, right):
    return given is None if right is None else given is not None and Fraction(given) == right


def decoded(code, e, m, *, subnormal=True, top=True, sign=True, bias=1):
    negative, x, y = code >> (e + m), (code >> m) % 2**e, code % 2**m
    if top and x == 2**e - 1:
        return None
    leading, power = (1, x) if x or not subnormal else (0, 1)
    size = (leading + Fraction(y, 2**m)) * Fraction(2) ** (power - 2 ** (e - 1) + bias)
    return -size if sign and negative else size


ANSWERS = {
    "20.1": answers(
        top(), top_field=top(top_reserved=0), mantissa=2**15, rounded_up=2**16, e4m3=top("fp8 e4m3"), fp16=FP16
    ),
    "20.2": answers(
        POSITIVE, zero=POSITIVE + 1, zero_top=ALL, top_field=ALL - 1, signs=2 * POSITIVE, subnormals=ALL - 2 * 2**m
    ),
    "20.3": answers(adam, states=1, one_byte=1, scales=2, quantization_block=2048, scale_bits=16, fp32=8),
    "20.4": answers(
        FP16 / SCALE, scaled=FP16, rounding=Fraction(65_520, SCALE), one=1, multiplied=FP16 * SCALE, bf16=BF16 / SCALE
    ),
    "20.5": answers(
        MILLI / spacing(0), nearest=0, half=MILLI / spacing(-1), lost=1 - MILLI / spacing(0), fp16=MILLI * 2**10
    ),
    "20.6": answers(
        llama, rest_bits=None, bits=4, half_byte={"bits": 4, "rest_bits": None}, blocks="NF4", fp32={"rest_bits": 32}
    ),
    "20.7": program(decoded, codes, same, subnormal=False, top=False, sign=False, bias=0),
}
