"""Exercises of chapter 12: what does one number cost, and what does it lose?"""

from fractions import Fraction

from ..exercise import Exercise

#: QLoRA's two levels of scales (arXiv:2305.14314, section 3): bits of each scale and how many of the level below share it.
_BLOCK, _SCALE, _OUTER_BLOCK, _OUTER_SCALE, _PLAIN_SCALE = 64, 8, 256, 32, 32


def _nf4(scale=_SCALE, outer_scale=_OUTER_SCALE):
    return 4 + Fraction(scale, _BLOCK) + Fraction(outer_scale, _BLOCK * _OUTER_BLOCK)


def _largest(exponent_bits, mantissa_bits, reserved=1):
    """The largest number of an IEEE-like format, whose top `reserved` exponents stand for infinity and NaN."""
    bias = 2 ** (exponent_bits - 1) - 1
    top = 2**exponent_bits - 1 - reserved - bias
    return (2 - Fraction(1, 2**mantissa_bits)) * 2**top


EXERCISES = [
    Exercise(
        id="12.1",
        title="Bits per parameter of NF4 with double quantization",
        difficulty=2,
        minutes=6,
        unit="bits",
        decimals=3,
        answer=_nf4,
        mistakes={
            "the scales are missing: a block of numbers shares one": lambda: _nf4(0, 0),
            "this is without double quantization: each scale is fp32": lambda: _nf4(_PLAIN_SCALE, 0),
            "the outer scales are missing": lambda: _nf4(outer_scale=0),
            "a scale of 8 bits for each block of 64, not of 8 bytes": lambda: _nf4(8 * _SCALE),
        },
        hints=(
            "Four bits for the number; then ask how many numbers share each scale, and how many bits that scale has.",
            "64 numbers share a scale of 8 bits, and 256 such scales share one of 32 bits: how much falls on one number?",
        ),
    ),
    Exercise(
        id="12.2",
        title="The largest number that bf16 holds",
        difficulty=2,
        minutes=5,
        significant=3,
        answer=lambda: _largest(8, 7),
        mistakes={
            "this is fp16's": lambda: _largest(5, 10),
            "the top exponent is taken: it stands for infinity and NaN": lambda: _largest(8, 7, reserved=0),
            "this is the largest power of two: the mantissa's bits are all one": lambda: _largest(8, 0),
            "this is fp32's: its mantissa has sixteen bits more": lambda: _largest(8, 23),
        },
        hints=(
            "bf16 has 8 exponent bits and 7 mantissa bits. Which exponent is the largest that is not reserved?",
            "All mantissa bits one: 1.1111111 in binary, times two to the power of 127.",
        ),
    ),
]
