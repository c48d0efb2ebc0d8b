"""Exercises of chapter 27: from fp8 to NVFP4, what is stored and what is saved?"""

from fractions import Fraction
from random import Random

from ...formulas.quantized import quantized
from ...formulas.symbols import F
from . import Case, answers, program

ROWS, COLUMNS = 14_336, 4_096


def held(copies=2, scales=1, bits=8):
    """Bytes of the layer's weight in MXFP8; scales: whether they count; bits: of a scale."""
    return copies * ROWS * COLUMNS * (1 + scales * Fraction(bits, 8 * 32))


def scales(rows=256, block=32):
    return rows * COLUMNS // block


def saved(weight=1, copies=2, tokens=8_192):
    return tokens * COLUMNS * Fraction(33, 32) + weight * held(copies)


def tokens(copies=2, number=Fraction(9, 16)):
    """From where on a layer with F outputs saves less than in bf16. number: bytes of a quantized number."""
    return F * Fraction(copies * number, 2 - number)


def stored(rows, columns, bits, block, *, tall=128, wide=4, packed=True):
    across = -(-columns // block)
    padded = -(-rows // tall) * tall * (-(-across // wide) * wide)
    return rows * columns * (bits if packed else 8) // 8 + padded


def matrices():
    draw = Random(27)
    for name, bits, block in (("MXFP8", 8, 32), ("MXFP4", 4, 32), ("NVFP4", 4, 16)) * 2:
        rows, columns = draw.randrange(1, 600), 32 * draw.randrange(1, 40)
        once = 4 * (name == "NVFP4")  # the scale of the whole tensor, which the exercise leaves out
        right = quantized(f"{name}, tiled", rows, columns) - once
        yield Case(f"{name}, {rows} by {columns}", (rows, columns, bits, block), right)


ANSWERS = {
    "27.1": answers(held, copies=1, scales=0, bits=32),
    "27.2": answers(scales, rows=130, block=16),
    "27.3": answers(saved, weight=0, copies=1, half=8_192 * COLUMNS),
    "27.4": answers(tokens, copies=1, scales={"number": Fraction(1, 2)}, mxfp8={"number": Fraction(33, 32)}),
    "27.5": program(stored, matrices, rows={"tall": 1}, columns={"wide": 1}, bits={"packed": False}),
}
