"""Exercises of chapter 12: what does one number cost, and what does it lose?"""

from fractions import Fraction

from ...catalog import model
from ...formulas import SYMBOLS, formula
from ...formulas.formats import BLOCKS, FLOATS
from ..exercise import Exercise

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
        title="Find the error: the bytes that 8-bit Adam keeps for each parameter",
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
        title="The largest gradient that the scaler's first scale leaves finite in fp16",
        difficulty=2,
        minutes=6,
        significant=4,
        answer=lambda: Fraction(_FP16_LARGEST) / _SCALE,
        mistakes={
            "the scale is missing: this is the largest scaled gradient": _FP16_LARGEST,
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
]
