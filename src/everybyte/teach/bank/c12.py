"""Exercises of chapter 12: what does one number cost, and what does it lose?"""

from fractions import Fraction
from random import Random

from ...catalog import model
from ...formulas import SYMBOLS, formula
from ...formulas.formats import BLOCKS, FLOATS
from ..exercise import Exercise
from ..program import Case, Program

e, m = (SYMBOLS[name].symbol for name in ("exponent_bits", "mantissa_bits"))
_FP16_LARGEST = formula("formats.largest")(**FLOATS["fp16"])
_SCALE = 2**16  # GradScaler's first


def _largest(name, **changes):
    return formula("formats.largest")(**{**FLOATS[name], **changes})


def _two_states(**changes):
    return 2 * Fraction(formula("formats.blocks.bits")(**{**BLOCKS["8-bit optimizer state"], **changes})) / 8


def _step(magnitude):
    return Fraction(formula("formats.spacing")(magnitude=magnitude, **FLOATS["bf16"]))


def _llama(blocks="NF4, double quantization", rest_bits=16, bits=None):
    """Llama 3.1 8B in bytes: the linear layers of its blocks in `bits` a number, all else in `rest_bits`."""
    llama = model("llama-3.1-8b")
    linear = llama.layers * (formula("parameters.attention").at(llama) + formula("parameters.mlp").at(llama))
    each = Fraction(formula("formats.blocks.bits")(**BLOCKS[blocks])) if bits is None else bits
    return (linear * each + (llama.parameters - linear) * (each if rest_bits is None else rest_bits)) / 8


def _codes():
    """Codes of small and usual formats: zero, subnormals, ones, the largest, infinity, NaN, and others, of both signs."""
    draw = Random(12)
    for e_bits, m_bits in ((2, 1), (5, 2), (5, 10), (8, 7), (8, 23)):
        top = (2**e_bits - 1) << m_bits
        one = (2 ** (e_bits - 1) - 1) << m_bits
        some = [0, 1, 2**m_bits - 1, 2**m_bits, one, top - 1, top, top + 1, *(draw.randrange(top) for _ in range(4))]
        for code in dict.fromkeys([*some, *(c + 2 ** (e_bits + m_bits) for c in some[1:])]):
            name = f"{code:0{1 + e_bits + m_bits}b}, {e_bits} and {m_bits} bits"
            yield Case(name, (code, e_bits, m_bits), _decoded()(code, e_bits, m_bits))


def _same(given, right):
    return given is None if right is None else given is not None and Fraction(given) == right


def _decoded(subnormal=True, top=True, sign=True, bias=1):
    """What it would be with a leading one everywhere, a top field of numbers, no sign, or another bias."""

    def decode(code, e, m):
        negative, x, y = code >> (e + m), (code >> m) % 2**e, code % 2**m
        if top and x == 2**e - 1:
            return None
        leading, power = (1, x) if x or not subnormal else (0, 1)
        size = (leading + Fraction(y, 2**m)) * Fraction(2) ** (power - 2 ** (e - 1) + bias)
        return -size if sign and negative else size

    return decode


EXERCISES = [
    Exercise(
        id="12.1",
        title="The largest number of fp8 e5m2, by hand",
        difficulty=1,
        minutes=4,
        answer=lambda: _largest("fp8 e5m2"),
        mistakes={
            "the top exponent is infinity's and NaN's, as in IEEE 754": lambda: _largest("fp8 e5m2", top_reserved=0),
            "the mantissa is zero here: the largest has all its bits set": 2**15,
            "this is rounded up: two minus a quarter, not two": 2**16,
            "this is e4m3's": lambda: _largest("fp8 e4m3"),
            "this is fp16's: the exponents are alike, the mantissa is shorter": _FP16_LARGEST,
        },
        hints=(
            "The exponent field runs from 0 to 31, the bias is 15, and field 31 is taken: which power of two is left?",
            "With two mantissa bits the factor before the power is 1.75.",
        ),
    ),
    Exercise(
        id="12.2",
        title="How many positive finite numbers an IEEE format has, in e and m",
        difficulty=2,
        minutes=8,
        accepts="expression",
        answer=lambda: (2**e - 1) * 2**m - 1,
        mistakes={
            "zero is not positive": lambda: (2**e - 1) * 2**m,
            "the top exponent's codes are infinity and NaN, not numbers": lambda: 2 ** (e + m) - 1,
            "zero is not positive, and the top exponent's codes are not numbers": lambda: 2 ** (e + m),
            "the subnormals are positive numbers too": lambda: (2**e - 2) * 2**m,
            "the negative ones are counted too": lambda: 2 * ((2**e - 1) * 2**m - 1),
        },
        hints=(
            "Count codes, not values: every exponent field below the top goes with every mantissa. One of those codes is no positive number.",
            "There are 2**e - 1 fields below the top.",
        ),
    ),
    Exercise(
        id="12.3",
        title="The bytes that 8-bit Adam keeps for each parameter, exactly",
        difficulty=1,
        minutes=5,
        unit="B",
        answer=_two_states,
        mistakes={
            "Adam keeps two states: this is one": lambda: _two_states() / 2,
            "this is one state, without its scales": 1,
            "the scales are missing: an fp32 number for every block": 2,
            "the scale stands once for 256 numbers, not for 2,048": lambda: _two_states(quantization_block=2048),
            "the scale is an fp32 number, not a 16-bit one": lambda: _two_states(scale_bits=16),
            "these are the fp32 states'": 8,
        },
        hints=(
            "How many states does Adam keep, and what does each block of 256 of their numbers share?",
            "One state: 8 bits, and 32 bits over 256 numbers. Twice that, in bytes.",
        ),
    ),
    Exercise(
        id="12.4",
        title="The largest gradient that, at the scaler's first scale, does not pass fp16's largest number",
        difficulty=2,
        minutes=6,
        significant=4,
        answer=lambda: Fraction(_FP16_LARGEST) / _SCALE,
        mistakes={
            "the scale is missing: this is the largest scaled gradient": _FP16_LARGEST,
            "a product below 65,520 comes down to 65,504 by rounding, but it passes fp16's largest number": lambda: (
                Fraction(65_520, _SCALE)
            ),
            "2**16 is above fp16's largest number": 1,
            "this is multiplied by the scale: to find the gradient, divide": lambda: _FP16_LARGEST * _SCALE,
            "these are bf16's": lambda: Fraction(_largest("bf16")) / _SCALE,
        },
        hints=(
            "The scaled gradient is the gradient times 65,536. What is the largest number of fp16?",
            "Divide 65,504, the largest number of fp16, by 65,536.",
        ),
    ),
    Exercise(
        id="12.5",
        title="Stochastic rounding: the chance that a bf16 weight just above 1 takes an update of 0.001",
        difficulty=2,
        minutes=8,
        significant=3,
        answer=lambda: Fraction(1, 1000) / _step(0),
        mistakes={
            "this is rounding to nearest: it never moves": 0,
            "the whole spacing above 1 counts, 2**-7: this is for half of it": lambda: Fraction(1, 1000) / _step(-1),
            "this is the chance that the update is lost": lambda: 1 - Fraction(1, 1000) / _step(0),
            "this is fp16's spacing": lambda: Fraction(1, 1000) / Fraction(1, 2**10),
        },
        hints=(
            "The average over many tries must be the update itself. A move is worth one spacing.",
            "The chance times 2**-7 must be 0.001: solve for the chance.",
        ),
    ),
    Exercise(
        id="12.6",
        title="Predict: Llama 3.1 8B in NF4 with double quantization, as QLoRA loads it",
        difficulty=3,
        minutes=10,
        unit="GiB",
        decimals=2,
        answer=_llama,
        mistakes={
            "everything is quantized here: embeddings, head and norms stay in 16 bits": lambda: _llama(rest_bits=None),
            "the scales are missing": lambda: _llama(bits=4),
            "the scales are missing, and everything is quantized: half a byte a parameter": lambda: _llama(
                bits=4, rest_bits=None
            ),
            "the scales are quantized too, in blocks of 256": lambda: _llama("NF4"),
            "what is not quantized is in 16 bits, not in 32": lambda: _llama(rest_bits=32),
        },
        hints=(
            "Split the parameters in two: the linear layers of the blocks, and the rest. What does each number of either cost?",
            "The linear layers hold 32 x (attention + MLP) numbers; 1,050,939,392 are left, at two bytes each.",
        ),
    ),
    Program(
        id="12.7",
        title="A function that reads a number off its bits",
        difficulty=3,
        minutes=12,
        call="decode(code, e, m)",
        cases=_codes,
        agree=_same,
        answer=_decoded,
        mistakes={
            "field 0 has no leading 1, and the power of field 1: zero is one of its numbers": lambda: _decoded(
                subnormal=False
            ),
            "the top field is infinity and NaN": lambda: _decoded(top=False),
            "the first bit is the sign": lambda: _decoded(sign=False),
            "the bias is 2**(e - 1) - 1": lambda: _decoded(bias=0),
        },
        hints=(
            "Cut the code into three whole numbers with shifts and remainders: sign, exponent field, mantissa field.",
            "The chapter's `value` for fields from 1 on; for field 0 the same without the 1, at field 1's power; None for the top field.",
        ),
    ),
]
