"""Bytes and ranges of number formats: floating-point, integer and block formats."""

from types import MappingProxyType

from sympy import Max, ceiling, floor

from .registry import register
from .symbols import P, e_bits, m_bits, mu, nan, q_bits, q_block, q_outer, q_outer_scale, q_scale, top


def formats(names: str, rows: dict) -> MappingProxyType:
    """{name of a format: {symbol's name in code: value}}, read-only. names: of the symbols, in the order of a row."""
    return MappingProxyType(
        {name: MappingProxyType(dict(zip(names.split(), row, strict=True))) for name, row in rows.items()}
    )


#: Floating-point formats. tf32 is how tensor cores read fp32: stored, it is fp32.
FLOATS = formats(
    "exponent_bits mantissa_bits top_reserved top_nan",
    {
        "fp32": (8, 23, 1, 0),
        "tf32": (8, 10, 1, 0),
        "bf16": (8, 7, 1, 0),
        "fp16": (5, 10, 1, 0),
        "fp8 e5m2": (5, 2, 1, 0),
        "fp8 e4m3": (4, 3, 0, 1),
        "fp4 e2m1": (2, 1, 0, 0),
    },
)
#: Block formats: numbers of a few bits that share scales. What a tensor has once (a table, one fp32 scale) is not counted.
BLOCKS = formats(
    "quantized_bits quantization_block scale_bits outer_block outer_scale_bits",
    {
        "NF4": (4, 64, 32, 1, 0),
        "NF4, double quantization": (4, 64, 8, 256, 32),
        "MXFP4": (4, 32, 8, 1, 0),
        "NVFP4": (4, 16, 8, 1, 0),
        "MXFP8": (8, 32, 8, 1, 0),
        "FP8, 128 by 128": (8, 128**2, 32, 1, 0),
        "8-bit optimizer state": (8, 256, 32, 1, 0),
    },
)

_bias = 2 ** (e_bits - 1) - 1
_normal = 1 - _bias

BITS = register("formats.bits", 1 + e_bits + m_bits)
BIAS = register("formats.bias", _bias)
LARGEST = register("formats.largest", (2 - 2**-m_bits * (1 + nan)) * 2 ** (_bias + 1 - top))
NORMAL = register("formats.smallest_normal", 2**_normal)
SMALLEST = register("formats.smallest", 2 ** (_normal - m_bits))
EPSILON = register("formats.epsilon", 2**-m_bits)
SPACING = register("formats.spacing", 2 ** (Max(floor(mu), _normal) - m_bits))
BYTES = register("formats.bytes", ceiling(BITS.expr * P / 8))

INTEGER_LARGEST = register("formats.integer.largest", 2 ** (q_bits - 1) - 1)
INTEGER_BYTES = register("formats.integer.bytes", ceiling(q_bits * P / 8))

_scales = ceiling(P / q_block)
_in_scales = ceiling(q_scale * _scales / 8) + ceiling(q_outer_scale * ceiling(_scales / q_outer) / 8)
BLOCK_BITS = register("formats.blocks.bits", q_bits + q_scale / q_block + q_outer_scale / (q_block * q_outer))
BLOCK_BYTES = register("formats.blocks.bytes", ceiling(q_bits * P / 8) + _in_scales)
