"""Adapters, and frozen weights in 4 bits: what stands for them between steps."""

from sympy import Add, ceiling

from ..catalog.weights import linears, quantized
from ..rules import formulas as rows
from .parameters import TIMES, lettered
from .registry import register
from .symbols import P, r_A

_CHAPTER = "25_adapters"


NUMBERS = register(
    "adapters.numbers", "numbers in adapters beside every linear layer of the blocks",
    lambda: Add(*(TIMES[w.group] * w.count * r_A * (w.shape[0] + w.shape[1]) for _, w in linears(lettered()))),
    "parameters",
    source="Hu et al. 2021, arXiv:2106.09685, section 4.1; peft, tuners/lora/layer.py",
    chapter=_CHAPTER,
    assumptions=("experts' matrices have none",),
    refuses=rows.ALL_TARGETS,
)  # fmt: skip
NF4 = register(
    "nf4.weight",
    "a weight of P numbers in NF4, with double quantization",
    Add(*(numbers * width for numbers, width in quantized(P, lambda a, b: ceiling(a / b)))),
    "B",
    source="Dettmers et al. 2023, arXiv:2305.14314, section 3; bitsandbytes, functional.py, quantize_4bit",
    chapter=_CHAPTER,
    assumptions=("without the table of codes for scales, which a process has once",),
)
