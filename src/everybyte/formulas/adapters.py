"""Adapters and frozen weights in 4 bits: the memory that they hold between steps."""

from sympy import Add, ceiling

from ..catalog.weights import linears, quantized
from .parameters import TIMES, lettered
from .registry import register
from .symbols import P, r_A


def _numbers():
    return Add(*(TIMES[w.group] * w.count * r_A * (w.shape[0] + w.shape[1]) for _, w in linears(lettered())))


NUMBERS = register("adapters.numbers", _numbers)
NF4 = register("nf4.weight", Add(*(numbers * width for numbers, width in quantized(P, lambda a, b: ceiling(a / b)))))
